package podlogs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// timeFormat is how the kubelet writes the time of a line.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// maxNote bounds what is said of a line that is cut.
const maxNote = 64

// tail is the end of a log, in a file of bounded size that is written round and round.
type tail struct {
	file interface {
		io.WriterAt
		io.ReaderAt
		grow(int64) (reserved int64, bound string)
	}
	max            int64
	size           int64  // of the file
	full           bool   // it does not grow any more
	bound          string // why, unless it has max
	written, lines int64  // in all, and ends of lines in that
	last           []byte
	open           bool // the last line has no end yet
}

// read reads a log to its end, in bounded memory. A line that is longer on its own than what is kept is cut, and says so.
func (t *tail) read(r io.Reader) error {
	in, out := bufio.NewReaderSize(r, 64<<10), bufio.NewWriterSize(t, 64<<10)
	most := max(t.max-maxNote, 1)
	var line int64 // bytes of it so far
	for {
		part, err := in.ReadSlice('\n')
		if len(part) > 0 {
			if !t.open {
				t.last = append(t.last[:0], part[:min(len(part), len(timeFormat)+1)]...)
				line = 0
			}
			keep := min(int64(len(part)), max(most-line, 0))
			line += int64(len(part))
			t.open = part[len(part)-1] != '\n'
			if _, err := out.Write(part[:keep]); err != nil {
				return err
			}
		}
		if more := errors.Is(err, bufio.ErrBufferFull); !more && line > most {
			fmt.Fprintf(out, " [kip: %d bytes of this line were left out]\n", line-most)
			t.open, line = false, 0
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return out.Flush()
		default:
			return errors.Join(err, out.Flush())
		}
	}
}

// Write implements io.Writer. Beyond the file's size it overwrites what came first. One byte more than is kept says
// whether the first line that is left is whole.
func (t *tail) Write(p []byte) (int, error) {
	all := len(p)
	t.lines += int64(bytes.Count(p, []byte{'\n'}))
	for len(p) > 0 {
		at, n := t.size, int64(0)
		if !t.full {
			n = min(int64(len(p)), t.max+1-t.size)
			n, t.bound = t.file.grow(n)
			t.size += n
		}
		if n == 0 {
			t.full = true
			if t.size == 0 {
				t.written += int64(len(p))
				break
			}
			at = t.written % t.size
			n = min(int64(len(p)), t.size-at)
		}
		if _, err := t.file.WriteAt(p[:n], at); err != nil {
			return 0, err
		}
		t.written += n
		p = p[n:]
	}
	return all, nil
}

// run describes what is kept. It says where something is missing: before, because it was too long, or after, because
// broken ended the reading. What it says has a time, like every line.
func (t *tail) run(broken error) (run, error) {
	r := run{Saved: true, Bytes: t.size, File: t.size}
	if t.written > min(t.size, t.max) {
		if t.size > 0 {
			r.Begin = t.written % t.size
		}
		if err := t.skipLine(&r); err != nil {
			return run{}, err
		}
		kept, first, err := t.countKept(r)
		if err != nil {
			return run{}, err
		}
		why := fmt.Sprintf("the log was longer than the %d bytes that are kept", t.max)
		if t.bound != "" {
			why = "Kip could not keep all of the log: " + t.bound
		}
		r.Before = fmt.Sprintf("%s [kip: %s; %d lines, %d bytes, before this are left out]\n",
			stamp(first), why, t.lines-kept, t.written-r.Bytes)
	}
	if broken != nil {
		if t.open {
			r.After = "\n"
		}
		r.After += fmt.Sprintf("%s [kip: the rest of the log could not be read from the cell: %v]\n", stamp(t.last), broken)
	}
	return r, nil
}

// skipLine leaves out what is there up to the first end of a line.
func (t *tail) skipLine(r *run) error {
	in := bufio.NewReader(r.kept(t.file))
	for {
		part, err := in.ReadSlice('\n')
		r.Bytes -= int64(len(part))
		if t.size > 0 {
			r.Begin = (r.Begin + int64(len(part))) % t.size
		}
		if err == nil || errors.Is(err, io.EOF) {
			return nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// countKept returns how many ends of lines are kept, and the beginning of the first line.
func (t *tail) countKept(r run) (lines int64, first []byte, err error) {
	in, buf := r.kept(t.file), make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if first == nil && n > 0 {
			first = slices.Clone(buf[:min(n, len(timeFormat)+1)])
		}
		lines += int64(bytes.Count(buf[:n], []byte{'\n'}))
		if errors.Is(err, io.EOF) {
			return lines, first, nil
		}
		if err != nil {
			return lines, first, err
		}
	}
}

// stamp is the time of a line, as text; that of the beginning if it has none.
func stamp(line []byte) string {
	at, _ := splitLine(line)
	return at.Format(timeFormat)
}
