//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// nodeEvents are those of a reason about virtual nodes.
func nodeEvents(ctx context.Context, reason string) (*corev1.EventList, error) {
	return world.Admin.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
}

// Not parallel: it starts Kip with other settings.
func TestACellCarriesOutTheOperatorsCloudInitFile(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	file := filepath.Join(t.TempDir(), "cloud-init.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(`#cloud-config
hostname: a-worker
write_files:
- {path: /srv/secret, content: "sesame\n", permissions: '0600', owner: 12:34}
runcmd:
- cat /proc/sys/kernel/hostname /srv/secret > /srv/said
- test ! -e /var/lib/kubelet/config.yaml && echo no kubelet >> /srv/said
- [sh, -c, 'sleep 3; echo "$1" >> /srv/said; exit 7', x, done]
`)
	restore := reconfigure(t, map[string]any{"cloudInitFile": file})
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	m := s.machine("a")
	said := func(m machine) string {
		text, err := os.ReadFile(m.path("/srv/said"))
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	if got := said(m); got != "a-worker\nsesame\nno kubelet\ndone\n" {
		t.Errorf("its commands said %q", got)
	}
	if info, err := os.Stat(m.path("/srv/secret")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file: %v, %v", info, err)
	}
	s.WaitEvent("a", "CloudInitFailed", "runcmd: exit status 7")
	if _, data := m.userData(t); strings.Contains(string(data), "sesame") {
		t.Error("its user data has what is in the file")
	}

	write("#cloud-config\nusers: [ann]\n")
	s.Eventually("the virtual node says that the file is wrong", func(ctx context.Context) error {
		list, err := nodeEvents(ctx, "CloudInitInvalid")
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, "nobody can log in on Kip's own image") {
				return nil
			}
		}
		return fmt.Errorf("there are %d such events", len(list.Items))
	})
	s.Apply(namespace.Sleeper("b"))
	s.WaitReady("b")
	if got := said(s.machine("b")); !strings.HasPrefix(got, "a-worker\n") {
		t.Errorf("the next cell, by the last good file, said %q", got)
	}

	write("#cloud-config\nruncmd: [mkdir /srv, echo another > /srv/said]\n")
	s.Eventually("the virtual node says that the file has changed", func(ctx context.Context) error {
		list, err := nodeEvents(ctx, "CloudInitChanged")
		if err == nil && len(list.Items) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	s.Apply(namespace.Sleeper("c"))
	s.WaitReady("c")
	if got := said(s.machine("c")); got != "another\n" {
		t.Errorf("the next cell said %q", got)
	}
	if got := said(m); !strings.HasSuffix(got, "done\n") || strings.Count(got, "done") != 1 {
		t.Errorf("the first cell did it again: %q", got)
	}
	for _, pod := range []string{"a", "b", "c"} {
		s.Kubectl("delete", "pod", pod, "--wait=false")
	}
	restore()
}
