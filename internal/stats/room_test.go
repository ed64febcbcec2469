package stats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
)

// chatty is a cell whose kubelet says much of its pod that cannot be compressed.
func chatty(name string, bytes int) Cell {
	random := rand.New(rand.NewPCG(1, uint64(len(name))))
	var b strings.Builder
	b.WriteString("# TYPE container_cpu_usage_seconds_total counter\n")
	for b.Len() < bytes {
		fmt.Fprintf(&b, "container_cpu_usage_seconds_total{container=\"%016x%016x%016x\",namespace=\"default\",pod=%q} 1\n",
			random.Uint64(), random.Uint64(), random.Uint64(), name)
	}
	return Cell{ID: name, Namespace: "default", Pod: name, Machine: large, Conn: says(map[string]string{"/metrics/resource": b.String()})}
}

// While as many large answers are read as may be, small ones have room.
func TestLargeAnswersLeaveRoomToReadOthers(t *testing.T) {
	b := budget{most: 8 * largeBody}
	const readers = 10
	held, release := make(chan error, 1), make(chan struct{})
	ended := make(chan struct{}, readers)
	reading := 0
	// One after the other: until they are known to be large, all together may leave nothing for one of them.
	for range readers {
		go func() {
			defer func() { ended <- struct{}{} }()
			blocks := readerFunc(func([]byte) (int, error) {
				held <- nil
				<-release
				return 0, io.EOF
			})
			_, free, err := b.readAll(io.MultiReader(bytes.NewReader(make([]byte, largeBody+1)), blocks))
			if err != nil {
				held <- err
			}
			free()
		}()
		switch err := <-held; {
		case err == nil:
			reading++
		case !errors.Is(err, errTooLarge) || errors.Is(err, errNothingLeft):
			t.Errorf("a large answer: %v", err)
		}
	}
	if reading == 0 || reading == readers {
		t.Errorf("%d of %d large answers are being read", reading, readers)
	}
	body, free, err := b.readAll(bytes.NewReader(make([]byte, largeBody-1)))
	if err != nil || len(body) != largeBody-1 {
		t.Errorf("a small answer beside them: %d bytes, %v", len(body), err)
	}
	free()
	close(release)
	for range readers {
		<-ended
	}
}

func TestWhatIsRefusedRoomTakesNoneForAMoment(t *testing.T) {
	b := budget{most: 8 * largeBody}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100_000 {
			if b.take(2*int(b.most), b.most/2) {
				t.Error("room for more than there is")
			}
		}
	}()
	for {
		if !b.take(firstBuffer, b.most) {
			t.Fatal("a small answer has no room beside one that is refused")
		}
		b.used.Add(-firstBuffer)
		select {
		case <-done:
			return
		default:
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Nor do they take what is kept of a gathering, or the processors.
func TestLargeAnswersLeaveRoomToKeepOthers(t *testing.T) {
	f := newFixture(t)
	f.held = 1 << 20
	src := f.sources["/metrics/resource"]
	m := src.merging.begin(begin)
	refused := 0
	for i := range 12 {
		hostile := chatty(fmt.Sprintf("hostile-%0*d", i+1, i), 2*largeBody)
		isLarge, err := src.ask(t.Context(), &hostile, m)
		if !isLarge || err != nil && !errors.Is(err, errTooLarge) {
			t.Fatalf("large: %t, %v", isLarge, err)
		}
		if err != nil {
			refused++
		}
	}
	if refused == 0 || refused == 12 {
		t.Errorf("%d of 12 large answers are refused", refused)
	}
	honest := cell(t, "a")
	honest.Machine = large
	if isLarge, err := src.ask(t.Context(), &honest, m); isLarge || err != nil {
		t.Errorf("a small answer after them: large %t, %v", isLarge, err)
	}

	// While a large answer is parsed another waits, and a small one does not.
	f.largest <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		hostile := chatty("hostile", 2*largeBody)
		_, err := src.ask(ctx, &hostile, src.merging.begin(begin))
		ended <- err
	}()
	if _, err := src.ask(t.Context(), &honest, m); err != nil {
		t.Errorf("a small answer while a large one is parsed: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, errNothingLeft) {
		t.Errorf("a second large answer: %v", err)
	}
}

// Who answered much or badly is asked last the next time. Who only came too late for
// what the others took is not: else it would be too late for ever.
func TestOnlyThoseThatTookMuchAreAskedLast(t *testing.T) {
	broken := Cell{ID: "broken", Namespace: "default", Pod: "broken", Conn: says(nil)}
	f := newFixture(t, chatty("large", 2*largeBody), broken, cell(t, "a"), cell(t, "b"))
	src := f.sources["/metrics/resource"]
	f.get(t, "/metrics/resource")
	want := map[string]bool{"large": true, "broken": true}
	if !maps.Equal(src.late, want) {
		t.Errorf("asked last are %v, want %v", src.late, want)
	}
	f.held = -1 // nothing is left for anybody
	f.fresh(t, "/metrics/resource")
	if !maps.Equal(src.late, want) {
		t.Errorf("with nothing left, asked last are %v, want %v", src.late, want)
	}
}
