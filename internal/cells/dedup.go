package cells

import "time"

// reportAgain is when something that goes on is told again.
const reportAgain = 5 * time.Minute

// dedup keeps something that goes on from being told again and again: it has what was last told, and when.
type dedup struct {
	what string
	at   time.Time
}

// note notes that something is told now, and returns true, unless the same was told a short while ago.
func (n *dedup) note(what string, now time.Time) bool {
	if n.what == what && now.Sub(n.at) < reportAgain {
		return false
	}
	*n = dedup{what, now}
	return true
}
