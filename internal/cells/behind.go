package cells

import (
	"errors"
	"fmt"
	"time"
)

// errBehind: nothing is launched.
var errBehind = errors.New(behind)

// What Behind and EndElsewhere say.
const (
	behind = "the cloud has instances of this Kip that its store does not know: the store is empty or older than they are, or another Kip " +
		"has the same identity; Kip launches nothing, and ends only what somebody has asked to end, until you decide with kipctl generation"
	unlooked = "Kip has not read a complete list of its instances in the cloud yet, and one that its store does not know may run the pod; " +
		"Kip goes on when it has the list"
	unproven = "Kip's store is new, and an instance from a lost store may run the pod; Kip lists its instances in the cloud " +
		"again after %s, and goes on if there is none"
	unseen = "the cloud has not listed the instances of every zone yet, so Kip does not know what runs in the others"
)

// behind says why this Kip launches nothing, and ends nothing that nobody has asked to
// end; "" if it does. Before the cloud has listed the instances of every zone once, sure is
// false.
func (l *Lineage) behind() (why string, sure bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.now.behind():
		return behind, true
	case !l.looked && l.now.mayBeLost() && !l.first.IsZero():
		return fmt.Sprintf(unproven, l.first.Add(l.proofAge()).UTC().Format(time.TimeOnly+" UTC")), false
	case !l.looked:
		return unlooked, false
	case l.blind:
		return unseen, false
	}
	return "", true
}

// Behind says why no instance may end whose end nobody has asked for; "" if it may.
func (l *Lineage) Behind() string {
	why, _ := l.behind()
	return why
}

// isBehind says that the store is known to be.
func (l *Lineage) isBehind() bool {
	why, sure := l.behind()
	return why != "" && sure
}

// mayRunMore says that a cell may have been given a pod of which its record does not
// know: a kubelet that heard of no pod would end that. Of its own cells a process knows it.
func (l *Lineage) mayRunMore(e *entry) bool {
	why, _ := l.behind()
	return why != "" && e.loaded && e.session == nil
}

// noteAway notes that a cell of an earlier process is not connected to now.
func (l *Lineage) noteAway(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure = now
	if l.unsureSince.IsZero() {
		l.unsureSince = now
	}
}

// unsureAfter is how long since then loaded cells were not connected to, since they may run
// more than their records say.
func (l *Lineage) unsureAfter(from time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsureSince.After(from) {
		from = l.unsureSince
	}
	return max(0, l.unsure.Sub(from))
}
