package cells

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// requestOn asks for a cell for a pod of a virtual node.
func (b *bubble) requestOn(pod, node string) Cell {
	b.Helper()
	r := nano(pod)
	r.Node = node
	cell, err := b.cells.Request(b.Context(), r)
	if err != nil {
		b.Fatal(err)
	}
	return cell
}

func TestACellIsOfTheNodeOfItsPod(t *testing.T) {
	var mu sync.Mutex
	var told []string
	agents := func(r *http.Request) *http.Response {
		if r.URL.Path == agentapi.PathConfig {
			var c agentapi.Config
			if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			told = append(told, c.NodeName)
			if !slices.Equal(c.ImagesOfCloud, []string{"*.example.com"}) {
				t.Errorf("the agent is told of the cloud's images %q", c.ImagesOfCloud)
			}
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}
	}
	with := func(s *setup) { s.ImagesOfCloud = []string{"*.example.com"} }
	inBubble(t, with, nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents
		one, two := b.requestOn("a", ""), b.requestOn("b", "kip-0-2")
		b.later(10 * time.Second)
		for cell, want := range map[string]string{one.ID: "kip-0", two.ID: "kip-0-2"} {
			if got := b.links.nodes[cell]; !slices.Equal(got, []string{want}) {
				t.Errorf("the cell is of %v, want %s", got, want)
			}
		}
		mu.Lock()
		names := slices.Sorted(slices.Values(told))
		mu.Unlock()
		if !slices.Equal(names, []string{"kip-0", "kip-0-2"}) {
			t.Errorf("agents were told the nodes %v", names)
		}
		nodes := map[string]string{}
		for _, w := range b.cells.Endpoints() {
			nodes[w.Pod.Name] = w.Node
		}
		if nodes["a"] != "kip-0" || nodes["b"] != "kip-0-2" || b.cells.NodeOf(one) != "kip-0" {
			t.Errorf("the pods are on %v", nodes)
		}
		// Another process knows it from the record.
		b.stop()
		b.run()
		b.later(10 * time.Second)
		if cell, _ := b.cells.ForPod(ref("b").UID); cell.Node != "kip-0-2" || b.links.nodes[two.ID][1] != "kip-0-2" {
			t.Errorf("after a restart the cell is of %q, %v", cell.Node, b.links.nodes[two.ID])
		}
	})
}

func TestAStandbyCellServesAnyNode(t *testing.T) {
	ofZone := func(c *setup) {
		keep(2)(c)
		c.Nodes = standbyOn(func(o Offering) string { return "node-of-" + o.Zone })
	}
	inBubble(t, ofZone, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		same, other := b.requestOn("same", "node-of-z"), b.requestOn("other", "kip-0-2")
		if same.Standby == "" || other.Standby == "" {
			t.Fatalf("the pods got cells of their own: %q, %q", same.Standby, other.Standby)
		}
		b.later(10 * time.Second)
		for pod, want := range map[string][]string{"same": {"node-of-z"}, "other": {"node-of-z", "kip-0-2"}} {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			if got := b.links.nodes[cell.ID]; !slices.Equal(got, want) || cell.Phase != apiv1.Bound {
				t.Errorf("the cell of pod %s is %s, of %v in turn: want bound, %v", pod, cell.Phase, got, want)
			}
			if got := b.links.of(cell.ID).bound; len(got) != 1 || got[0] != ref(pod).UID {
				t.Errorf("the kubelet of pod %s is shown %v", pod, got)
			}
		}
	})
}

func TestAStandbyCellPrefersPodsOfItsNode(t *testing.T) {
	inBubble(t, keep(0), nil, func(t *testing.T, b *bubble) {
		b.cells.core.table.mu.Lock()
		for _, node := range []string{"kip-0-1", "kip-0-2", "kip-0-3"} {
			cell := Cell{
				ID: node, Phase: apiv1.Ready, Node: node, OfPool: OfPool{Standby: "nano"},
				Offerings: []Offering{{InstanceType: "nano", Zone: "z"}},
			}
			e := newEntry(cell, 0)
			e.open(&modelLink{connected: true}, nil, time.Time{})
			b.cells.core.table.standby[cell.ID] = e
		}
		asked := Request{Node: "kip-0-2", Offerings: []Offering{{InstanceType: "nano", Zone: "z"}}}
		best, _ := b.cells.launches.standbys.matching.findLocked(asked)
		clear(b.cells.core.table.standby)
		b.cells.core.table.mu.Unlock()
		if best == nil || best.id != "kip-0-2" {
			t.Errorf("the pod is given %v, want the cell of its own node", best)
		}
	})
}

