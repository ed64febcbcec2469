package cellca

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
)

// someCells are cells of which some know Kip by the old CA.
type someCells struct {
	unmoved []cells.Unmoved
	behind  string
	ended   error
}

func (c *someCells) Unmoved() []cells.Unmoved { return c.unmoved }
func (c *someCells) Untold() int              { return 0 }
func (c *someCells) Behind() (string, bool)   { return c.behind, true }
func (c *someCells) End(why error)            { c.ended = why }
func (c *someCells) EndUnmoved(shown string) ([]cells.Unmoved, error) {
	if shown != cells.ShownUnmoved(c.unmoved) {
		return nil, cells.ErrOtherUnmoved
	}
	return c.unmoved, nil
}

// rotating is a Kip that has begun to lead, with what is stored.
func rotating(t *testing.T, st *store.Store, files []string, c *someCells, said *[]string) *Rotation {
	t.Helper()
	sealer, err := OpenSealer(files)
	if err != nil {
		t.Fatal(err)
	}
	is, err := Load(t.Context(), st, sealer, clock.RealClock{}, silent)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		CA:       is,
		Sealer:   sealer,
		Overlap:  5 * time.Minute,
		Store:    st,
		Cells:    c,
		Events:   (*messages)(said),
		Watchdog: watchdog.New(clock.RealClock{}, silent),
		Clock:    clock.RealClock{},
		Log:      silent,
	})
}

var silent = slog.New(slog.DiscardHandler)

// messages are those of Events that were reported.
type messages []string

func (m *messages) Report(e events.Event) { *m = append(*m, e.Message) }

// runs lets a Kip lead for a while, and returns why it ended by itself.
func (r *Rotation) runs(t *testing.T, c *someCells, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	c.ended = nil
	if err := r.Run(ctx); err != nil {
		t.Errorf("the rotation ended with %v", err)
	}
	return c.ended
}

func TestTheOldCAIsDroppedWhenNothingDependsOnItAndNoSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, c, files := store.Memory(nil), &someCells{}, []string{keyFile(t, 1)}
		var said []string
		kip := func() *Rotation { return rotating(t, st, files, c, &said) }
		first := kip()
		if err := first.runs(t, c, time.Hour); err != nil {
			t.Errorf("without a rotation it begins anew: %v", err)
		}
		c.behind = "the store is behind"
		if _, err := first.RotateCA(t.Context()); err == nil || err.Error() != c.behind {
			t.Errorf("while the store is behind: %v", err)
		}
		c.behind = ""
		is, err := first.RotateCA(t.Context())
		if err != nil || is.Before == nil || is.Before.Hash != first.is.Signing.Hash() {
			t.Fatalf("the rotation begins with %+v, %v", is, err)
		}
		// It goes by the old one until it begins anew, which is at once.
		if _, err := first.RotateCA(t.Context()); !errors.Is(err, ErrNew) {
			t.Errorf("a second rotation by the same Kip: %v", err)
		}
		first.Reload()
		if !errors.Is(c.ended, ErrNew) {
			t.Errorf("it ends with %v", c.ended)
		}

		second := kip()
		if got := second.is.Authorities; got.Signing.Hash() != is.Signs.Hash || got.Before.Hash() != is.Before.Hash {
			t.Fatalf("stored are %v", got.Hashes())
		}
		if _, err := second.RotateCA(t.Context()); !errors.Is(err, pki.ErrRotating) {
			t.Errorf("a rotation within another: %v", err)
		}
		c.unmoved = []cells.Unmoved{{Cell: cells.Cell{ID: "cell-a"}, Why: "it is not connected"}}
		if err := second.runs(t, c, 24*time.Hour); err != nil {
			t.Errorf("with a cell that depends on the old CA it is dropped: %v", err)
		}
		if got := second.CA(); len(got.Unmoved) != 1 || got.Unmoved[0].Cell != "cell-a" || !strings.Contains(got.Waits, "1 cell") {
			t.Errorf("it shows %+v", got)
		}
		if _, err := second.EndUnmoved("other"); !errors.Is(err, cells.ErrOtherUnmoved) {
			t.Errorf("to end others: %v", err)
		}
		c.unmoved, c.behind = nil, "the store is behind"
		if err := second.runs(t, c, time.Hour); err != nil {
			t.Errorf("while the store is behind it is dropped: %v", err)
		}
		c.behind = ""
		if err := second.runs(t, c, time.Minute); !errors.Is(err, ErrNew) {
			t.Errorf("in the end: %v", err)
		}
		last := kip()
		if got := last.is.Authorities; got.Before != nil || got.Signing.Hash() != is.Signs.Hash {
			t.Errorf("in the end stored are %v", got.Hashes())
		}
		if len(said) != 2 || strings.Contains(fmt.Sprint(said), "KEY") {
			t.Errorf("it said %q", said)
		}

		// However fast the cells are, replicas have their time.
		if _, err := last.RotateCA(t.Context()); err != nil {
			t.Fatal(err)
		}
		quick := kip()
		if err := quick.runs(t, c, quick.cfg.Overlap-time.Second); err != nil || !strings.Contains(quick.CA().Waits, "replicas") {
			t.Errorf("before its time it is dropped: %v, %q", err, quick.CA().Waits)
		}
		if err := quick.runs(t, c, time.Minute); !errors.Is(err, ErrNew) {
			t.Errorf("after its time: %v", err)
		}
	})
}

