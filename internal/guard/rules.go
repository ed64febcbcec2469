package guard

import (
	"cmp"
	"fmt"
	"time"
)

// The rules by which an end is judged, which doc.go numbers. They wait for nothing and remember nothing. guard.go asks them, count.go
// counts and stores the ends of rule 3, and held.go remembers what is held back.

const (
	// Fresh is how long a heartbeat keeps a cell from an end that nobody requested. After as long the node controller of
	// Kubernetes gives up a silent node (node-monitor-grace-period, 40 s in its first releases).
	Fresh = 40 * time.Second

	// When it is worth asking again:
	storeRetry      = 5 * time.Second  // after the store has failed, and when it is another namespace's turn
	behindRetry     = 15 * time.Second // while the store is behind: the cloud is listed as often
	disruptionRetry = 5 * time.Second  // in a disruption: leases are checked every few seconds
)

// known is what the guard knows of an end besides what it is told.
type known struct {
	now      time.Time
	behind   string // why the store may not know all instances; "" if it does
	admitted bool   // the instance may end already, and has not ended yet
	allowed  bool   // a person lets the end pass
}

// judge applies everything but rule 3. It returns why the end is held back, or whether it counts for rule 3. Rule 2 is not asked here:
// package cells wants no end for an instance that is gone before it has the evidence of that.
func judge(e End, k known) (because *HeldError, counts bool) {
	if e.Ground != Requested && !k.admitted {
		if because = behind(k.behind); because != nil { // whatever a person says
			return because, false
		}
	}
	if k.allowed {
		return nil, false
	}
	if because = veto(e, k.now); because != nil { // also of an instance that was admitted
		return because, false
	}
	return nil, e.Ground == Unrequested && !k.admitted
}

// behind holds back all but requested ends while the store may not know all instances.
func behind(why string) *HeldError {
	if why == "" {
		return nil
	}
	return &HeldError{Reason: ByStore, Text: why, After: behindRetry}
}

// veto is rule 1: that of a cell that was heard lately, or that Kip may not be able to hear.
func veto(e End, now time.Time) *HeldError {
	if ago := now.Sub(e.LastHeartbeat); !e.LastHeartbeat.IsZero() && ago < Fresh {
		return &HeldError{Reason: ByLease, Text: fmt.Sprintf("it was heard less than %s ago", Fresh), After: Fresh - ago}
	}
	if e.Disruption != "" {
		return &HeldError{Reason: ByDisruption, Text: e.Disruption, After: disruptionRetry}
	}
	return nil
}

// holds is rule 3: it holds back the end of a pod of a namespace if as many have ended as may, or if it is another's turn: one that waits,
// and has had fewer ends in the window. Without turns a tenant whose cells fall silent all the time would use up the limit, and Kip would
// never replace a lost cell of another namespace (TestNamespacesTakeTurnsAtTheLimit).
func (l Limit) holds(ended window, namespace string, waiting map[string]bool, population int, now time.Time) *HeldError {
	began, after := population, l.Window
	if len(ended) > 0 {
		began, after = ended[0].Population, ended[0].At.Add(l.Window).Sub(now)
	}
	if n := ended.ends(); n >= max(l.Least, began*l.Percent/100) {
		text := fmt.Sprintf("%d of %d have ended within %s, which is as many as may end for a mistake", n, began, l.Window)
		return &HeldError{Reason: ByLimit, Text: text, After: after}
	}
	had := ended.byNamespace()
	for other := range waiting {
		if had[other] < had[namespace] {
			text := fmt.Sprintf("Kip reached its limit of unrequested ends within %s; other namespaces than %s come first",
				l.Window, cmp.Or(namespace, "none"))
			return &HeldError{Reason: ByLimit, Text: text, After: storeRetry}
		}
	}
	return nil
}
