package cells

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// modelDoor notes when it was asked to let whom in, and says no as often as it is told to.
type modelDoor struct {
	mu    sync.Mutex
	asked []time.Time
	whom  string
	noes  int
}

func (m *modelDoor) Admit(_ context.Context, owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked, m.whom = append(m.asked, time.Now()), owner
	if m.noes > 0 {
		m.noes--
		return errors.New("no")
	}
	return nil
}

// A Kip that starts elsewhere launches nothing, and must reach what runs.
func TestKipIsLetInAtTheStartAndFromThenOn(t *testing.T) {
	door := &modelDoor{noes: 1}
	inBubble(t, func(c *setup) { c.Cloud.(*modelCloud).optional.Admitter = door }, nil, func(t *testing.T, b *bubble) {
		began := time.Now()
		b.later(admitRetry + 2*admitEvery + time.Second)
		door.mu.Lock()
		defer door.mu.Unlock()
		want := []time.Time{began, began.Add(admitRetry), began.Add(admitRetry + admitEvery), began.Add(admitRetry + 2*admitEvery)}
		if !slices.EqualFunc(door.asked, want, time.Time.Equal) || door.whom != b.cfg.ControllerID {
			t.Errorf("asked to let %q in at %v, want %v", door.whom, door.asked, want)
		}
	})
}
