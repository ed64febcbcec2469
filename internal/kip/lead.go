package kip

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/stall"
	"github.com/elotl/kip/internal/store"
)

// What a process has while it leads is made in stages. Each stage has those before it, and is made of them alone:
// term, cloudSide, nodeSide (nodes.go), clusterSide, cellSide, podSide, and leading with all of them. Each has a file.

// term is what a process has from when it leads.
type term struct {
	*process
	store     *store.Store // fenced: it writes only while this process leads
	late      *stall.Meter
	termBegan time.Time    // by the clock as it was then
	hold      *holder.Hold // of the node
	holdLoop  *stoppable
	events    podEvents
	recorder  record.EventRecorder // of what is no pod's
	ofNode    nodeEvents
	closers   *[]func() // in the order in which they were made
}

// leading is all that a process has while it leads.
type leading struct {
	podSide
	clientCA       dynamiccertificates.CAContentProvider // of those who call the kubelet ports
	nodeController *nodes.Controller                     // serves them
	nodeLoop       *stoppable
	socket         *adminapi.Server
	// crdAnswered is closed when the API server has answered whether it has the Cell resource.
	crdAnswered chan struct{}
}

// lead does Kip's work until ctx ends.
func (k *process) lead(ctx context.Context, st *store.Store) (err error) {
	t := term{
		process:   k,
		store:     st,
		late:      stall.New(k.clock),
		termBegan: k.clock.Now(),
		closers:   &[]func(){},
	}
	defer t.close()
	if t.hold, err = k.holdNode(ctx, st); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, release := t.keepNode(ctx)
	defer release()
	l, err := t.begin(ctx)
	if err != nil {
		return cmp.Or(lost(ctx), err)
	}
	known := l.cells.List()
	k.metrics.Known(known)
	k.leading.Store(l)
	defer k.leading.Store(nil)
	err = runParts(ctx, l.parts(known))
	return cmp.Or(lost(ctx), err)
}

// begin makes what works while this process leads, and loads the cells.
func (t term) begin(ctx context.Context) (*leading, error) {
	t.reportEvents(ctx)
	toCloud, err := t.openCloud(ctx)
	if err != nil {
		return nil, err
	}
	ofNodes, err := toCloud.openNodes(ctx)
	if err != nil {
		return nil, err
	}
	ofCluster, err := ofNodes.followCluster(ctx)
	if err != nil {
		return nil, err
	}
	ofCells, err := ofCluster.keepCells(ctx)
	if err != nil {
		return nil, err
	}
	ofPods, err := ofCells.matchPods()
	if err != nil {
		return nil, err
	}
	l, err := ofPods.serve(ctx)
	if err != nil {
		return nil, err
	}
	return l, l.cells.Load(ctx)
}

// parts are all that runs while this process leads.
func (l *leading) parts(known []cells.Cell) []part {
	return []part{
		{name: "stall meter", run: l.late.Run},
		{name: "local socket", run: l.socket.Run},
		{name: "client CA", run: func(ctx context.Context) error { return node.FollowClientCA(ctx, l.clientCA) }},
		{name: "shortages", run: l.shortages.keep},
		{name: "facts", run: l.facts.keep},
		{name: "catalogue", run: l.instanceTypes.Run},
		{name: "meter", run: l.meter.Run},
		{name: "provisioner", run: l.provisioner.Run, left: l.provisioner == nil},
		{
			name: "egress",
			run:  func(ctx context.Context) error { return l.egress.Run(ctx, l.firewalls.MasqueradeChanged) },
			left: l.egress == nil,
		},
		{name: "pods on no node", run: func(ctx context.Context) error { return l.reportUnplaced(ctx, l.nodes.KeptAway) }},
		{name: "pod informer", run: l.nodeController.Follow}, // and the kubelet port, of each node
		{name: "cell API", run: l.cellAPI.Run},
		{name: "firewalls", run: l.firewalls.Run},
		// Before the API server has answered: cells run on meanwhile, and are heard.
		{name: "cells", run: l.cells.Run},
		{name: "rotation of the CA", run: l.rotation.Run},
		{name: "cloud-init file", run: l.cloudInit.Run},
		{name: "saved logs", run: l.sweepLogs},
		{
			name:  "cell mirror",
			run:   func(ctx context.Context) error { return l.mirrorCells(ctx, known) },
			ready: func(ctx context.Context) { await(ctx, l.crdAnswered) },
		},
		{
			name:  "pods of the node",
			run:   func(ctx context.Context) error { <-ctx.Done(); return nil },
			ready: func(ctx context.Context) { cache.WaitForCacheSync(ctx.Done(), l.nodes.Pods().HasSynced) },
		},
		{name: "virtual node", run: l.nodeLoop.Run, ready: l.nodeController.Registered},
		{name: "capacity of virtual nodes", run: l.nodeController.KeepCapacity},
		{name: "claims of pods", run: func(ctx context.Context) error { l.claims.RunWithContext(ctx); return nil }},
		// Only when the node is ours: a real node of the same name has its own
		// kubelet for its pods.
		{name: "pods", run: l.pods.Run},
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
	n.recorder.Event(nodeReference(n.node), e.Type, e.Reason, e.Message)
	n.log.Info(e.Message, "node", n.node, "reason", e.Reason)
}

// atEnd has f called when this process leads no more, the last given first.
func (t *term) atEnd(f func()) { *t.closers = append(*t.closers, f) }

func (t *term) close() {
	for _, f := range slices.Backward(*t.closers) {
		f()
	}
}

// reportEvents makes what reports Events, which the cloud does, too.
func (t *term) reportEvents(ctx context.Context) {
	recorder, stop := t.api.eventRecorder(ctx, t.NodeName)
	t.recorder, t.events = recorder, podEvents{recorder: recorder}
	t.ofNode = nodeEvents{recorder: recorder, node: t.NodeName, log: t.Log}
	t.atEnd(stop)
}

// nameTag is the name of what this Kip makes in the cloud, for people.
func (t *term) nameTag() string { return cmp.Or(t.cfg.Cells.Nametag, t.controllerID) }
