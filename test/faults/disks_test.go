package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The volumes of this world are disks that are there from the first. A pod has
// one by a label; several pods may want the same.

const (
	diskLabel = "disk"
	diskZone  = "a"
	diskCount = 2
)

// mounts are what is mounted where. They have a lock of their own, since the cloud
// asks for them while it is locked.
type mounts struct {
	sync.Mutex
	of   map[string]string // disk → the machine that has mounted it
	torn []cloud.Disk      // that a model of EC2 has taken from a machine which used them
}

func (m *mounts) has(disk, instance string) bool {
	m.Lock()
	defer m.Unlock()
	return m.of[disk] == instance
}

// The disks behind the volumes of a model of EC2. What it attaches shows at once, as the
// simulated cloud's does.
var _ cloudmodel.Disks = (*mounts)(nil)

func (m *mounts) Attach(context.Context, cloudmodel.Disk) error { return nil }
func (m *mounts) Grow(context.Context, cloudmodel.Disk) error   { return nil }
func (m *mounts) Delete(context.Context, string) error          { return nil }

func (m *mounts) Detach(_ context.Context, disk, instance string) error {
	if m.has(disk, instance) {
		m.Lock()
		defer m.Unlock()
		m.torn = append(m.torn, cloud.Disk{ID: disk, Instance: instance})
	}
	return nil
}

// disksNow are the disks as they truly are, and tornDisks those that were taken from a machine
// which had mounted them.
func (w *world) disksNow() (all []cloud.Disk) {
	if w.model == nil {
		return w.cloud.Disks.All()
	}
	for _, v := range w.model.Volumes.All() {
		all = append(all, cloud.Disk{
			ID:        v.ID,
			SizeBytes: int64(v.GiB) << 30,
			Zone:      v.Zone,
			Tags:      v.Tags,
			Instance:  v.Instance,
		})
	}
	return all
}

func (w *world) tornDisks() []cloud.Disk {
	w.mounted.Lock()
	defer w.mounted.Unlock()
	return append(w.cloud.Disks.Torn(), w.mounted.torn...)
}

// mountedOn says which machine has mounted a disk.
func (w *world) mountedOn(disk string) string {
	w.mounted.Lock()
	defer w.mounted.Unlock()
	return w.mounted.of[disk]
}

// makeDisks makes the disks; the world has not begun.
func (w *world) makeDisks() {
	tags := map[string]string{cloud.TagOwner: owner, "KipDisk": "made before"} // as EC2's driver makes them
	for n := range diskCount {
		if w.model != nil {
			w.disks = append(w.disks, w.model.Volumes.Add(ec2.Volume{
				Zone: diskZone,
				Kind: "gp3",
				GiB:  1,
				Tags: tags,
			}))
			continue
		}
		d, err := w.cloud.Disks.CreateDisk(context.Background(), cloud.DiskRequest{
			Token: fmt.Sprint("disk-", n), SizeBytes: 1 << 30, Zone: diskZone, Tags: tags,
		})
		if err != nil {
			panic(err)
		}
		w.disks = append(w.disks, d.ID)
	}
}

// Needs are as the claims of a pod would say.
func (w *world) Needs(_ context.Context, p *corev1.Pod) (volumes.Needs, error) {
	disk := p.Labels[diskLabel]
	if disk == "" {
		return volumes.Needs{}, nil
	}
	return volumes.Needs{Disks: []volumes.Disk{{ID: disk, Volume: "pv-" + disk, Zone: diskZone}}}, nil
}

// mountLocked is what a kubelet does with a pod's disk before it starts the pod;
// under mu. It says false when the device is not there.
func (w *world) mountLocked(m *machine, uid types.UID) bool {
	disk := w.diskOf[uid]
	if disk == "" {
		return true
	}
	w.mounted.Lock()
	defer w.mounted.Unlock()
	if m.released[disk] {
		return false // the cell is being drained: the kubelet finds no device any more
	}
	if !m.devices[disk] {
		w.violateLocked("a pod is shown when its disks are there: cell %s starts pod %s without %s", m.cell, uid, disk)
		return false
	}
	if other := w.machines[w.mounted.of[disk]]; other != nil && other != m && other.up {
		w.violateLocked("a disk is on one machine at a time: cell %s mounts %s, which cell %s has mounted", m.cell, disk, other.cell)
	}
	w.mounted.of[disk] = m.id
	return true
}

