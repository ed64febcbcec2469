package podlogs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// timeFormat is how the kubelet writes the time of a line.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// tail is the end of a log: lines, each with its end of line, but for the last, which may
// have none. They lie in one piece, since a cell may answer a million lines of nothing.
type tail struct {
	text []byte
	// left out before the first line
	droppedLines, droppedBytes int64
}

// readTail reads a log to its end and keeps the last lines, of max bytes at
// most. A line that is longer than that on its own is cut, and says so. On an
// error of r it returns what it has read by then.
func readTail(r io.Reader, max int64) (*tail, error) {
	t := &tail{}
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, cut, err := readLine(in, max)
		if len(line) > 0 {
			if cut > 0 {
				line = fmt.Appendf(line, " [kip: %d bytes of this line were left out]\n", cut)
			}
			t.add(line, max)
		}
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
	}
}

// readLine reads a line of which it keeps max bytes; cut is how many it left out.
func readLine(in *bufio.Reader, max int64) (line []byte, cut int64, err error) {
	for {
		part, err := in.ReadSlice('\n')
		keep := min(int64(len(part)), max-int64(len(line)))
		line = append(line, part[:keep]...)
		cut += int64(len(part)) - keep
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, cut, err
		}
	}
}

// add adds a line, and drops the first ones beyond max bytes, but never the last.
func (t *tail) add(line []byte, max int64) {
	t.text = append(t.text, line...)
	for int64(len(t.text)) > max {
		first := t.first()
		if len(first) == len(t.text) {
			return
		}
		t.droppedLines++
		t.droppedBytes += int64(len(first))
		t.text = t.text[len(first):]
	}
}

func (t *tail) first() []byte {
	if end := bytes.IndexByte(t.text, '\n'); end >= 0 {
		return t.text[:end+1]
	}
	return t.text
}

func (t *tail) last() []byte {
	return t.text[bytes.LastIndexByte(t.text[:len(t.text)-1], '\n')+1:]
}

// write writes the log, and says where something is missing: before, because it
// was longer than max, or after, because broken ended the reading. What it says
// has a time, like every line. With broken the log has a line.
func (t *tail) write(w io.Writer, max int64, broken error) error {
	out := bufio.NewWriter(w)
	if t.droppedLines > 0 {
		fmt.Fprintf(out, "%s [kip: the log was longer than the %d bytes that are kept; %d lines, %d bytes, before this are left out]\n",
			stamp(t.first()), max, t.droppedLines, t.droppedBytes)
	}
	out.Write(t.text) // a failure stays in out until Flush
	if broken != nil {
		last := t.last()
		if last[len(last)-1] != '\n' {
			out.WriteByte('\n')
		}
		fmt.Fprintf(out, "%s [kip: the rest of the log could not be read from the cell: %v]\n", stamp(last), broken)
	}
	return out.Flush()
}

// stamp is the time of a line, as text; that of the beginning if it has none.
func stamp(line []byte) string {
	at, _ := splitLine(line)
	return at.Format(timeFormat)
}
