package kip

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/store"
)

// What a process has while it leads is made in stages, each in a file of its own: cloudSide, nodeSide (nodes.go), clusterSide, cellSide,
// podSide and kubeletSide (nodes.go). Each is made of the term and of those before it, which it is given.

// term is what a process has from when it leads.
type term struct {
	*process
	store    *store.Store // fenced: it writes only while this process leads
	late     *stall.Meter
	began    time.Time    // by the clock as it was then
	hold     *holder.Hold // of the node
	holdLoop *stoppable
	events   podEvents
	recorder record.EventRecorder // of what is no pod's
	ofNode   nodeEvents
	closers  []func() // in the order in which they were made
}

// leading is all that a process has while it leads.
type leading struct {
	*term
	cloud    cloudSide
	nodes    nodeSide
	cluster  clusterSide
	cells    cellSide
	pods     podSide
	kubelets kubeletSide
	// crdAnswered is closed when the API server has answered whether it has the Cell resource.
	crdAnswered chan struct{}
}

// lead does Kip's work until ctx ends.
func (k *process) lead(ctx context.Context, st *store.Store) (err error) {
	late, began := stall.New(k.clock), k.clock.Now()
	hold, err := k.holdNode(ctx, st)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	holdLoop := newStoppable(hold.Keep)
	ctx, release := keepNode(ctx, holdLoop)
	recorder, stop := k.api.eventRecorder(ctx, k.NodeName)
	t := &term{
		process:  k,
		store:    st,
		late:     late,
		began:    began,
		hold:     hold,
		holdLoop: holdLoop,
		events:   podEvents{recorder: recorder},
		recorder: recorder,
		ofNode:   nodeEvents{recorder: recorder, node: k.NodeName, log: k.Log},
		closers:  []func(){stop},
	}
	defer t.close()
	defer release()
	err = t.work(ctx)
	return cmp.Or(lost(ctx), err)
}

// work makes what works in a term, loads the cells, and runs it all until ctx ends.
func (t *term) work(ctx context.Context) error {
	l, err := t.begin(ctx)
	if err != nil {
		return err
	}
	socket, err := l.openSocket()
	if err != nil {
		return err
	}
	if err := l.cells.controller.Load(ctx, l.observers()...); err != nil {
		return err
	}
	known := l.cells.controller.List()
	t.metrics.Known(known)
	t.role.leading.Store(l)
	defer t.role.leading.Store(nil)
	return runParts(ctx, l.parts(socket, known))
}