// unmountAll is the end of a machine.
func (w *world) unmountAll(m *machine) {
	w.mounted.Lock()
	defer w.mounted.Unlock()
	for disk, on := range w.mounted.of {
		if on == m.id {
			delete(w.mounted.of, disk)
		}
	}
}

// putDisks is the agent's part: it shows the devices that the machine has, and lets
// go of those that nothing uses.
func (m *machine) putDisks(r *http.Request, attached map[string]string) (code int) {
	var want agentapi.Disks
	if err := json.NewDecoder(r.Body).Decode(&want); err != nil {
		return http.StatusBadRequest
	}
	wanted := map[string]bool{}
	for _, d := range want.Disks {
		wanted[d] = true
		if attached[d] != m.id {
			return http.StatusServiceUnavailable
		}
	}
	m.w.mounted.Lock()
	defer m.w.mounted.Unlock()
	for d := range m.devices {
		if wanted[d] {
			continue
		}
		if m.running && m.w.mounted.of[d] == m.id {
			return http.StatusServiceUnavailable
		}
		if m.w.mounted.of[d] == m.id {
			delete(m.w.mounted.of, d)
		}
	}
	if m.released == nil {
		m.released = map[string]bool{}
	}
	for d := range m.devices {
		m.released[d] = true
	}
	for d := range wanted {
		delete(m.released, d)
	}
	m.devices = wanted
	return http.StatusOK
}

// attached is which disk is where.
func (w *world) attached() map[string]string {
	at := map[string]string{}
	for _, d := range w.disksNow() {
		if d.Instance != "" {
			at[d.ID] = d.Instance
		}
	}
	return at
}

// checkDisksLocked looks at the invariants of disks; under mu. instances are those that
// there truly are, by their IDs, with their cells. It returns how many attachments it
// compared with a record.
func (w *world) checkDisksLocked(disks, torn []cloud.Disk, instances map[string]string) (compared int) {
	for _, d := range torn {
		w.violateLocked("a disk is never detached while it is mounted: %s was taken from %s", d.ID, d.Instance)
	}
	holder := map[string]string{}
	for id, a := range w.books.cells {
		for _, d := range a.cell.Disks {
			if !a.cell.Live() {
				continue
			}
			if other := holder[d.ID]; other != "" {
				w.violateLocked("a disk is one cell's: the records of %s and %s both have %s, and neither ends", id, other, d.ID)
			}
			holder[d.ID] = id
		}
	}
	for _, d := range disks {
		if d.Instance == "" {
			continue
		}
		a := w.books.cells[instances[d.Instance]]
		if a == nil {
			continue // its instance is being ended
		}
		recorded := false
		compared++
		for _, r := range a.cell.Disks {
			recorded = recorded || r.ID == d.ID
		}
		if !recorded {
			w.violateLocked("an attachment is recorded before it is made: %s is on cell %s, whose record has %v", d.ID, a.cell.ID, a.cell.Disks)
		}
	}
	return compared
}

// waitsForDiskLocked returns the pod whose cell has a pod's disk; nil when none has.
func (w *world) waitsForDiskLocked(p *corev1.Pod) *apiv1.PodReference {
	disk := p.Labels[diskLabel]
	if disk == "" {
		return nil
	}
	for _, a := range w.books.cells {
		for _, r := range a.cell.Disks {
			if r.ID == disk && a.cell.Pod.UID != p.UID {
				return &a.cell.Pod
			}
		}
	}
	return nil
}

// The disks as one Kip has them: they die with it.

var _ cloud.Disks = handle{}

func (h handle) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	return ask(ctx, h, func(ctx context.Context) (cloud.Disk, error) { return h.k.asks.Optional().Disks.CreateDisk(ctx, r) })
}

func (h handle) DeleteDisk(ctx context.Context, id string) error {
	return h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Disks.DeleteDisk(ctx, id) })
}

func (h handle) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	return ask(ctx, h, func(ctx context.Context) ([]cloud.Disk, error) {
		return h.k.asks.Optional().Disks.ListDisks(ctx, owner)
	})
}

