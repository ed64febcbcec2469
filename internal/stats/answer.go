package stats

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/s2"
)

// blockSize is how much a pile compresses at a time, in bytes.
const blockSize = 64 << 10

// pile holds bytes that are only added to, compressed: the series of many pods
// differ in little.
type pile struct {
	blocks [][]byte
	last   []byte
}

// add returns by how many bytes more the pile is held.
func (p *pile) add(data []byte) (grown int) {
	was := len(p.last)
	p.last = append(p.last, data...)
	if len(p.last) < blockSize {
		return len(p.last) - was
	}
	block := s2.Encode(nil, p.last)
	p.blocks = append(p.blocks, append(make([]byte, 0, len(block)), block...)) // as large as it is
	p.last = p.last[:0]
	return len(block) - was
}

func (p *pile) empty() bool { return len(p.blocks) == 0 && len(p.last) == 0 }

// writeTo writes all that was added. It needs a block's memory.
func (p *pile) writeTo(w io.Writer) error {
	var buf []byte
	for _, block := range p.blocks {
		var err error
		if buf, err = s2.Decode(buf[:cap(buf)], block); err != nil {
			return fmt.Errorf("read what was gathered: %w", err)
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	_, err := w.Write(p.last)
	return err
}

// answer is what all cells together answer. Nobody modifies it.
type answer struct {
	contentType string
	parts       []part
	volumes     []Volume
}

// part is a piece of an answer, pile after head.
type part struct {
	head []byte
	pile *pile // nil for none
}

func (a *answer) writeTo(w io.Writer) error {
	for _, p := range a.parts {
		if _, err := w.Write(p.head); err != nil {
			return err
		}
		if p.pile == nil {
			continue
		}
		if err := p.pile.writeTo(w); err != nil {
			return err
		}
	}
	return nil
}

// count is a sum over all cells of what only grows, such as CPU time. It does not
// shrink when a cell ends, or cannot be asked: whoever computes a rate of it would
// see a fresh start. For the same reason what a cell adds to it is bounded: it would
// stay.
type count struct {
	total float64
	cells map[string]contribution
}

// contribution is what a cell said last, and how much of all that it said is in the total.
type contribution struct{ last, sum float64 }

// add takes what a cell has counted until now. It believes no more than most, of all
// that the cell ever counts.
func (n *count) add(cell string, v, most float64) {
	if n.cells == nil {
		n.cells = map[string]contribution{}
	}
	c := n.cells[cell]
	grown := v - c.last
	if grown < 0 {
		grown = v // the machine was restarted
	}
	grown = max(min(grown, most-c.sum), 0)
	n.total += grown
	n.cells[cell] = contribution{last: v, sum: c.sum + grown}
}

// forget drops all cells but those that are left.
func (n *count) forget(left []Cell) {
	is := make(map[string]bool, len(left))
	for i := range left {
		is[left[i].ID] = true
	}
	for id := range n.cells {
		if !is[id] {
			delete(n.cells, id)
		}
	}
}