// begin makes what works while this process leads.
func (t *term) begin(ctx context.Context) (*leading, error) {
	cloud, err := t.openCloud(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := t.openNodes(ctx, cloud)
	if err != nil {
		return nil, err
	}
	cluster, err := t.followCluster(ctx, cloud, nodes)
	if err != nil {
		return nil, err
	}
	cells, err := t.keepCells(ctx, cloud, nodes, cluster)
	if err != nil {
		return nil, err
	}
	pods, err := t.matchPods(cloud, nodes, cluster, cells)
	if err != nil {
		return nil, err
	}
	kubelets, err := t.serveNodes(ctx, cloud, nodes, cluster, cells, pods)
	if err != nil {
		return nil, err
	}
	return &leading{
		term:        t,
		cloud:       cloud,
		nodes:       nodes,
		cluster:     cluster,
		cells:       cells,
		pods:        pods,
		kubelets:    kubelets,
		crdAnswered: make(chan struct{}),
	}, nil
}

// observers are told what becomes of cells, in this order. The metrics come before the pods: a pod acts when it is told that its cell is
// gone, and the metrics time the start of the next cell from the end of the last. Otherwise the order does not matter: no other
// observer asks for what another knows.
func (l *leading) observers() []cells.Observer {
	return []cells.Observer{
		l.metrics,
		l.cells.mirror,
		l.pods.controller,
		isolated{firewalls: l.cluster.firewalls},
		learning{types: l.cloud.instanceTypes},
	}
}

// parts are all that runs while this process leads.
func (l *leading) parts(socket *adminapi.Server, known []cells.Cell) []part {
	return []part{
		{name: "stall meter", run: l.late.Run},
		{name: "local socket", run: socket.Run},
		{name: "client CA", run: func(ctx context.Context) error { return node.FollowClientCA(ctx, l.kubelets.clientCA) }},
		{name: "shortages", run: l.cloud.shortages.keep},
		{name: "facts", run: l.cloud.facts.keep},
		{name: "catalogue", run: l.cloud.instanceTypes.Run},
		{name: "meter", run: l.cells.meter.Run},
		{name: "provisioner", run: l.nodes.provisioner.Run, left: l.nodes.provisioner == nil},
		{
			name: "egress",
			run: func(ctx context.Context) error {
				return l.cluster.egress.Run(ctx, l.cluster.firewalls.MasqueradeChanged)
			},
			left: l.cluster.egress == nil,
		},
		{name: "pods on no node", run: func(ctx context.Context) error { return l.reportUnplaced(ctx, l.nodes.all.KeptAway) }},
		{name: "pod informer", run: l.kubelets.controller.Follow}, // and the kubelet port, of each node
		{name: "cell API", run: l.cluster.cellAPI.Run},
		{name: "firewalls", run: l.cluster.firewalls.Run},
		// Before the API server has answered: cells run on meanwhile, and are heard.
		{name: "cells", run: l.cells.controller.Run},
		{name: "rotation of the CA", run: l.cells.rotation.Run},
		{name: "cloud-init file", run: l.cells.cloudInit.Run},
		{name: "saved logs", run: func(ctx context.Context) error { return l.cluster.logs.sweep(ctx, l.clock) }},
		{
			name:  "cell mirror",
			run:   func(ctx context.Context) error { return l.mirrorCells(ctx, known) },
			ready: func(ctx context.Context) { await(ctx, l.crdAnswered) },
		},
		{
			name:  "pods of the node",
			run:   func(ctx context.Context) error { <-ctx.Done(); return nil },
			ready: func(ctx context.Context) { cache.WaitForCacheSync(ctx.Done(), l.nodes.all.Pods().HasSynced) },
		},
		{name: "virtual node", run: l.kubelets.loop.Run, ready: l.kubelets.controller.Registered},
		{
			name:  "DaemonSets beside pods",
			run:   func(ctx context.Context) error { return l.cluster.dueSets.run(ctx) },
			ready: func(ctx context.Context) { l.cluster.dueSets.ready(ctx) },
			left:  l.cluster.dueSets == nil,
		},
		{name: "capacity of virtual nodes", run: l.kubelets.controller.KeepCapacity},
		{name: "claims of pods", run: func(ctx context.Context) error { l.pods.claims.RunWithContext(ctx); return nil }},
		// Only when the node is ours: a real node of the same name has its own
		// kubelet for its pods.
		{name: "pods", run: l.pods.controller.Run},
	}
}

// await waits until c is closed, or ctx ends.
func await(ctx context.Context, c <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-c:
	}
}

// nodeEvents are those of Kip's own virtual node.
type nodeEvents struct {
	recorder record.EventRecorder
	node     string
	log      *slog.Logger
}

// Report reports one.
func (n nodeEvents) Report(e events.Event) {
	reportOfNode(n.recorder, n.node, e)
	n.log.Info(e.Message, "node", n.node, "reason", e.Reason)
}

// atEnd has f called when this process leads no more, the last given first.
func (t *term) atEnd(f func()) { t.closers = append(t.closers, f) }

func (t *term) close() {
	for _, f := range slices.Backward(t.closers) {
		f()
	}
}

// nameTag is the name of what this Kip makes in the cloud, for people.
func (t *term) nameTag() string { return cmp.Or(t.cfg.Cells.Nametag, t.controllerID) }