func (h handle) AttachDisk(ctx context.Context, id, instance string) error {
	return h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Disks.AttachDisk(ctx, id, instance) })
}

func (h handle) DetachDisk(ctx context.Context, id, instance string) error {
	return h.call(ctx, func(ctx context.Context) error { return h.k.asks.Optional().Disks.DetachDisk(ctx, id, instance) })
}

// answer is an agent's.
func answer(code int) *http.Response {
	return &http.Response{StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Body: io.NopCloser(http.NoBody)}
}

// diskScenarios are the stories with volumes.
var diskScenarios = []scenario{
	{name: "a pod with a disk runs to its end", story: func(s *stage) {
		uid := s.podOnDisk(corev1.RestartPolicyNever, 0)
		s.until("it runs", s.runs(uid))
		s.exit(uid, 0)
		s.until("it has succeeded", func() bool { return s.phase(uid) == corev1.PodSucceeded })
		s.until("its cell is gone", func() bool { return len(s.cloud.Truth()) == 0 && len(s.attached()) == 0 })
	}},
	{name: "a disk goes from one pod to the next", story: func(s *stage) {
		first := s.podOnDisk(corev1.RestartPolicyAlways, 0)
		s.until("it runs", s.runs(first))
		second := s.podOnDisk(corev1.RestartPolicyAlways, 0)
		s.soon(func() bool { return false }) // it waits
		if s.phase(second) != corev1.PodPending {
			s.violate("two pods have one disk: the second is %s", s.phase(second))
		}
		if s.alive() {
			s.shows("the second waits for the disk", s.told(second, "VolumeInUse"))
		}
		s.delete(first)
		s.until("the second runs", s.runs(second))
	}},
	{name: "a disk is taken from a cell that is lost", story: func(s *stage) {
		uid := s.podOnDisk(corev1.RestartPolicyAlways, 0)
		s.until("it runs", s.runs(uid))
		first := s.machineOf(uid)
		s.shows("its instance vanishes", s.cloud.Interrupter.Vanish(first) == nil)
		s.until("it runs elsewhere", func() bool { m := s.machineOf(uid); return m != "" && m != first && s.settled() })
	}},
	{name: "a disk is taken from a cell that is cut off for ever", story: func(s *stage) {
		uid := s.podOnDisk(corev1.RestartPolicyAlways, 0)
		s.until("it runs", s.runs(uid))
		first := s.machineOf(uid)
		s.mu.Lock()
		s.machines[first].cutOff = true
		s.linksChanged()
		s.mu.Unlock()
		s.until("it runs elsewhere", func() bool { m := s.machineOf(uid); return m != "" && m != first && s.settled() })
	}},
	{name: "a standby cell is given a disk", pools: []poolOf{{"small", 1, false}}, story: func(s *stage) {
		s.until("the pool is full", s.settled)
		standby := s.cloud.Truth()
		uid := s.podOnDisk(corev1.RestartPolicyAlways, 0)
		s.until("it runs", s.runs(uid))
		on := s.machineOf(uid)
		s.shows("its disk is mounted there", s.mountedOn(s.disks[0]) == on)
		if s.alive() {
			s.shows("the pod runs on a cell of the pool", slices.ContainsFunc(standby, func(i sim.Instance) bool { return i.ID == on }))
		}
	}},
	{name: "a pod is deleted while its disk is another's", story: func(s *stage) {
		other := s.cloud.Disks.All()[0].ID
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("another runs", s.runs(uid))
		// By a hand that is not Kip's.
		s.shows("the disk is attached elsewhere", s.cloud.Disks.AttachDisk(context.Background(), other, s.machineOf(uid)) == nil)
		s.mu.Lock()
		s.foreign = other
		s.mu.Unlock()
		waiting := s.podOnDisk(corev1.RestartPolicyAlways, 0)
		s.soon(func() bool { return false })
		s.shows("the pod does not run", s.phase(waiting) == corev1.PodPending)
		s.delete(waiting)
		s.until("it is gone", s.gone(waiting))
	}},
}

// podOnDisk makes a pod that has the nth disk.
func (s *stage) podOnDisk(policy corev1.RestartPolicy, n int) types.UID {
	s.mu.Lock()
	s.nextDisk = s.disks[n]
	s.mu.Unlock()
	return s.addPod(policy, "small", true, 5)
}