// Whether a write was done or not, and whoever leads next, the CA of before is known as
// long as a cell depends on it, and the new one when a cell knows it.
func TestAKipThatIsKilledAtAWriteOfItsCAsGoesOnWithWhatIsStored(t *testing.T) {
	for _, point := range []string{"put", "applied"} {
		for kill := 1; kill <= 2; kill++ {
			synctest.Test(t, func(t *testing.T) {
				n, armed := 0, false
				st := store.Memory(func(op, key string) error {
					if !armed || op != point || !strings.HasSuffix(key, storeKey) {
						return nil
					}
					if n++; n == kill {
						return errors.New("killed")
					}
					return nil
				})
				c := &someCells{}
				var said []string
				files := []string{keyFile(t, 1)}
				old := rotating(t, st, files, c, &said)
				was := old.is.Signing.Hash()
				armed = true
				for try := 0; ; try++ {
					if try == 3 {
						t.Fatal("it does not begin")
					}
					kip := rotating(t, st, files, c, &said)
					if kip.is.Before != nil {
						break
					}
					if kip.is.Signing.Hash() != was {
						t.Fatalf("%s, %d: the CA of the cells is lost", point, kill)
					}
					c.ended = nil
					if _, err := kip.RotateCA(t.Context()); err != nil && !errors.Is(c.ended, ErrNew) {
						t.Errorf("%s, %d: a write of which nothing is known, and it goes on: %v", point, kill, err)
					}
				}
				next := rotating(t, st, files, c, &said)
				if next.is.Before.Hash() != was {
					t.Errorf("%s, %d: the old CA is lost", point, kill)
				}
				signs := next.is.Signing.Hash()
				for try := 0; next.is.Before != nil; try++ {
					if try == 3 {
						t.Fatal("it does not end")
					}
					if err := next.runs(t, c, time.Hour); !errors.Is(err, ErrNew) {
						t.Errorf("%s, %d: it goes on with %v", point, kill, err)
					}
					next = rotating(t, st, files, c, &said)
					if next.is.Signing.Hash() != signs {
						t.Fatalf("%s, %d: the new CA is lost", point, kill)
					}
				}
				if n < kill {
					t.Errorf("%s, %d: only %d writes", point, kill, n)
				}
			})
		}
	}
}

// Who leads no more does not end a rotation that another goes on with.
func TestAKipThatLeadsNoMoreDropsNoCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, c := store.Memory(nil), &someCells{}
		var said []string
		first := rotating(t, st, nil, c, &said)
		if _, err := first.RotateCA(t.Context()); err != nil {
			t.Fatal(err)
		}
		paused := rotating(t, st, nil, c, &said)
		if err := rotating(t, st, nil, c, &said).runs(t, c, time.Hour); !errors.Is(err, ErrNew) {
			t.Fatal(err)
		}
		if _, err := rotating(t, st, nil, c, &said).RotateCA(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := rotating(t, st, nil, c, &said).is.Hashes()
		if err := paused.runs(t, c, time.Hour); !errors.Is(err, store.ErrConflict) {
			t.Errorf("it ended with %v", err)
		}
		if got := rotating(t, st, nil, c, &said).is.Hashes(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("stored are %v, want %v", got, want)
		}
	})
}

func TestBothCAsAreEncryptedInTheStore(t *testing.T) {
	st, c := store.Memory(nil), &someCells{}
	var said []string
	kip := rotating(t, st, []string{keyFile(t, 1)}, c, &said)
	if _, err := kip.RotateCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	var stored []byte
	if _, err := st.Get(t.Context(), storeKey, &stored); err != nil || !pki.IsSealed(stored) || bytes.Contains(stored, []byte("PRIVATE")) {
		t.Errorf("stored is %d bytes, %v", len(stored), err)
	}
	none, err := OpenSealer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), st, none, clock.RealClock{}, silent); !errors.Is(err, pki.ErrSealed) {
		t.Errorf("without the key: %v", err)
	}
}
