package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/elotl/kip/test/harness"
)

// besideNamespace is that of the DaemonSet that -beside adds.
const besideNamespace = "beside-all"

// besideManifest is a DaemonSet, and a pod beside which it runs from the beginning of the suite to its end.
const besideManifest = `apiVersion: v1
kind: Namespace
metadata: {name: beside-all}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: beside-all}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      containers:
      - name: agent
        image: IMAGE
        command: [sleep, infinity]
        resources: {requests: {cpu: 5m, memory: 8Mi}}
        readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
        volumeMounts: [{name: log, mountPath: /var/log, readOnly: true}]
      volumes: [{name: log, hostPath: {path: /var/log}}]
---
apiVersion: v1
kind: Pod
metadata: {name: witness, namespace: beside-all}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {type: virtual-kubelet}
  tolerations: [{operator: Exists}]
  containers: [{name: main, image: IMAGE, command: [sleep, infinity]}]
`

// besidePods has Kip run a DaemonSet beside all pods. The specs know nothing of it. unmoved is an error if the DaemonSet does not
// fare well, or if the pod or the copy beside it has started again.
func besidePods(ctx context.Context, world *harness.World) (unmoved func(context.Context) error, err error) {
	if _, err := world.Reconfigure(ctx, func(provider map[string]any) {
		provider["cells"].(map[string]any)["daemonSets"] = []any{map[string]any{"namespace": besideNamespace}}
	}); err != nil {
		return nil, err
	}
	apply := world.Kubectl(ctx, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(strings.ReplaceAll(besideManifest, "IMAGE", e2e+"busybox:1.37.0-1"))
	if _, err := outputOf(apply); err != nil {
		return nil, err
	}
	unmoved = func(ctx context.Context) error {
		const within = "--timeout=3m"
		if _, err := outputOf(world.Kubectl(ctx, "rollout", "status", "daemonset/agent", "-n", besideNamespace, within)); err != nil {
			return err
		}
		if _, err := outputOf(world.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/witness", "-n", besideNamespace, within)); err != nil {
			return err
		}
		for tries := 0; ; tries++ { // Kip gathers what cells say for some seconds
			err := never(ctx, world)
			if err == nil || tries == 30 {
				return err
			}
			if err := harness.Sleep(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return unmoved, unmoved(ctx)
}

// never is an error if the pod or the copy beside it has started again, or is not ready.
func never(ctx context.Context, world *harness.World) error {
	restarts, err := outputOf(world.Kubectl(ctx, "get", "pod", "witness", "-n", besideNamespace, "-o",
		"jsonpath={.status.containerStatuses[0].restartCount}"))
	if err != nil {
		return err
	}
	beside, err := outputOf(world.Kubectl(ctx, "get", "cells", "-o",
		"jsonpath={.items[?(@.status.pod.name==\"witness\")].status.beside[0]['ready','restarts']}"))
	if err != nil {
		return err
	}
	if restarts != "0" || beside != "true" {
		return fmt.Errorf("the pod of namespace %s has restarted %s times, and the copy beside it is %q (ready, and its restarts): "+
			"want none, and true", besideNamespace, restarts, beside)
	}
	return nil
}

// outputOf is what a command prints, without the space around it.
func outputOf(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
