package cells

import "time"

// tellAgain is when something that goes on is told again.
const tellAgain = 5 * time.Minute

// news is what was last told of something.
type news struct {
	what string
	at   time.Time
}

// is says that something is to be told: it is another than the last time, or that
// was long ago.
func (n *news) is(what string, now time.Time) bool {
	if n.what == what && now.Sub(n.at) < tellAgain {
		return false
	}
	*n = news{what, now}
	return true
}
