package cells

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// generation is the record that says which launches the store knows of. It is a line, and a number in that. A
// launch raises the number in the transaction that stores the launch, and its instances are
// tagged with both: a store that is older than an instance has a lower number, or
// another line. Such a store is behind.
type generation struct {
	// Store is the store's own name, which it keeps.
	Store string `json:"store"`
	// Line begins anew when a person has the store take over, so that two stores that were one
	// before go on in different lines. It also begins anew if Kip launches before the cloud has
	// listed all zones.
	Line string `json:"line"`
	// Number is that of the last launch of the line; 0 before the first.
	Number uint64 `json:"number"`
	// KnownLines are the earlier lines of the store and those that a person has had taken over, with
	// the highest number that the store knew of each.
	KnownLines map[string]uint64 `json:"knownLines,omitempty"`
	// UnknownLines are the lines of instances that the store does not know of, each with the
	// highest number. As long as there are any, this Kip launches and sweeps nothing.
	UnknownLines map[string]uint64 `json:"unknownLines,omitempty"`
	// Since is when the store was last found to be behind.
	Since time.Time `json:"since,omitzero"`
	// Unproven reports whether the store has launched instances, and the cloud's lists have not shown
	// yet whether it is new or was lost.
	Unproven bool `json:"unproven,omitempty"`
	// Distrusted reports whether what the store says of cells that no pod runs on yet is to be
	// forgotten before they are loaded.
	Distrusted bool `json:"distrusted,omitempty"`
}

// isBehind reports whether the store does not know of all instances, or a person has had it take
// over and its records are not forgotten yet which are not to be trusted.
func (g generation) isBehind() bool { return len(g.UnknownLines) > 0 || g.Distrusted }

// tag returns the value of cloud.TagGeneration of the last launch.
func (g generation) tag() string { return fmt.Sprintf("%s.%d", g.Line, g.Number) }

// generationOf returns the line and the number that an instance is tagged with. One
// without a tag, or with one that no Kip writes, has no line, and number 0.
func generationOf(i cloud.Instance) (line string, number uint64) {
	line, text, _ := strings.Cut(i.Tags[cloud.TagGeneration], ".")
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil || line == "" {
		return "", 0
	}
	return line, number
}

// mayBeLost reports whether the store may be the successor of one that was lost.
func (g *generation) mayBeLost() bool { return g.Number == 0 || g.Unproven }

// knows reports whether the store knows of the launch of an instance. A store that may
// be a lost one's successor knows only of its own launches; any other knows of those without
// a readable tag as well: Kip tags all that it launches, so somebody has changed that tag.
func (g *generation) knows(line string, number uint64) bool {
	switch line {
	case g.Line:
		return g.Number > 0 && number <= g.Number
	case "":
		return !g.mayBeLost()
	}
	newest, known := g.KnownLines[line]
	return known && number <= newest
}

// beginLine begins a new line, with the numbers after those of the old one.
func (g *generation) beginLine() {
	known := maps.Clone(g.KnownLines)
	if known == nil {
		known = map[string]uint64{}
	}
	known[g.Line] = g.Number
	g.Line, g.KnownLines = newID(""), known
}
