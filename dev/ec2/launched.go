package ec2

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/cloud/sim"
)

// launched are the calls of RunInstances, by the tokens of the machines.
type launched struct {
	*base

	byToken map[string]*launch
}

// launchOf is that of an instance.
func (m *launched) launchOf(i sim.Instance) *launch {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.byToken[i.Token]; l != nil {
		return l
	}
	return &launch{}
}

// ReservedOf is the ID of the reservation, or of the host, that an instance is in; "" of another.
func (m *launched) ReservedOf(i sim.Instance) string {
	l := m.launchOf(i)
	return cmp.Or(l.reservation, l.host)
}

// called reports whether there was a launch of the token.
func (m *launched) called(token string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byToken[token] != nil
}

// remember keeps a launch by its token, unless there is one.
func (m *launched) remember(token string, l *launch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byToken[token] == nil {
		m.byToken[token] = l
	}
}

// simToken is a token in a zone: EC2 keeps one for each. A call without one is none that
// came before.
func (m *launched) simToken(token, zone string) string {
	if token == "" {
		m.mu.Lock()
		defer m.mu.Unlock()
		token = fmt.Sprintf("none\n%d", len(m.byToken))
	}
	return sum(zone + "\n" + token)
}

// unused forgets a call that has launched nothing: its token is as good as new.
func (m *launched) unused(token string, l *launch) {
	if slices.ContainsFunc(m.sim.History(), func(i sim.Instance) bool { return i.Token == token }) {
		return // launched, and the answer is lost
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byToken[token] == l {
		delete(m.byToken, token)
	}
}

func (m *launched) someEnded(token string) bool {
	return slices.ContainsFunc(m.sim.History(), func(i sim.Instance) bool { return i.Token == token && !i.Ended.IsZero() })
}
