//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// preparer is a DaemonSet that prepares its node for pods, and enters their networks: it installs a seccomp profile, as the
// security-profiles-operator does, chains a CNI plugin, as istio-cni and linkerd-cni do, and listens within each pod's network, as
// Istio's ztunnel does.
const preparer = `apiVersion: v1
kind: ConfigMap
metadata: {name: profiles}
data:
  no-folders.json: '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}'
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: preparer}
spec:
  selector: {matchLabels: {app: preparer}}
  template:
    metadata: {labels: {app: preparer}}
    spec:
      terminationGracePeriodSeconds: 1
      hostNetwork: true
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      initContainers:
      - name: profiles
        image: busybox:1.36
        command: [sh, -c, 'mkdir -p /seccomp/operator && cp /profiles/*.json /seccomp/operator/']
        volumeMounts: [{name: profiles, mountPath: /profiles}, {name: seccomp, mountPath: /seccomp}]
      - name: plugin
        image: busybox:1.36
        command:
        - sh
        - -c
        - |
          set -e
          cp /bin/busybox /cni/bin/busybox-mesh
          cat >/cni/bin/mesh <<'END'
          #!/opt/cni/bin/busybox-mesh sh
          tool=/opt/cni/bin/busybox-mesh
          given=$($tool cat)
          if [ "$CNI_COMMAND" = ADD ]; then
            $tool nsenter --net="$CNI_NETNS" $tool ip address add 192.0.2.7/32 dev lo
            result=${given##*'"prevResult":'}
            echo "${result%',"type":"mesh"'*}"
          fi
          END
          chmod 755 /cni/bin/mesh
          sed -i 's/^  ]$/  ,{"type": "mesh"}]/' /cni/net.d/10-kip.conflist
        volumeMounts: [{name: cni-bin, mountPath: /cni/bin}, {name: cni-net, mountPath: /cni/net.d}]
      containers:
      - name: networks
        image: busybox:1.36
        securityContext: {privileged: true}
        command:
        - sh
        - -c
        - |
          mkdir -p /tmp/www; echo from the node > /tmp/www/index.html
          while :; do
            for f in /netns/cni-*; do
              [ -e "$f" ] || continue
              nsenter --net="$f" sh -c 'netstat -ltn | grep -q :15008 || httpd -p 15008 -h /tmp/www'
            done
            sleep 0.5
          done
        volumeMounts: [{name: netns, mountPath: /netns, mountPropagation: HostToContainer}]
      volumes:
      - {name: profiles, configMap: {name: profiles}}
      - {name: seccomp, hostPath: {path: /var/lib/kubelet/seccomp, type: DirectoryOrCreate}}
      - {name: netns, hostPath: {path: /var/run/netns, type: DirectoryOrCreate}}
      - {name: cni-bin, hostPath: {path: /opt/cni/bin}}
      - {name: cni-net, hostPath: {path: /etc/cni/net.d}}
`

// Not parallel: it starts Kip anew.
func TestADaemonSetPreparesTheCellOfEachPod(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	reconfigure(t, map[string]any{"daemonSets": []any{map[string]any{"namespace": s.NS, "name": "preparer", "maxDelay": 120}}})
	s.Apply(preparer)
	s.setPod("preparer", "")
	s.Apply(strings.Replace(namespace.Sleeper("a"), "  containers:\n",
		"  securityContext: {seccompProfile: {type: Localhost, localhostProfile: operator/no-folders.json}}\n  containers:\n", 1))
	pod := s.WaitReady("a")
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("its container started %d times more", n)
	}
	if _, code, errs := s.Try("exec", "a", "--", "mkdir", "/tmp/x"); code == 0 || !strings.Contains(errs, "Operation not permitted") {
		t.Errorf("mkdir ends with %d: %s", code, errs)
	}
	if got := s.in("a", "touch /tmp/y && echo made"); got != "made" {
		t.Errorf("touch prints %q", got)
	}
	if got := s.in("a", "ip address show lo"); !strings.Contains(got, "192.0.2.7/32") {
		t.Errorf("the chained plugin did not see the pod's network: %s", got)
	}
	s.Eventually("the DaemonSet's pod listens in the pod's network", func(ctx context.Context) error {
		out, _, errs := s.Attempt(ctx, "exec", "a", "--", "timeout", "5", "wget", "-qO-", "http://127.0.0.1:15008/")
		if out != "from the node\n" {
			return fmt.Errorf("%q %s", out, errs)
		}
		return nil
	})
	s.deleteAll("a")
}
