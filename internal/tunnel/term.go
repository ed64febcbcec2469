package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/elotl/kip/internal/pki"
)

const (
	termFile  = "kip.term"
	blockTerm = "KIP TERM"
)

// terms keep out a Kip that another has followed and that may not know it, as one that
// was paused. Of two, the one of the higher term leads.
type terms struct {
	id *identity

	mu      sync.Mutex
	highest uint64 // of those that have connected, also to this cell's agent before
}

// openTerms reads the highest term of those that have connected so far. One that cannot be
// read is none: the next Kip that connects says its own, and without that a cell would be lost
// for a file that only keeps out a Kip that was followed.
func openTerms(id *identity, log *slog.Logger) *terms {
	data, err := id.read(termFile, blockTerm)
	if err == nil && len(data) != 8 {
		err = fmt.Errorf("read %s: it has %d bytes, a term has 8", filepath.Join(id.dir, termFile), len(data))
	}
	switch {
	case err == nil:
		return &terms{id: id, highest: binary.BigEndian.Uint64(data)}
	case !errors.Is(err, fs.ErrNotExist):
		log.Error("the term of the Kip that connected last cannot be read: any may connect first", "err", err)
	}
	return &terms{id: id}
}

// olderError is that another Kip has followed the one that wants to connect.
type olderError struct{ term, highest uint64 }

func (e *olderError) Error() string {
	return fmt.Sprintf("it is the Kip of term %d, and that of term %d has connected", e.term, e.highest)
}

// followed is what a cell answers such a Kip with, in the place of HTTP/2's preface and as
// long, before it closes the connection: silence would be taken for the death of the cell.
const followed = "KIPTERM:%016x"

// FollowedError is that the cell is there, and refuses this Kip: that of a higher term has
// connected to it.
type FollowedError struct {
	// Term is that one's, as the cell says.
	Term uint64
}

func (e *FollowedError) Error() string {
	return fmt.Sprintf("the cell refuses this Kip, since one of the higher term %d has connected to it", e.Term)
}

// begins reads the first bytes of a cell that accepts or refuses a connection to the cell API.
// That it refuses the Kip of the term own for one that is no higher is not believed.
func begins(preface []byte, own uint64) error {
	if string(preface) == http2.ClientPreface {
		return nil
	}
	digits, refused := strings.CutPrefix(string(preface), followed[:strings.Index(followed, "%")])
	term, err := strconv.ParseUint(digits, 16, 64)
	switch {
	case !refused || err != nil:
		return errors.New("the cell does not begin with HTTP/2's preface")
	case term <= own:
		return fmt.Errorf("the cell says to refuse the Kip of term %d for that of term %d, which cannot be", own, term)
	}
	return &FollowedError{term}
}

// plausible says that a Kip may have begun a term: it is of a clock, in milliseconds, and one
// that is further ahead than certificates are believed from is none. Otherwise who has stolen
// the CA's key keeps every later Kip out for good, by one connection.
func plausible(term uint64, now time.Time) bool {
	return term <= uint64(max(now.Add(pki.ClockSkew).UnixMilli(), 0))
}

// admit refuses the Kip of a term below the highest. It returns whether this one is
// above all before. That it could not be stored is an error beside that: the term holds
// until this process ends. A term that is not plausible is none.
func (t *terms) admit(term uint64, now time.Time) (newest bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	highest := t.highest
	if !plausible(highest, now) {
		highest = 0
	}
	switch {
	case term == highest || !plausible(term, now):
		return false, nil
	case term < highest:
		return false, &olderError{term, highest}
	}
	t.highest = term
	return true, t.id.write(termFile, blockTerm, binary.BigEndian.AppendUint64(nil, term))
}
