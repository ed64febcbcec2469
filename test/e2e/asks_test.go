//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"github.com/elotl/kip/test/namespace"
)

// passed are the resources of a pod's namespace of which Kip passes on, or watches in
// the node's name, what a cell asks. All else that a cell asks ends in Kip.
var passed = []string{"pods", "pods/status", "events", "configmaps", "secrets", "serviceaccounts/token"}

// asked counts, by verb and resource, what the API server was asked in a namespace in
// the name of the virtual node.
func asked(namespace string) (map[string]int, error) {
	f, err := os.Open(auditLog)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := map[string]int{}
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return counts, nil // what is left has no end yet
		}
		if err != nil {
			return nil, err
		}
		// What the other tests asked is hundreds of megabytes: a slow machine needs minutes
		// to read them as JSON.
		if !bytes.Contains(line, []byte(namespace)) {
			continue
		}
		var e struct {
			Stage, Verb      string
			ImpersonatedUser struct{ Username string }
			ObjectRef        struct{ Namespace, Resource, Subresource string }
			ResponseStatus   struct{ Code int }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("event %q: %w", line, err)
		}
		answered := e.Stage == "ResponseComplete" || e.Verb == "watch" && e.Stage == "ResponseStarted"
		if !answered || e.Verb == "watch" && e.Stage == "ResponseComplete" || e.ResponseStatus.Code >= 300 ||
			e.ImpersonatedUser.Username != "system:node:"+harness.Node || e.ObjectRef.Namespace != namespace {
			continue
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		if slices.Contains(passed, resource) {
			counts[e.Verb+" "+resource]++
		}
	}
}

// The figures of many cells are taken with hollow ones: these must ask all that real
// ones do.
func TestHollowCellsAskAllThatARealCellAsks(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
	s.Apply(namespace.Bare("p", `  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: a}}}]
`))
	s.WaitReady("p")
	s.Kubectl("delete", "pod", "p")
	s.WaitGone("p")

	want := map[string]bool{}
	for _, a := range hollow.Asks() {
		if a.Skipped == "" && slices.Contains(passed, a.Resource) && a.Verb+" "+a.Resource != "watch pods" {
			want[a.Verb+" "+a.Resource] = true // Kip watches the pods of the node, in all namespaces
		}
	}
	optional := map[string]bool{
		"patch events":    true,
		"list pods":       true,
		"list configmaps": true,
		"list secrets":    true,
		// Kip's own, in the node's name: it has heard nothing of the cell for a while, as on a
		// busy machine. Kubelets patch.
		"update pods/status": true,
	}
	s.Eventually("the audit log has what a real cell asks", func(context.Context) error {
		got, err := asked(s.NS)
		if err != nil {
			return err
		}
		for what := range want {
			if got[what] == 0 {
				return fmt.Errorf("a real cell does not %s, hollow ones do: got %v", what, got)
			}
		}
		for what := range maps.Keys(got) {
			if !want[what] && !optional[what] {
				return fmt.Errorf("a real cell asks to %s, hollow ones do not: got %v", what, got)
			}
		}
		if got["get pods"] < got["patch pods/status"] || got["create events"] < 4 {
			return fmt.Errorf("a real cell reads its pod before each report, and tells Pulled, Created, Started and Killing: got %v", got)
		}
		return nil
	})
}
