package guard

import (
	"slices"
	"strings"
	"time"
)

// heldFor is how long an end is shown as held back after the last request for it. The cell was heard again, or is gone,
// since whoever wants an end repeats the request every few seconds, or with each list of the cloud, every 15 s.
const heldFor = time.Minute

// Held is an end that is held back.
type Held struct {
	End
	Reason Reason
	Text   string
	Since  time.Time
}

// held is a Held, until nobody requests it any more.
type held struct {
	Held
	asked time.Time
	// allowed reports whether a person lets it pass once.
	allowed bool
}

// note notes that an end is held back. It is called under mu.
func (g *Guard) note(e End, because *HeldError, now time.Time) {
	since := now
	if h := g.held[e.Instance]; h != nil && now.Sub(h.asked) <= heldFor {
		since = h.Since
	}
	g.held[e.Instance] = &held{
		Held: Held{
			End:    e,
			Reason: because.Reason,
			Text:   because.Text,
			Since:  since,
		},
		asked: now,
	}
}

// Held returns the ends that are held back now, ordered by instance.
func (g *Guard) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now()
}

// Allow lets pass once what is held back now and was at the time of seen, and returns it. A person has not seen what came later.
func (g *Guard) Allow(seen time.Time) []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.DeleteFunc(g.now(), func(h Held) bool { return h.Since.After(seen) })
	for _, h := range all {
		g.held[h.Instance].allowed = true
	}
	return all
}

// Holds reports whether the end of an instance is held back.
func (g *Guard) Holds(instance string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held[instance]
	return h != nil && !h.allowed && g.cfg.Clock.Since(h.asked) <= heldFor
}

// now forgets what nobody requests any more, and returns the rest that is not allowed. It is called under mu.
func (g *Guard) now() []Held {
	now, all := g.cfg.Clock.Now(), []Held{}
	for id, h := range g.held {
		switch {
		case now.Sub(h.asked) > heldFor:
			delete(g.held, id)
		case !h.allowed:
			all = append(all, h.Held)
		}
	}
	slices.SortFunc(all, func(a, b Held) int { return strings.Compare(a.Instance, b.Instance) })
	return all
}