func TestAStandbyCellWhoseKubeletDoesNotTakeTheOtherNodeIsGivenUp(t *testing.T) {
	ofZone := func(c *setup) {
		keep(1)(c)
		c.Nodes = standbyOn(func(Offering) string { return "kip-0-1" })
	}
	inBubble(t, ofZone, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		b.links.boots = func(string) bool { return false } // nothing joins any more
		cell := b.requestOn("a", "kip-0-2")
		b.later(readyTimeout + time.Minute)
		if now, has := b.cells.ForPod(ref("a").UID); has && now.ID == cell.ID && now.Live() {
			t.Errorf("the cell waits for ever, %s", now.Phase)
		}
	})
}

// notTaking are agents that refuse the configuration of a node.
func notTaking(node string) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		code, config := http.StatusOK, agentapi.Config{}
		if r.URL.Path == agentapi.PathConfig && json.NewDecoder(r.Body).Decode(&config) == nil && config.NodeName == node {
			code = http.StatusInternalServerError
		}
		return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(""))}
	}
}

func TestAStandbyCellWhoseAgentDoesNotTakeTheOtherNodeIsGivenUp(t *testing.T) {
	ofZone := func(c *setup) {
		keep(1)(c)
		c.Nodes = standbyOn(func(Offering) string { return "kip-0-1" })
	}
	for _, what := range []string{"refuses", "does not answer"} {
		inBubble(t, ofZone, nil, func(t *testing.T, b *bubble) {
			b.later(10 * time.Second)
			b.cloud.set(func() {
				if b.links.agents = notTaking("kip-0-2"); what == "does not answer" {
					b.links.hangs = func(string) bool { return true }
				}
			})
			cell := b.requestOn("a", "kip-0-2")
			if cell.Standby == "" {
				t.Fatal("the pod got a cell of its own")
			}
			b.later(readyTimeout + time.Minute)
			if now, has := b.cells.ForPod(ref("a").UID); has && now.ID == cell.ID && now.Live() {
				t.Errorf("an agent %s: its cell waits for ever, %s", what, now.Phase)
			}
		})
	}
}

// What the agent took for the kubelet of before says nothing of the one to come.
func TestAConfigurationOfTheNodeOfBeforeDoesNotCount(t *testing.T) {
	ofZone := func(c *setup) {
		keep(1)(c)
		c.Nodes = standbyOn(func(Offering) string { return "kip-0-1" })
	}
	inBubble(t, ofZone, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		release, told := make(chan struct{}), make(chan string, 10)
		b.links.agents = func(r *http.Request) *http.Response {
			var config agentapi.Config
			if r.URL.Path == agentapi.PathConfig && json.NewDecoder(r.Body).Decode(&config) == nil {
				if told <- config.NodeName; config.NodeName == "kip-0-1" {
					<-release
				}
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}
		}
		link := b.links.of(b.cells.List()[0].ID)
		link.set(false, io.EOF)
		link.set(true, nil)
		b.later(100 * time.Millisecond)
		cell := b.requestOn("a", "kip-0-2")
		b.later(100 * time.Millisecond)
		close(release)
		b.later(100 * time.Millisecond)
		close(told)
		var nodes []string
		for node := range told {
			if node != "kip-0-1" { // which the next standby cell is, too
				nodes = append(nodes, node)
			}
		}
		now, _ := b.cells.ForPod(ref("a").UID)
		if now.ID != cell.ID || now.Phase != apiv1.Bound || !slices.Equal(nodes, []string{"kip-0-2"}) {
			t.Errorf("cell %s, of %s, is %s, and its agent was then told to be %v", now.ID, cell.ID, now.Phase, nodes)
		}
	})
}

func TestStandbyCellsFollowTheNodes(t *testing.T) {
	node := "kip-0-1"
	ofNode := func(c *setup) {
		keep(1)(c)
		c.Nodes = standbyOn(func(Offering) string { return node })
	}
	inBubble(t, ofNode, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		node = "kip-0-2"
		b.cells.NodesChanged()
		b.later(10 * time.Second)
		cell := b.cells.List()[0]
		if got := b.links.nodes[cell.ID]; !slices.Equal(got, []string{"kip-0-1", "kip-0-2"}) || cell.Phase != apiv1.Ready {
			t.Errorf("the standby cell is %s, of %v in turn", cell.Phase, got)
		}
	})
}
