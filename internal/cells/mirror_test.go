package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

// unmirrored are no cells.
type unmirrored struct{}

func (unmirrored) WaitsFor(string) string { return "" }
func (unmirrored) CurrentImage(context.Context, Cell) (string, error) {
	return "", nil
}

func TestTheMirrorTakesBackWhatACellNoLongerWaitsFor(t *testing.T) {
	waits := ""
	m := &Mirror{node: "kip-0", waitsFor: func(string) string { return waits }}
	for _, waits = range []string{"the cloud has not answered yet", ""} {
		patch, err := json.Marshal(m.Status(Cell{Phase: apiv1.Launching}))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`"waiting":%q`, waits); !strings.Contains(string(patch), want) {
			t.Errorf("the patch is %s, want %s in it", patch, want)
		}
	}
}

// mirrored is a mirror whose writes are made by hand.
type mirrored struct {
	*testing.T
	*Mirror
}

func newMirrored(t *testing.T) mirrored {
	kinds := map[schema.GroupVersionResource]string{apiv1.Resource: "CellList"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	m := mirrored{t, NewMirror(unmirrored{}, nil, client, MirrorConfig{
		Node:         "kip-0",
		ControllerID: "me",
		Version:      "v1.4.2",
		Image:        map[string]string{"imageID": "now"},
		Clock:        clocktesting.NewFakeClock(time.Unix(1e9, 0)),
		Log:          slog.New(slog.DiscardHandler),
	})}
	t.Cleanup(m.queue.ShutDown)
	return m
}

// told tells of a change, and writes it.
func (m mirrored) told(cell Cell) {
	m.Helper()
	m.CellChanged(cell)
	if err := m.write(m.Context(), cell.ID); err != nil {
		m.Fatal(err)
	}
}

// phase is what the Cell resource says; "" where there is none.
func (m mirrored) phase(id string) string {
	m.Helper()
	object, err := m.client.Get(m.Context(), id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		m.Fatal(err)
	}
	phase, _, err := unstructured.NestedString(object.Object, "status", "phase")
	if err != nil {
		m.Fatal(err)
	}
	return phase
}

func TestTheMirrorFollowsACellToItsEnd(t *testing.T) {
	m := newMirrored(t)
	for _, phase := range []apiv1.Phase{apiv1.Requested, apiv1.Launching, apiv1.Bound} {
		m.told(Cell{ID: "c", Phase: phase})
		if got := m.phase("c"); got != string(phase) {
			t.Fatalf("the resource says %q, want %s", got, phase)
		}
	}
	m.told(Cell{ID: "c", Phase: apiv1.Gone})
	if got := m.phase("c"); got != "" || len(m.latest) != 0 || len(m.created) != 0 {
		t.Errorf("the resource says %q; %d cells are kept, %d as created", got, len(m.latest), len(m.created))
	}
}

func TestAMirroredCellThatSomebodyDeletesComesBack(t *testing.T) {
	m := newMirrored(t)
	m.told(Cell{ID: "c", Phase: apiv1.Booting})
	if err := m.client.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.told(Cell{ID: "c", Phase: apiv1.Bound})
	if got := m.phase("c"); got != string(apiv1.Bound) {
		t.Errorf("the resource says %q, want Bound", got)
	}
}

// A Kip that is upgraded goes on with its cells, and their agents are of its version then, or are not.
func TestTheMirrorSaysWhoseAgentIsNotOfKipsVersion(t *testing.T) {
	m := newMirrored(t)
	named := &Launch{Agent: &agentapi.Agent{Version: "v1.4.1"}} // by cells.itzo
	for _, tc := range []struct {
		kip, runs string
		launch    *Launch
		want      string
	}{
		{kip: "v1.4.2", runs: "v1.4.1", want: "v1.4.2"},
		{kip: "v1.4.1", runs: "v1.4.1"},
		{kip: "v1.4.3", runs: "v1.4.1", want: "v1.4.3"},
		{kip: "v1.4.3", runs: "v1.4.1", launch: named},
		{runs: "v1.4.1"},
	} {
		m.version = tc.kip
		m.told(Cell{ID: "c", Phase: apiv1.Bound, Launch: tc.launch, AgentReport: AgentReport{AgentRuns: agentapi.RunningAgent{Version: tc.runs}}})
		object, err := m.client.Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := unstructured.NestedStringMap(object.Object, "status", "agent")
		if err != nil || got["version"] != tc.runs || got["kip"] != tc.want {
			t.Errorf("of a Kip of %q and an agent of %s the resource says %v (%v), want %q", tc.kip, tc.runs, got, err, tc.want)
		}
	}
}

// Nobody decides by what stands there, and what Kip says of it is written anew.
func TestAMirroredCellThatSomebodyChangesIsWrittenAnew(t *testing.T) {
	m := newMirrored(t)
	pod := apiv1.PodReference{Namespace: "ns", Name: "p", UID: "uid-p"}
	m.told(Cell{ID: "c", Phase: apiv1.Booting, Pod: pod})
	lie := []byte(`{"status":{"phase":"Gone","node":"another","pod":{"namespace":"kube-system","name":"another","uid":"x"}}}`)
	if _, err := m.client.Patch(t.Context(), "c", types.MergePatchType, lie, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := m.phase("c"); got != string(apiv1.Gone) {
		t.Fatalf("it was not changed: %q", got)
	}
	m.told(Cell{ID: "c", Phase: apiv1.Bound, Pod: pod})
	object, err := m.client.Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var now apiv1.Cell
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &now); err != nil {
		t.Fatal(err)
	}
	if now.Status.Phase != apiv1.Bound || now.Status.Pod != pod || now.Status.Node != "kip-0" {
		t.Errorf("it says %+v", now.Status)
	}
}

func TestTheMirrorRemovesWhatAnEarlierRunLeft(t *testing.T) {
	m := newMirrored(t)
	for _, id := range []string{"left", "there"} {
		m.told(Cell{ID: id, Phase: apiv1.Bound})
	}
	m.latest, m.created = map[string]Cell{"there": {ID: "there", Phase: apiv1.Bound}}, map[string]bool{}
	m.adopt(t.Context())
	for _, id := range []string{"left", "there"} {
		if err := m.write(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if m.phase("left") != "" || m.phase("there") != string(apiv1.Bound) {
		t.Errorf("left is %q, there is %q", m.phase("left"), m.phase("there"))
	}
}

// Cells move on from when they are loaded until the API server serves their resource.
func TestTheMirrorBeginsWithWhatItWasToldSinceTheCellsWereListed(t *testing.T) {
	m := newMirrored(t)
	known := []Cell{{ID: "gone", Phase: apiv1.Terminating}, {ID: "moved", Phase: apiv1.Booting}, {ID: "same", Phase: apiv1.Bound}}
	for _, cell := range known {
		m.told(cell)
	}
	clear(m.latest)
	clear(m.created)
	m.CellChanged(Cell{ID: "gone", Phase: apiv1.Gone})
	m.CellChanged(Cell{ID: "moved", Phase: apiv1.Ready})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Mirror.Run(ctx, known); err != nil {
		t.Fatal(err)
	}
	if err := m.adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, cell := range known {
		if err := m.write(t.Context(), cell.ID); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]string{"gone": "", "moved": "Ready", "same": "Bound"} {
		if got := m.phase(id); got != want {
			t.Errorf("the resource of cell %s says %q, want %q", id, got, want)
		}
	}
}

func TestAMirrorThatCannotListTriesAgain(t *testing.T) {
	m := newMirrored(t)
	m.told(Cell{ID: "old", Phase: apiv1.Bound})
	m.mu.Lock()
	clear(m.latest)
	m.mu.Unlock()
	client := m.Mirror.client
	m.Mirror.client = failingOnce{ResourceInterface: client, left: new(atomic.Int32)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Mirror.Run(ctx, []Cell{{ID: "new", Phase: apiv1.Bound}}) }()
	for m.phase("old") != "" || m.phase("new") == "" {
		goruntime.Gosched()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// failingOnce cannot list the first time.
type failingOnce struct {
	dynamic.ResourceInterface
	left *atomic.Int32
}

func (f failingOnce) List(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	if f.left.Add(1) == 1 {
		return nil, errors.New("the API server is away")
	}
	return f.ResourceInterface.List(ctx, o)
}
