package kip

import (
	"errors"
	"sync/atomic"

	"github.com/elotl/kip/internal/metrics"
)

// role is what a process is to the others now: it leads, or stands by.
type role struct {
	elected atomic.Bool             // it is this process's turn
	aside   atomic.Pointer[string]  // why it does nothing all the same, while it does not
	leading atomic.Pointer[leading] // set a little later, when it has begun
}

// ready says why a check of the leader does not hold. A process that stands by is
// ready to.
func (r *role) ready(holds func(*leading) error) error {
	if why := r.aside.Load(); why != nil {
		return errors.New(*why)
	}
	if r.elected.Load() && r.leading.Load() == nil {
		return errors.New("the work has not begun yet")
	}
	return ofLeader(r, holds)
}

// ofLeader asks what only a process that leads can answer.
func ofLeader[T any](r *role, ask func(*leading) T) (answer T) {
	if l := r.leading.Load(); l != nil {
		answer = ask(l)
	}
	return answer
}

// reading is what metrics tell of the moment.
func (r *role) reading() metrics.Reading {
	now := ofLeader(r, (*leading).reading)
	now.Aside = r.aside.Load() != nil
	return now
}
