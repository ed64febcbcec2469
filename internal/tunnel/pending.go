package tunnel

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// errTooMany is why a connection was closed as it came.
var errTooMany = errors.New("too many connections from there")

// source is where connections come from, as far as it can be told apart: who has one
// IPv6 address has its network of 64 bits.
type source netip.Prefix

func sourceOf(addr net.Addr) source {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return source{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.WithZone("").Prefix(bits)
	if err != nil { // no address at all
		return source{}
	}
	return source(p)
}

// pending are the connections that have not yet proven to be Kip's. When there are
// too many, one goes of the source that has the most of them: a flood from one
// address turns away itself. Between equals it is not that from which Kip came last,
// and the oldest: Kip's own needs a moment, one that is held open to keep Kip out has
// had it.
type pending struct {
	max      int
	arrivals arrivals // of all sources but Kip's last

	mu  sync.Mutex
	all []unproven // oldest first
	kip source     // from which Kip came last; the zero source before
}

type unproven struct {
	conn *conn
	from source
}

// admits says whether one more connection may come from there now.
func (p *pending) admits(from source, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isKips(from) || p.arrivals.take(from, now)
}

func (p *pending) isKips(from source) bool { return from != source{} && from == p.kip }

func (p *pending) add(c *conn, from source) {
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
	share := map[source]int{}
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
func (p *pending) proved(from source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kip = from
}

// maxSources is how many sources are metered, each for itself.
const maxSources = 1024

// arrivals meters new connections by their source, so that a flood costs no more
// than its acceptance. The rest of too many sources is metered as one.
type arrivals struct {
	every time.Duration // one connection, beyond
	burst int
	of    map[source]*rate.Limiter
	rest  *rate.Limiter
}

func (a *arrivals) take(from source, now time.Time) bool {
	l := a.of[from]
	if l == nil {
		l = a.enter(from, now)
	}
	return l.AllowN(now, 1)
}

func (a *arrivals) enter(from source, now time.Time) *rate.Limiter {
	if a.of == nil {
		a.of, a.rest = map[source]*rate.Limiter{}, a.limiter()
	}
	if len(a.of) >= maxSources {
		for s, l := range a.of { // who did not come for long begins anew
			if l.TokensAt(now) >= float64(a.burst) {
				delete(a.of, s)
			}
		}
	}
	if len(a.of) >= maxSources {
		return a.rest
	}
	l := a.limiter()
	a.of[from] = l
	return l
}

func (a *arrivals) limiter() *rate.Limiter { return rate.NewLimiter(rate.Every(a.every), a.burst) }
