package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
)

// consoles is a Kip with one cell, which shows another of its consoles each time.
type consoles struct {
	explainer

	mu    sync.Mutex
	texts []adminapi.ConsoleText
}

func (c *consoles) Console(_ context.Context, cell string) (adminapi.ConsoleText, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cell != "cell-1" || len(c.texts) == 0 {
		return adminapi.ConsoleText{}, fmt.Errorf("cell %s: %w", cell, adminapi.ErrNotFound)
	}
	t := c.texts[0]
	c.texts = c.texts[1:]
	return t, nil
}

// consoleSocket serves a cell's consoles.
func consoleSocket(t *testing.T, texts ...string) {
	t.Helper()
	c := &consoles{}
	for _, text := range texts {
		c.texts = append(c.texts, adminapi.ConsoleText{
			Cell:     "cell-1",
			Phase:    apiv1.Booting,
			Instance: "i-1",
			Text:     []byte(text),
		})
	}
	socket(t, func(a *adminapi.Config) { a.Explainer = c })
}

const steering = "\x1b]0;owned\x07one\r\r\n\x1b[2Jtwo\u202e\u009b31m\xff\r\nhalf"

func TestAConsoleIsShownWithoutWhatSteersATerminal(t *testing.T) {
	consoleSocket(t, steering, steering, steering, "")
	if got := run(t, nil, "console", "cell-1"); got.failed != nil || got.err != "" || got.out != "?]0;owned?one\n?[2Jtwo??31m?\nhalf\n" {
		t.Errorf("%q, stderr %q, %v", got.out, got.err, got.failed)
	}
	for _, format := range []string{"json", "yaml"} {
		got := run(t, nil, "console", "cell-1", "-o", format)
		if got.failed != nil || strings.ContainsAny(got.out, "\x1b\x07\u202e\u009b\r") || !strings.Contains(got.out, "i-1") ||
			!strings.Contains(got.out, "half") {
			t.Errorf("as %s: %q, %v", format, got.out, got.failed)
		}
	}
	if got := run(t, nil, "console", "cell-1"); got.failed != nil || got.out != "" ||
		!strings.Contains(got.err, "Nothing is on the console of cell cell-1 yet") {
		t.Errorf("an empty one: %+v", got)
	}
	if got := run(t, nil, "console", "cell-2"); got.failed == nil || got.err != "Error: cell cell-2: not found\n" {
		t.Errorf("no such cell: %+v", got)
	}
}

func TestTheConsoleOfACellWithoutAMachineSaysSo(t *testing.T) {
	c := &consoles{texts: []adminapi.ConsoleText{{Cell: "cell-1", Phase: apiv1.Launching}}}
	socket(t, func(a *adminapi.Config) { a.Explainer = c })
	if got := run(t, nil, "console", "cell-1"); got.failed != nil || got.out != "" ||
		got.err != "Cell cell-1 has no machine yet: it is Launching.\n" {
		t.Errorf("%+v", got)
	}
}

func TestAConsoleIsFollowedUntilItsCellIsGone(t *testing.T) {
	const missing = "Warning: some of the console is missing here: it was written faster than it is kept\n"
	for name, tc := range map[string]struct {
		texts    []string
		out, err string
	}{
		"as it grows": {
			texts: []string{"", "one\r", "one\r\ntw", "one\r\ntw", "one\r\ntwo\x1b[2J\xe2\x82", "one\r\ntwo\x1b[2J€\n"},
			out:   "one\ntwo?[2J€\n",
			err:   "Nothing is on the console of cell cell-1 yet, or the cloud does not show it yet.\n",
		},
		"its beginning goes":        {texts: []string{"abcd\n", "cd\nef\n", "f\ngh\n"}, out: "abcd\nef\ngh\n"},
		"it is cut meanwhile":       {texts: []string{"abcd\n", "", "cd\nef\n"}, out: "abcd\nef\n"},
		"faster than it is kept":    {texts: []string{"abcd\n", "xyz\n"}, out: "abcd\nxyz\n", err: missing},
		"it ends within a line":     {texts: []string{"ab"}, out: "ab\n"},
		"it ends within a line end": {texts: []string{"ab\r"}, out: "ab\n"},
		"it ends within a letter":   {texts: []string{"ab\xe2\x82"}, out: "ab??\n"},
	} {
		t.Run(name, func(t *testing.T) {
			consoleSocket(t, tc.texts...)
			got := run(t, nil, "console", "-f", "cell-1")
			if got.failed != nil || got.out != tc.out || got.err != tc.err+"Cell cell-1 is gone.\n" {
				t.Errorf("%q, stderr %q, %v", got.out, got.err, got.failed)
			}
		})
	}
	consoleSocket(t, "text")
	if got := run(t, nil, "console", "-f", "cell-2"); got.failed == nil || got.out != "" {
		t.Errorf("a cell that was never there: %+v", got)
	}
}

// The overlap is that which comparing every pair finds, and is quickly found in what makes
// comparing slow.
func TestTheOverlapOfTwoTextsIsTheLongest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func() []byte {
		b := make([]byte, random.IntN(12))
		for i := range b {
			b[i] = "ab"[random.IntN(2)]
		}
		return b
	}
	for range 20_000 {
		before, now := word(), word()
		want := min(len(before), len(now))
		for !bytes.HasSuffix(before, now[:want]) {
			want--
		}
		if got := overlap(before, now); got != want {
			t.Fatalf("of %q and %q: %d, want %d", before, now, got, want)
		}
	}
	same := bytes.Repeat([]byte("a"), 64<<10)
	if got := overlap(same, same); got != len(same) {
		t.Errorf("of a text and itself: %d of %d", got, len(same))
	}
}

func TestAConsoleLooksTheSameHoweverItIsCut(t *testing.T) {
	const text = "\xe2\x82\xac\r\r\n€\xff\xf0\x9f\x98\x80\rend\r\n\xe2"
	const want = "€\n€?😀?end\n?\n"
	for a := range len(text) + 1 {
		for b := a; b <= len(text); b++ {
			var out bytes.Buffer
			s := screen{out: plain{&out}}
			for _, part := range []string{text[:a], text[a:b], text[b:]} {
				if err := s.show([]byte(part)); err != nil {
					t.Fatal(err)
				}
				if len(s.rest) > 3 {
					t.Fatalf("%d bytes are kept back", len(s.rest))
				}
			}
			if err := s.end(); err != nil {
				t.Fatal(err)
			}
			// Of several returns before a new line, one that came by itself is shown.
			if got := strings.ReplaceAll(out.String(), "€?\n", "€\n"); got != want {
				t.Errorf("cut at %d and %d: %q, want %q", a, b, out.String(), want)
			}
		}
	}
}
