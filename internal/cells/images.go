package cells

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// imagesEvery is how often the mirror asks what cells would boot now. A launch tells it, too.
const imagesEvery = time.Hour

// imageKind is what the image of a cell depends on.
type imageKind struct {
	arch          string
	devices, gpus bool // the pod asks for devices, the machine has GPUs
}

func imageKindOf(c *Cell) imageKind {
	o := c.Offering()
	return imageKind{arch: o.Arch, devices: c.needsDevices(), gpus: o.HasGPUs}
}

// currentImages are what cells of each kind boot if they are launched now, as far as the mirror knows.
type currentImages struct {
	mu sync.Mutex
	of map[imageKind]currentImage
}

// currentImage is an image, and when that was learned.
type currentImage struct {
	id string
	at time.Time
}

// learn notes an image that counts from a time. It reports whether cells of that kind may be old that were not.
func (i *currentImages) learn(kind imageKind, id string, at time.Time) (changed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	last := i.of[kind]
	if id == "" || at.Before(last.at) {
		return false
	}
	if i.of == nil {
		i.of = map[imageKind]currentImage{}
	}
	i.of[kind] = currentImage{id, at}
	return id != last.id
}

// isOld reports whether a cell has booted another image than cells of its kind boot now.
func (i *currentImages) isOld(c *Cell) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	has, current := c.image(), i.of[imageKindOf(c)].id
	return has != "" && current != "" && has != current
}

// oldParts returns what of a cell is older than what a cell has that is launched now, for people; "" for nothing that is known.
func (m *Mirror) oldParts(c *Cell) string {
	var parts []string
	if m.images.isOld(c) {
		parts = append(parts, "image")
	}
	if c.hasOlderAgent(m.version) {
		parts = append(parts, "agent")
	}
	return strings.Join(parts, ", ")
}

// learnImage learns from a launch what cells of its kind boot now.
func (m *Mirror) learnImage(cell *Cell) {
	if id := cell.image(); id != "" && m.images.learn(imageKindOf(cell), id, cell.launched()) {
		m.rewrite(imageKindOf(cell))
	}
}

// rewrite writes the cells of a kind anew: they may be old.
func (m *Mirror) rewrite(kind imageKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, cell := range m.latest {
		if cell.Phase != apiv1.Gone && imageKindOf(&cell) == kind {
			m.queue.AddAfter(id, mirrorDelay)
		}
	}
}

// keepImages asks what cells of each kind would boot now, until ctx ends.
func (m *Mirror) keepImages(ctx context.Context) {
	ticker := m.clock.NewTicker(imagesEvery)
	defer ticker.Stop()
	for {
		m.askForImages(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// askForImages asks once, for the newest cell of each kind.
func (m *Mirror) askForImages(ctx context.Context) {
	newest := map[imageKind]Cell{}
	m.mu.Lock()
	for _, cell := range m.latest {
		if kind := imageKindOf(&cell); cell.image() != "" && !cell.launched().Before(newest[kind].launched()) {
			newest[kind] = cell
		}
	}
	m.mu.Unlock()
	kinds := make([]imageKind, 0, len(newest))
	for kind := range newest {
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b imageKind) int { return strings.Compare(newest[a].ID, newest[b].ID) })
	for _, kind := range kinds {
		at := m.clock.Now()
		cell := newest[kind]
		cell.Options.Image = m.configured // which may be another than when it was launched
		id, err := m.currentImage(ctx, cell)
		if err != nil {
			if ctx.Err() == nil {
				m.log.Warn("the mirror does not know which cells have old images, retrying", "in", imagesEvery, "err", err)
			}
			continue
		}
		if m.images.learn(kind, id, at) {
			m.rewrite(kind)
		}
	}
}
