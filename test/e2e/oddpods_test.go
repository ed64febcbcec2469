//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/oddpods"
	"github.com/elotl/kip/test/tier"
)

// oddPatience is how long a group of odd pods has until each has a reason, and again until
// all are gone: patience after what kubelets wait for, who report a mount that hangs after
// two minutes.
const oddPatience = 2*time.Minute + patience

// numberFrom reads an environment variable.
func numberFrom(t *testing.T, name, otherwise string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(name), otherwise), 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, os.Getenv(name), err)
	}
	return n
}

// TestPodsWithOddValuesEndInAStateWithAReason posts pods with odd values in any
// field. Those that the API server admits get to a state that has a reason, Kip
// goes on, and nothing is left. FUZZ_SEED=n begins elsewhere, FUZZ_PODS=n admits
// more. It does not run beside tests that kill Kip.
func TestPodsWithOddValuesEndInAStateWithAReason(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	const group = 10 // cells at a time
	seed, most := numberFrom(t, "FUZZ_SEED", "1"), int(numberFrom(t, "FUZZ_PODS", "40"))
	pid, err := world.KipPID()
	if err != nil {
		t.Fatal(err)
	}
	pods := world.Admin.CoreV1().Pods(s.NS)
	refused, total, reached := 0, 0, map[string]int{}
	for total < most {
		var admitted []*corev1.Pod
		for ; len(admitted) < group && total+len(admitted) < most; seed++ {
			pod, err := pods.Create(t.Context(), oddpods.Posted(seed, s.NS, fmt.Sprintf("odd-%d", seed), harness.Node), metav1.CreateOptions{})
			switch {
			case err == nil:
				admitted = append(admitted, pod)
			case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsNotFound(err):
				refused++
			default:
				t.Fatalf("FUZZ_SEED=%d: %v", seed, err)
			}
			if refused > 100*most {
				t.Fatalf("%d pods were refused, and %d admitted", refused, total+len(admitted))
			}
		}
		total += len(admitted)
		ctx, cancel := context.WithTimeout(t.Context(), oddPatience)
		for _, pod := range admitted {
			var how string
			if err := namespace.Poll(ctx, func(ctx context.Context) (err error) {
				how, err = s.settled(ctx, pod)
				return err
			}); err != nil {
				t.Errorf("pod %s: %v\n%+v", pod.Name, err, pod.Spec)
				continue
			}
			reached[how]++
		}
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), oddPatience)
		for _, pod := range admitted {
			if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		if err := namespace.Poll(ctx, func(ctx context.Context) error {
			list, err := pods.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(list.Items) > 0 {
				return fmt.Errorf("%d pods, one is %s", len(list.Items), list.Items[0].Name)
			}
			return s.NoCells(ctx)
		}); err != nil {
			t.Errorf("left after their deletion: %v", err)
		}
		cancel()
		if t.Failed() {
			break
		}
	}
	t.Logf("%d pods were admitted and %d refused; they reached %v", total, refused, reached)
	// Whatever the seed, most of them run, and those that do not have several reasons.
	if ran := reached["Running"] + reached["Succeeded"]; !t.Failed() && (3*ran < total || len(reached) < 4) {
		t.Errorf("%d of %d pods ran, and they ended in %d ways: want a third or more, and 4 or more", ran, total, len(reached))
	}
	if now, err := world.KipPID(); err != nil || now != pid {
		t.Errorf("Kip was process %d and is %d (%v)", pid, now, err)
	}
	log, err := os.ReadFile(filepath.Join(world.State, "kip.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"panic", "goroutine "} {
		if i := bytes.Index(log, []byte(word)); i >= 0 {
			t.Errorf("Kip's log has %q:\n%s", word, log[i:min(len(log), i+2000)])
		}
	}
}

// settled says how a pod ended or why it waits, or that nobody says so yet.
func (s *space) settled(ctx context.Context, pod *corev1.Pod) (string, error) {
	now, err := s.Pod(ctx, pod.Name)
	if err != nil {
		return "", err
	}
	switch now.Status.Phase {
	case corev1.PodRunning, corev1.PodSucceeded:
		return string(now.Status.Phase), nil
	case corev1.PodFailed:
		if now.Status.Reason != "" {
			return "Failed: " + now.Status.Reason, nil
		}
		for _, c := range append(now.Status.InitContainerStatuses, now.Status.ContainerStatuses...) {
			if c.State.Terminated != nil && c.State.Terminated.Reason != "" {
				return "Failed: " + c.State.Terminated.Reason, nil
			}
		}
		return "", fmt.Errorf("it is Failed, without a reason: %+v", now.Status)
	}
	for _, c := range append(now.Status.InitContainerStatuses, now.Status.ContainerStatuses...) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return "Pending: " + w.Reason, nil
		}
		if c.State.Running != nil || c.LastTerminationState.Terminated != nil {
			return "Pending: a container runs", nil
		}
	}
	events, err := world.Admin.CoreV1().Events(s.NS).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	if err != nil {
		return "", err
	}
	var seen []string
	for _, e := range events.Items {
		// This one keeps no pod from running.
		if e.Type == corev1.EventTypeWarning && e.Reason != "FailedToRetrieveImagePullSecret" {
			return "Pending: " + e.Reason, nil
		}
		seen = append(seen, e.Reason)
	}
	return "", fmt.Errorf("it is %s, and nothing says why; events %s; status %+v", now.Status.Phase, strings.Join(seen, ", "), now.Status)
}
