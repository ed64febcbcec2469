package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
)

// consolePause is between two looks at a console that is followed: no cloud says that there
// is more, and each look is a call to it.
const consolePause = 2 * time.Second

func consoleOf(k *kipctl) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "console CELL",
		Short: "Show what the machine of a cell wrote to its console, from Kip's local socket",
		Long: "Show what the machine of a cell wrote to its console: the last 64 KiB at most, as far as its cloud\n" +
			"keeps and shows them. Whoever is root on the machine writes what he likes, so what would steer a\n" +
			"terminal is shown as question marks.",
		Args: namesOneCell,
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow && k.output != "table" {
				return fmt.Errorf("--follow shows text as it comes: --output %s is not for it", k.output)
			}
			path, _ := k.socketPath()
			c := consoleView{kipctl: k, client: adminapi.NewClient(path)}
			if follow {
				return c.follow(cmd.Context(), args[0])
			}
			return c.show(cmd.Context(), args[0])
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show what comes, too, until the cell is gone")
	return cmd
}

// consoleLines is a console as a program reads it.
type consoleLines struct {
	Cell     string      `json:"cell"`
	Phase    apiv1.Phase `json:"phase"`
	Instance string      `json:"instance,omitempty"`
	Lines    []string    `json:"lines"`
}

// consoleView shows consoles of machines.
type consoleView struct {
	*kipctl
	client *adminapi.Client
}

func (k *consoleView) show(ctx context.Context, cell string) error {
	t, err := k.client.Console(ctx, cell)
	if err != nil {
		return err
	}
	lines := consoleLines{
		Cell:     t.Cell,
		Phase:    t.Phase,
		Instance: t.Instance,
		Lines:    []string{},
	}
	for line := range strings.Lines(string(t.Text)) {
		lines.Lines = append(lines.Lines, strings.TrimRight(line, "\r\n"))
	}
	return k.print(lines, func(w io.Writer) error {
		k.tellOfNothing(t)
		s := screen{out: w}
		return errors.Join(s.show(t.Text), s.end())
	})
}

// tellOfNothing says why a console has no text.
func (k *consoleView) tellOfNothing(t adminapi.ConsoleText) {
	switch {
	case len(t.Text) > 0:
	case t.Instance == "":
		fmt.Fprintf(k.err, "Cell %s has no machine yet: it is %s.\n", t.Cell, t.Phase)
	default:
		fmt.Fprintf(k.err, "Nothing is on the console of cell %s yet, or the cloud does not show it yet.\n", t.Cell)
	}
}

// follow shows a console until the cell is gone or ctx ends.
func (k *consoleView) follow(ctx context.Context, cell string) (err error) {
	s := screen{out: plain{k.out}}
	defer func() { err = errors.Join(err, s.end()) }()
	var before []byte
	for looks := 0; ; looks++ {
		now, err := k.client.Console(ctx, cell)
		switch {
		case ctx.Err() != nil:
			return nil // as it was told to
		case looks > 0 && errors.Is(err, adminapi.ErrNotFound):
			fmt.Fprintf(k.err, "Cell %s is gone.\n", cell)
			return nil
		case err != nil:
			return err
		}
		if looks == 0 {
			k.tellOfNothing(now)
		}
		// None is also shown for a moment, while a log that has grown too long is cut.
		if len(now.Text) > 0 {
			known := overlap(before, now.Text)
			if known == 0 && before != nil {
				fmt.Fprintln(k.err, "Warning: some of the console is missing here: it was written faster than it is kept")
			}
			if err := s.show(now.Text[known:]); err != nil {
				return err
			}
			before = now.Text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(k.consolePause):
		}
	}
}

// overlap is how many bytes at the end of before are those at the beginning of now. It takes
// a time that grows as these do, whatever a cell has written (Knuth, Morris and Pratt).
func overlap(before, now []byte) (n int) {
	if len(now) == 0 {
		return 0
	}
	// borders[i] is how many bytes at the end of now[:i+1], but not all, are those at its beginning.
	borders := make([]int, len(now))
	grow := func(n int, next byte) int {
		for n > 0 && (n == len(now) || now[n] != next) {
			n = borders[n-1]
		}
		if now[n] == next {
			n++
		}
		return n
	}
	for i := 1; i < len(now); i++ {
		borders[i] = grow(borders[i-1], now[i])
	}
	for _, b := range before {
		n = grow(n, b)
	}
	return n
}

// lineEnd is how a line ends on a serial console.
var lineEnd = regexp.MustCompile(`\r+\n`)

// screen shows a console's text as it comes, which may be cut anywhere, with its lines ended
// as a terminal's. What else is no text is out's to deal with.
type screen struct {
	out io.Writer
	// rest has come and waits for what comes next: a part of a character, or what may be
	// the end of a line. It has at most three bytes.
	rest []byte
	// within says that a line is shown that has not ended.
	within bool
}

func (s *screen) show(text []byte) error {
	text = append(s.rest, text...)
	whole := len(text) - unfinished(text)
	s.rest = bytes.Clone(text[whole:])
	return s.write(lineEnd.ReplaceAll(text[:whole], []byte("\n")))
}

// end shows what waits for what does not come, and ends the line.
func (s *screen) end() error {
	rest := bytes.TrimSuffix(s.rest, []byte("\r"))
	s.rest = nil
	if s.within || len(rest) > 0 {
		rest = append(rest, '\n')
	}
	return s.write(rest)
}

func (s *screen) write(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	s.within = text[len(text)-1] != '\n'
	_, err := s.out.Write(text)
	return err
}

// unfinished is how many bytes at the end of a text may be the beginning of something.
func unfinished(text []byte) int {
	if bytes.HasSuffix(text, []byte("\r")) {
		return 1
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if last := text[len(text)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}
