package cells

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/daemonsets"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// LabelController marks the Cell resources of one Kip.
const LabelController = apiv1.LabelController

// mirrorDelay gathers the changes of a cell into one request: people do not read
// faster, and the API server is shared.
const mirrorDelay = 150 * time.Millisecond

// firstMirror and longestMirror are the waits between two tries to write a cell.
const firstMirror, longestMirror = 100 * time.Millisecond, 30 * time.Second

// mirrorWorkers is how many cells are written at the same time.
const mirrorWorkers = 8

// Mirror writes cells to the Cell resource, for people. Kip never reads it back,
// but to remove what an earlier run left.
type Mirror struct {
	Unobserved
	node, controllerID, version string
	client                      dynamic.ResourceInterface
	waitsFor                    func(id string) string
	currentImage                func(context.Context, Cell) (string, error)
	images                      currentImages
	configured                  map[string]string // Options.Image of cells that are requested now
	copies                      Copies
	clock                       clock.WithTicker
	log                         *slog.Logger
	queue                       workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	latest  map[string]Cell
	created map[string]bool
}

var _ Observer = (*Mirror)(nil)

// Mirrored are the cells of a Mirror.
type Mirrored interface {
	// WaitsFor returns what a cell waits for.
	WaitsFor(id string) string
	// CurrentImage returns what a cell would boot if it were launched now; "" where that is not known.
	CurrentImage(ctx context.Context, cell Cell) (string, error)
}

var _ Mirrored = (*Controller)(nil)

// Copies are the pods of DaemonSets that run beside the pods of cells.
type Copies interface {
	// ObserveCopies has the mirror told of them.
	ObserveCopies(daemonsets.CopyObserver)
	// CopiesOn returns those on a cell.
	CopiesOn(id string) []daemonsets.Copy
}

// MirrorConfig names the Kip whose cells a mirror shows.
type MirrorConfig struct {
	Node, ControllerID, Version string
	Image                       map[string]string // Options.Image of cells that are requested now
	Clock                       clock.WithTicker
	Log                         *slog.Logger
}

// NewMirror returns a mirror of the cells of one Kip, which is to observe them; Run writes it. copies may be nil.
func NewMirror(of Mirrored, copies Copies, client dynamic.Interface, cfg MirrorConfig) *Mirror {
	m := &Mirror{
		node:         cfg.Node,
		controllerID: cfg.ControllerID,
		version:      cfg.Version,
		client:       client.Resource(apiv1.Resource),
		waitsFor:     of.WaitsFor,
		currentImage: of.CurrentImage,
		configured:   cfg.Image,
		copies:       copies,
		clock:        cfg.Clock,
		log:          cfg.Log,
		queue:        workqueue.NewTypedRateLimitingQueue(backoff.Items[string](firstMirror, longestMirror, nil)),
		latest:       map[string]Cell{},
		created:      map[string]bool{},
	}
	if copies != nil {
		copies.ObserveCopies(m)
	}
	return m
}

// CellChanged takes a cell to be written soon. It does not block.
func (m *Mirror) CellChanged(cell Cell) {
	m.mu.Lock()
	m.latest[cell.ID] = cell
	m.mu.Unlock()
	m.learnImage(&cell)
	if cell.Phase == apiv1.Gone {
		m.queue.Add(cell.ID)
		return
	}
	m.queue.AddAfter(cell.ID, mirrorDelay)
}

// Run writes until ctx ends. known are the cells that were there before it was told of any
// change.
func (m *Mirror) Run(ctx context.Context, known []Cell) error {
	defer m.queue.ShutDown()
	m.mu.Lock()
	for _, cell := range known {
		if _, changed := m.latest[cell.ID]; !changed {
			m.latest[cell.ID] = cell
			m.queue.AddAfter(cell.ID, mirrorDelay)
		}
	}
	m.mu.Unlock()
	for i := range known {
		m.learnImage(&known[i])
	}
	m.queue.Add(leftovers)
	stop := context.AfterFunc(ctx, m.queue.ShutDown)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { m.keepImages(ctx) })
	for range mirrorWorkers {
		wg.Go(func() {
			for {
				id, shutdown := m.queue.Get()
				if shutdown {
					return
				}
				m.process(ctx, id)
				m.queue.Done(id)
			}
		})
	}
	wg.Wait()
	return nil
}

