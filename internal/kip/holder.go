package kip

import (
	"context"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/store"
)

// holdNode waits until no Kip with another store holds the node, and holds it. Whoever
// waits does nothing, and says so.
func (k *process) holdNode(ctx context.Context, st *store.Store) (*holder.Hold, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	recorder, stop := k.api.eventRecorder(ctx, k.NodeName)
	defer stop()
	defer k.role.aside.Store(nil)
	return holder.Take(ctx, holder.Config{
		Leases: k.api.asNode.CoordinationV1().Leases(corev1.NamespaceNodeLease),
		Node:   k.NodeName,
		Who:    fmt.Sprintf("%s (process %d)", host, os.Getpid()),
		Store:  st,
		Begin: func(ctx context.Context, above uint64) (uint64, error) {
			return beginTerm(ctx, st, above, k.clock, k.Log)
		},
		Say: func(why string) {
			if why == "" {
				return
			}
			k.role.aside.Store(&why)
			reportOfNode(recorder, k.NodeName, events.NewNodeHeldByAnother(why))
		},
		Clock: k.clock,
		Log:   k.Log,
	})
}

// reportOfNode reports something of a virtual node.
func reportOfNode(recorder record.EventRecorder, node string, e events.Event) {
	recorder.Event(nodeReference(node), e.Type, e.Reason, e.Message)
}

// nodeReference is what Events of a virtual node are of.
func nodeReference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       name,
		UID:        types.UID(name),
	}
}

// keepNode renews the hold of the node, from before anything is wired, until release is called, which
// is when nothing works any more. The context ends with the hold, and lost says why.
func keepNode(ctx context.Context, hold *stoppable) (held context.Context, release func()) {
	held, lose := context.WithCancelCause(ctx)
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := hold.Run(own); err != nil {
			lose(fmt.Errorf("hold of the node: %w", err))
		}
	}()
	return held, func() {
		stop()
		<-ended
		lose(nil)
	}
}

// lost is why a node that keepNode keeps is held no more; nil while it is.
func lost(held context.Context) error {
	if err := context.Cause(held); errors.Is(err, holder.ErrOther) || errors.Is(err, holder.ErrFollowed) {
		return err
	}
	return nil
}

// stopNodes ends what keeps the virtual nodes, for a cleanup.
func (l *leading) stopNodes(ctx context.Context) error {
	if err := l.kubelets.loop.Stop(ctx); err != nil {
		return err
	}
	if err := l.holdLoop.Stop(ctx); err != nil {
		return err
	}
	return l.hold.Forget(ctx)
}
