package podlogs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// timeFormat is how the kubelet writes the time of a line.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// tail is the end of a log, line by line, each with its end of line, but for
// the last, which may have none.
type tail struct {
	lines [][]byte
	bytes int64
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

func (t *tail) add(line []byte, max int64) {
	t.lines = append(t.lines, line)
	t.bytes += int64(len(line))
	drop := 0
	for t.bytes > max && drop < len(t.lines)-1 {
		n := int64(len(t.lines[drop]))
		t.bytes -= n
		t.droppedBytes += n
		t.lines[drop] = nil
		drop++
	}
	t.droppedLines += int64(drop)
	t.lines = t.lines[drop:]
}

// write writes the log, and says where something is missing: before, because it
// was longer than max, or after, because broken ended the reading. What it says
// has a time, like every line.
func (t *tail) write(w io.Writer, max int64, broken error) error {
	out := bufio.NewWriter(w)
	if t.droppedLines > 0 {
		fmt.Fprintf(out, "%s [kip: the log was longer than the %d bytes that are kept; %d lines, %d bytes, before this are left out]\n",
			stamp(t.lines[0]), max, t.droppedLines, t.droppedBytes)
	}
	for _, line := range t.lines {
		out.Write(line) // a failure stays in out until Flush
	}
	if broken != nil {
		last := t.lines[len(t.lines)-1]
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
