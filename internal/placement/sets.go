package placement

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
)

// set is some of the rows of a capacity type, a bit each.
type set []uint64

func newSet(rows int) set { return make(set, (rows+63)/64) }

func (s set) add(row int)    { s[row/64] |= 1 << (row % 64) }
func (s set) remove(row int) { s[row/64] &^= 1 << (row % 64) }

// unite adds the rows of another set of the same capacity type.
func (s set) unite(with set) {
	for i, w := range with[:len(s)] {
		s[i] |= w
	}
}

// keep removes all rows but those of another set of the same capacity type.
func (s set) keep(only set) {
	for i, w := range only[:len(s)] {
		s[i] &= w
	}
}

// drop removes the rows of another set of the same capacity type.
func (s set) drop(others set) {
	for i, w := range others[:len(s)] {
		s[i] &^= w
	}
}

func (s set) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// next is the first row of the set from one on, or -1.
func (s set) next(from int) int {
	i := from / 64
	if i >= len(s) {
		return -1
	}
	for w := s[i] >> (from % 64) << (from % 64); ; w = s[i] {
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
		if i++; i == len(s) {
			return -1
		}
	}
}

// ladder holds which rows of a capacity type have how much of something.
type ladder struct {
	amounts []int64 // ascending, each once
	rows    []set   // of each amount, those that have as much or more
}

func ladderOf(sizes []size, amount func(*size) int64) ladder {
	order := make([]int, len(sizes)) // the most first
	for i := range sizes {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(amount(&sizes[b]), amount(&sizes[a])) })
	var l ladder
	as := newSet(len(sizes))
	for i, row := range order {
		as.add(row)
		if n := amount(&sizes[row]); i+1 == len(order) || amount(&sizes[order[i+1]]) < n {
			l.amounts, l.rows = append(l.amounts, n), append(l.rows, slices.Clone(as))
		}
	}
	slices.Reverse(l.amounts)
	slices.Reverse(l.rows)
	return l
}

// keep removes the rows that have less than that.
func (l *ladder) keep(of set, least int64) {
	switch i, _ := slices.BinarySearch(l.amounts, least); i {
	case 0: // all have as much
	case len(l.amounts):
		clear(of)
	default:
		of.keep(l.rows[i])
	}
}

// Bounds of what is kept of patterns: more of them than the pods of a cluster name, and
// longer ones than people write.
const (
	mostPatterns   = 128
	longestPattern = 64
)

// matches are the rows of each capacity type whose types' names match a pattern.
type matches map[LaunchType]set

// patterns are those that pods have named lately, since the pods of one workload name the
// same. It is safe for concurrent use.
type patterns struct {
	mu    sync.Mutex
	named map[string]matches
}

// of returns what find finds for a pattern, or what it once found. What it finds never
// changes, and is kept only if there is something.
func (p *patterns) of(pattern string, find func() matches) matches {
	p.mu.Lock()
	known, ok := p.named[pattern]
	p.mu.Unlock()
	if ok {
		return known
	}
	found := find()
	if found == nil || len(pattern) > longestPattern {
		return found
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.named) >= mostPatterns {
		clear(p.named)
	}
	p.named[pattern] = found
	return found
}
