package cellapi

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/elotl/kip/internal/watches"
)

// A cell is of one virtual node: it is shown that node, and is asked for as that one.
func TestEachCellIsOfTheNodeOfItsPod(t *testing.T) {
	up := newAPIServer(t)
	up.put(virtual())
	second := virtual()
	second.Name, second.UID, second.Labels["zone"] = secondNode, "second-uid", "b"
	up.put(second)
	pods := watches.NewNodePods()
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	for _, node := range []string{nodeName, secondNode} {
		informer := podInformerOf(t, up, node)
		if err := pods.Add(node, informer); err != nil {
			t.Fatal(err)
		}
		tasks.Go(func() { informer.RunWithContext(ctx) })
	}
	server, err := New(Config{NodeName: nodeName, Node: up.asNode(), Own: up.asKip(), Pods: pods})
	if err != nil {
		t.Fatal(err)
	}
	tasks.Go(func() {
		if err := server.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-secret"}})
	h := &house{t: t, up: up, server: server}
	of := info
	of.Node = secondNode
	m := newMachine(t, "c2")
	c := server.AddCell("c2", of)
	m.handler.Store(c)
	pod := podOn("web")
	pod.Spec.NodeName = secondNode
	h.bindNew(c, pod)

	k := m.kubelet(t)
	node, err := k.CoreV1().Nodes().Get(ctx, secondNode, metav1.GetOptions{})
	if err != nil || node.UID != "second-uid" || node.Labels["zone"] != "b" {
		t.Errorf("the cell's node is %v, %v: want the second one", node, err)
	}
	if _, err := k.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the cell reads the node of others: %v", err)
	}
	ofSecond := fields.OneTermEqualSelector("spec.nodeName", secondNode)
	seen := follow(t, k.CoreV1().RESTClient(), podKind, "", ofSecond)
	eventually(t, "the pod is shown", func() bool { return seen.has("shop/web") })
	if _, err := k.CoreV1().Secrets("shop").Get(ctx, "web-secret", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod's Secret: %v", err)
	}
	if _, err := k.CoreV1().Pods("shop").Get(ctx, "web", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod: %v", err)
	}
	asFirst := up.asked(func(r apiRequest) bool {
		return r.user == nodeUser && (r.resource == "secrets" || r.resource == "configmaps" || r.resource == "pods" && r.name == "web")
	})
	if len(asFirst) > 0 {
		t.Errorf("asked as the first node for what is of a pod of the second: %v", asFirst)
	}
	for what, asked := range map[string]func(apiRequest) bool{
		"the Secret": func(r apiRequest) bool { return r.resource == "secrets" && r.name == "web-secret" },
		"the pod":    func(r apiRequest) bool { return r.resource == "pods" && r.name == "web" && r.verb == "get" },
		"its node":   func(r apiRequest) bool { return r.resource == "nodes" && r.name == secondNode },
	} {
		if by := up.asked(asked); len(by) == 0 || by[0].user != "system:node:"+secondNode {
			t.Errorf("%s is asked for by %v: want the second node's user", what, by)
		}
	}

	// A pod of the first node is never shown to a cell of the second.
	other := server.AddCell("c3", of)
	m3 := newMachine(t, "c3")
	m3.handler.Store(other)
	server.podSeen(nil, h.bindNew(other, podOn("stray")))
	if shown, _ := other.lastPod(); shown != nil || up.watchesOf("secrets", "stray-secret") != 0 {
		t.Errorf("a cell of the second node is shown the pod %s of the first", shown.Name)
	}

	server.RemoveCell("c2")
	server.RemoveCell("c3")
	server.ForgetNode(secondNode)
	eventually(t, "nobody watches the second node", func() bool { return up.watchesOf("nodes", secondNode) == 0 })
	server.ForgetNode(nodeName)
	if server.nodes[nodeName] == nil {
		t.Error("the node is forgotten as which all shared watches are")
	}
}

func TestEndpointsOfAllVirtualNodesAreHere(t *testing.T) {
	for node, want := range map[string]bool{
		"kip-0": true, "kip-0-1": true, "kip-0-64": true,
		"kip-1": false, "kip-00": false, "kip-0-100": false, "kip-0-a": false, "kip": false, "": false, "x-kip-0": false,
	} {
		if isOf("kip-0", node) != want {
			t.Errorf("node %q is one of kip-0: %t, want %t", node, !want, want)
		}
	}
	if isOf("kip-0", strings.Repeat("9", 300)) {
		t.Error("a long number is a node")
	}
}
