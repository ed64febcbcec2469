package kip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/explain"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/version"
	"k8s.io/apimachinery/pkg/types"
)

// openSocket makes what kipctl asks.
func (l *leading) openSocket() (*adminapi.Server, error) {
	cleaner := cleanup.New(cleanup.Config{
		Nodes:        l.ofCleanup,
		ControllerID: l.controllerID,
		Pods:         l.nodes.all.ListPods,
		Pause:        l.pods.controller.Pause,
		Cells:        l.cells.controller,
		Status:       l.cells.mirror.Status,
		Cloud:        l.cloud.machines,
		Guard:        l.cloud.guard,
		Disks:        l.cloud.disks,
		ListLag:      l.cloud.machines.Capabilities().ListLag,
		AsKip:        l.api.asKip,
		Resources:    l.api.ownDynamic.Resource(apiv1.Resource),
		Store:        l.store,
		StoreHint:    storeHint(l.cfg, l.store.Prefix()),
		StopNode:     l.stopNodes,
		Clock:        l.clock,
	})
	return adminapi.New(adminapi.Config{
		Dir:        l.cfg.Etcd.Internal.DataDir,
		Version:    version.String(),
		Usage:      l.usage,
		Costs:      l.costs,
		Backup:     l.backup,
		Cleaner:    cleaner,
		Holder:     heldBack{guard: l.cloud.guard},
		Generation: storeGeneration{Controller: l.cells.controller},
		CAKeeper:   l.cells.rotation,
		Explainer: explain.New(explain.Config{
			Node:          l.NodeName,
			Pods:          l.nodes.all.Pods().GetStore(),
			Loop:          l.pods.controller,
			Cells:         l.cells.controller,
			Mirror:        l.cells.mirror,
			Shortages:     l.cloud.shortages.shortages,
			InstanceTypes: l.cloud.instanceTypes,
			Console:       consolesOf(l.cloud.machines.Optional().Console),
		}),
		Log: l.Log,
	})
}

// consoles are those of a cloud, which says in the socket's words that it has none.
type consoles struct{ of cloud.Console }

// consolesOf is nil where the cloud keeps none.
func consolesOf(of cloud.Console) explain.Console {
	if of == nil {
		return nil
	}
	return consoles{of: of}
}

func (c consoles) Console(ctx context.Context, instance string) ([]byte, error) {
	text, err := c.of.Console(ctx, instance)
	if errors.Is(err, cloud.ErrNotFound) {
		err = fmt.Errorf("%w: %w", adminapi.ErrNotFound, err)
	}
	return text, err
}

// usage is what each cell has asked of its API.
func (l *leading) usage() []adminapi.CellUsage {
	asked := l.cluster.cellAPI.Usage()
	all := make([]adminapi.CellUsage, 0, len(asked))
	for _, c := range l.cells.controller.List() {
		u, is := asked[c.ID]
		if !is {
			continue
		}
		all = append(all, adminapi.CellUsage{
			Cell:          c.ID,
			Pod:           c.Pod,
			Requests:      u.Requests,
			SentBytes:     u.Sent,
			AnsweredBytes: u.Answered,
			WorkedSeconds: u.Worked.Seconds(),
			RefusedBy:     u.RefusedBy,
		})
	}
	return all
}

// costs is what was spent.
func (l *leading) costs(ctx context.Context, q adminapi.CostQuery) (adminapi.Costs, error) {
	return explain.Costs(ctx, l.cells.controller, l.cfg.Costs.Labels, q)
}

// heldBack shows what the guard holds back.
type heldBack struct{ guard *guard.Guard }

func (h heldBack) Held() []adminapi.HeldEnd { return heldEnds(h.guard.Held()) }

func (h heldBack) Allow(seen time.Time) []adminapi.HeldEnd { return heldEnds(h.guard.Allow(seen)) }

func heldEnds(all []guard.Held) []adminapi.HeldEnd {
	list := make([]adminapi.HeldEnd, len(all))
	for n, h := range all {
		list[n] = adminapi.HeldEnd{
			Instance: h.Instance,
			Cell:     h.Cell,
			Pod:      h.Pod,
			Why:      h.Why,
			HeldBack: h.Text,
			Since:    h.Since,
		}
	}
	return list
}

// storeGeneration shows what the store knows of.
type storeGeneration struct{ *cells.Controller }

func (l storeGeneration) Generation() adminapi.Generation {
	is := l.Controller.Generation()
	g := adminapi.Generation{
		Store:      is.Store,
		Number:     is.Number,
		Behind:     is.Behind,
		Unknown:    make([]adminapi.UnknownInstance, len(is.Unknown)),
		Shown:      is.Shown,
		Incomplete: is.Incomplete,
	}
	for n, i := range is.Unknown {
		g.Unknown[n] = adminapi.UnknownInstance{
			Instance:   i.ID,
			Generation: i.Tags[cloud.TagGeneration],
			Pod: apiv1.PodReference{
				Namespace: i.Tags[cloud.TagNamespace],
				Name:      i.Tags[cloud.TagPod],
				UID:       types.UID(i.Tags[cloud.TagPodUID]),
			},
			Launched: i.Launched,
		}
	}
	return g
}

// backup is what the local socket serves as a backup of the store.
func (l *leading) backup(ctx context.Context, w io.Writer) error {
	return l.store.Backup(ctx, w, l.clock.Now())
}

// storeHint says where the records of a Kip are, and how they are removed when
// it is not to come back.
func storeHint(cfg *config.Config, prefix string) string {
	if e := cfg.Etcd.Client.Endpoints; len(e) > 0 {
		return fmt.Sprintf("in the etcd at %s: etcdctl del --prefix %s", strings.Join(e, ","), prefix)
	}
	return fmt.Sprintf("in %s: remove the folder, or its volume", cfg.Etcd.Internal.DataDir)
}
