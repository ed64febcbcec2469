//go:build e2e

package aws

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// cleanup runs kipctl cleanup, and returns what it prints.
func (s *space) cleanup(args ...string) (out string, err error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), namespace.Patience)
	defer cancel()
	args = append([]string{"cleanup", "--kubeconfig", world.Kubeconfig, "--socket", world.Socket}, args...)
	stdout, stderr, err := namespace.Run(exec.CommandContext(ctx, world.Tool("kipctl"), args...))
	return stdout + stderr, err
}

func TestNothingOfKipIsInTheAccountAfterACleanup(t *testing.T) {
	s := newSpace(t)
	before := s.state(t.Context())
	s.order("interfaces", cloudmodel.Interfaces{Stay: true}) // as EC2 sometimes forgets them
	defer s.order("interfaces", cloudmodel.Interfaces{})
	s.mayRoute()
	s.Apply(pod("ended", "{}") + "---\n" + pod("runs", "{pod.elotl.co/cloud-route: "+behindPod+"}"))
	s.WaitReady("ended")
	s.WaitReady("runs")
	s.Kubectl("delete", "pod", "ended", "--wait=false")
	s.Eventually("its instance is gone, and has left its interface", func(ctx context.Context) error {
		for _, i := range s.state(ctx).Interfaces {
			if i.Instance == "" {
				return nil
			}
		}
		return errors.New("it has left none")
	})
	s.Eventually("a network is led to the pod that runs", func(ctx context.Context) error {
		if len(s.state(ctx).Routes) == 0 {
			return errors.New("there are no routes")
		}
		return nil
	})
	now := s.state(t.Context())
	if len(now.Groups) != 1 || len(now.Interfaces) != 2 {
		t.Fatalf("the groups are %+v, want one; the interfaces are %+v, want that of an instance and one that was left", now.Groups, now.Interfaces)
	}
	out, err := s.cleanup()
	if err == nil || !strings.Contains(out, "--yes") {
		t.Errorf("cleanup without --yes: %v: %s", err, out)
	}
	for _, name := range []string{s.NS + "/runs", harness.Node, now.Groups[0].ID, now.Interfaces[0].ID, now.Interfaces[1].ID} {
		if !strings.Contains(out, name) {
			t.Errorf("cleanup does not name %s:\n%s", name, out)
		}
	}
	for _, call := range []struct {
		action string
		after  bool
	}{{"DeleteNetworkInterface", true}, {"DeleteSecurityGroup", false}} {
		cleaned := make(chan error, 1)
		s.killAt(call.after, func() {
			go func() {
				_, err := s.cleanup("--yes")
				cleaned <- err
			}()
		}, call.action)
		if err := <-cleaned; err == nil {
			t.Errorf("Kip has died at %s, and its cleanup says that all is well", call.action)
		}
	}
	if out, err := s.cleanup("--yes"); err != nil || !strings.Contains(out, "Clean") {
		t.Errorf("cleanup --yes: %v: %s", err, out)
	}
	after := s.state(t.Context())
	if len(after.Groups) > 0 || len(after.Interfaces) > 0 || len(after.Volumes) > 0 || len(after.Routes) > 0 {
		t.Errorf("left are the groups %+v, the interfaces %+v, the volumes %+v and the routes %+v",
			after.Groups, after.Interfaces, after.Volumes, after.Routes)
	}
	for _, i := range s.since(t.Context(), before) {
		if i.Ended.IsZero() {
			t.Errorf("left is instance %+v", i)
		}
	}
	if _, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the cleanup the node: %v", err)
	}
	// It makes nothing until it is started again.
	if err := world.KillKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := world.StartKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := world.NodeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}
