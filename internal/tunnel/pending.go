package tunnel

import (
	"errors"
	"sync"
	"time"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/sources"
)

// errTooMany is why a connection was closed as it came.
var errTooMany = errors.New("too many connections from there")

// pending are the connections that have not yet proven to be Kip's. When there are
// too many, one goes of the source that has the most of them: a flood from one
// address turns away itself. Between equals it is not that from which Kip came last,
// and the oldest: Kip's own needs a moment, one that is held open to keep Kip out has
// had it.
type pending struct {
	max      int
	arrivals keyed.Rates[sources.Source] // of all sources but Kip's last

	mu  sync.Mutex
	all []unproven     // oldest first
	kip sources.Source // from which Kip came last; the zero source before
}

type unproven struct {
	conn *conn
	from sources.Source
}

// admits says whether one more connection may come from there now.
func (p *pending) admits(from sources.Source, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isKips(from) || p.arrivals.Allow(from, now)
}

func (p *pending) isKips(from sources.Source) bool { return from != sources.Source{} && from == p.kip }

func (p *pending) add(c *conn, from sources.Source) {
	p.mu.Lock()
	var goes *conn
	if len(p.all) == p.max {
		i := p.tooMany()
		goes = p.all[i].conn
		p.all = append(p.all[:i], p.all[i+1:]...)
	}
	p.all = append(p.all, unproven{c, from})
	p.mu.Unlock()
	if goes != nil {
		_ = goes.Close()
	}
}

// tooMany is which connection goes. The lock is held.
func (p *pending) tooMany() (goes int) {
	share := map[sources.Source]int{}
	for _, u := range p.all {
		share[u.from]++
	}
	for i, u := range p.all {
		was := p.all[goes].from
		if n, most := share[u.from], share[was]; n > most || n == most && p.isKips(was) && !p.isKips(u.from) {
			goes = i
		}
	}
	return goes
}

func (p *pending) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.all {
		if p.all[i].conn == c {
			p.all = append(p.all[:i], p.all[i+1:]...)
			return
		}
	}
}

// proved notes where Kip comes from.
func (p *pending) proved(from sources.Source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kip = from
}

// maxSources is how many sources are metered, each for itself.
const maxSources = 1024