// Close lets go of what NewMirror began, also of a mirror that never ran.
func (m *Mirror) Close() { m.queue.ShutDown() }

// leftovers stands in the queue for the Cell resources of cells that are gone; it is
// no cell's ID.
const leftovers = ""

func (m *Mirror) process(ctx context.Context, id string) {
	do := func(ctx context.Context) error { return m.write(ctx, id) }
	if id == leftovers {
		do = m.adopt
	}
	err := do(ctx)
	switch {
	case err == nil:
		m.queue.Forget(id)
	case ctx.Err() == nil:
		m.log.Warn("mirror a cell, retrying", "cell", id, "err", err)
		m.queue.AddRateLimited(id)
	}
}

// adopt removes the Cell resources of cells that went while nobody mirrored.
func (m *Mirror) adopt(ctx context.Context) error {
	list, err := m.client.List(ctx, metav1.ListOptions{LabelSelector: LabelController + "=" + m.controllerID})
	if err != nil {
		return fmt.Errorf("list our Cell resources: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, item := range list.Items {
		id := item.GetName()
		m.created[id] = true
		if _, there := m.latest[id]; !there {
			m.latest[id] = Cell{ID: id, Phase: apiv1.Gone}
			m.queue.Add(id)
		}
	}
	return nil
}

func (m *Mirror) write(ctx context.Context, id string) error {
	m.mu.Lock()
	cell, there := m.latest[id]
	created := m.created[id]
	m.mu.Unlock()
	if !there {
		return nil // it went while a change of it waited
	}
	if cell.Phase == apiv1.Gone {
		err := m.client.Delete(ctx, id, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		m.mu.Lock()
		delete(m.latest, id)
		delete(m.created, id)
		m.mu.Unlock()
		return nil
	}
	if created {
		patch, err := json.Marshal(map[string]any{"status": whole(m.Status(cell))})
		if err != nil {
			return err
		}
		_, err = m.client.Patch(ctx, id, types.MergePatchType, patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		// Somebody deleted it: it is only a mirror, so it comes back.
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&apiv1.Cell{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiv1.GroupVersion.String(), Kind: apiv1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{LabelController: m.controllerID}},
		Status:     m.Status(cell),
	})
	if err != nil {
		return fmt.Errorf("convert cell %s: %w", id, err)
	}
	_, err = m.client.Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		m.queue.Add(id) // to be patched
		err = nil
	}
	if err == nil {
		m.mu.Lock()
		m.created[id] = true
		m.mu.Unlock()
	}
	return err
}

// Status returns what the Cell resource says of a cell.
func (m *Mirror) Status(cell Cell) apiv1.CellStatus {
	offering := cell.Offering()
	s := apiv1.CellStatus{
		Phase:        cell.Phase,
		Waiting:      m.waitsFor(cell.ID),
		Reason:       cell.Reason,
		Pod:          cell.Pod,
		Node:         cmp.Or(cell.Node, m.node),
		ControllerID: m.controllerID,
		Attempt:      cell.Attempt,
		InstanceType: offering.InstanceType,
		Zone:         offering.Zone,
		LaunchType:   apiv1.LaunchType(offering.Spot, offering.Dedicated),
		PricePerHour: apiv1.Price(offering.PricePerHour),
		Candidates:   cell.Candidates(),
		RuledOut:     cell.RuledOut,
		Steps:        cell.Steps,
		Boot:         cell.Boot.shown(),
		Agent:        cell.shownAgent(m.version),
		Image:        cell.image(),
		Old:          m.oldParts(&cell),
		Beside:       m.copiesShown(cell.ID),
	}
	if i := cell.Instance; i != nil {
		s.InstanceID = i.ID
		if i.ManagementIP.IsValid() {
			s.ManagementIP = i.ManagementIP.String()
		}
		if i.PodIP.IsValid() {
			s.IP = i.PodIP.String()
		}
		if i.PodIPv6.IsValid() {
			s.IPv6 = i.PodIPv6.String()
		}
	}
	return s
}
