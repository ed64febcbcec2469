package cells

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"k8s.io/apimachinery/pkg/util/version"
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

// old says what of a cell is older than what a cell has that is launched now, for people; "" for nothing that is known.
func (i *currentImages) old(c *Cell, kip string) string {
	var parts []string
	i.mu.Lock()
	current := i.of[imageKindOf(c)].id
	i.mu.Unlock()
	if has := c.image(); has != "" && current != "" && has != current {
		parts = append(parts, "image")
	}
	if c.agentOfOther(kip) && isOlder(c.AgentRuns.Version, kip) {
		parts = append(parts, "agent")
	}
	return strings.Join(parts, ", ")
}

// isOlder compares two versions. One that is none is not older.
func isOlder(a, than string) bool {
	is, err := version.ParseSemantic(a)
	if err != nil {
		return false
	}
	other, err := version.ParseSemantic(than)
	return err == nil && is.LessThan(other)
}

// image is what the cell's machine has booted, in the cloud's own terms; "" where the cloud does not say.
func (c *Cell) image() string {
	if c.Launch == nil || c.Instance == nil {
		return ""
	}
	return c.Launch.Image
}

// CurrentImage returns what a cell would boot if it were launched now; "" of a cloud that does not say.
func (c *Controller) CurrentImage(ctx context.Context, cell Cell) (string, error) {
	return c.launches.launching.resolving.image(ctx, cell)
}

// image returns what a cell would boot if it were launched now.
func (s *resolving) image(ctx context.Context, cell Cell) (string, error) {
	if !s.asks() {
		return "", nil
	}
	resolved, err := s.ask(ctx, cell)
	if err != nil {
		return "", fmt.Errorf("look up the image that cells like %s boot now: %w", cell.ID, err)
	}
	return resolved.Image, nil
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
	ticker := time.NewTicker(imagesEvery)
	defer ticker.Stop()
	for {
		m.askForImages(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
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
		at := time.Now()
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
