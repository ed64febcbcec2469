package podlogs

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// meagre is a file that grows so far.
type meagre struct {
	buffer
	left int64
}

func (m *meagre) grow(n int64) (int64, string) {
	n = min(n, m.left)
	m.left -= n
	return n, ""
}

// What is kept is the last whole lines, as many as there is room for, wherever the file went round.
func TestTheLastWholeLinesAreKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		limit := int64(100 + r.IntN(300))
		var lines []string
		for range r.IntN(60) {
			lines = append(lines, strings.Repeat("x", r.IntN(30))+"\n")
		}
		log := strings.Join(lines, "")
		file := &meagre{left: limit + 1}
		if r.IntN(2) == 0 {
			file.left = r.Int64N(limit)
		}
		room := min(limit, max(file.left-1, 0)) // one byte says whether the first line is whole
		tail := &tail{file: file, max: limit}
		if file.left >= int64(len(log)) {
			room = limit
		}
		want := log
		for int64(len(want)) > room {
			_, want, _ = strings.Cut(want, "\n")
		}
		if err := tail.read(strings.NewReader(log)); err != nil {
			t.Fatal(err)
		}
		kept, err := tail.run(nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(kept.kept(file))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b); got != want {
			t.Fatalf("with room for %d, of %d bytes %q are kept, want %q", room, len(log), got, want)
		}
	}
}
