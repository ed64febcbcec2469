package hollow

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// firstRead is how much a watch reads when nothing is known to come. All the
// buffer that an idle watch has is of this size.
const firstRead = 64

// lineBuffers are those of watches that are in the middle of a line.
var lineBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// lines reads a stream of lines, of which nearly all the time none comes.
type lines struct {
	r     io.Reader
	first [firstRead]byte
	buf   *bytes.Buffer // nil while there is nothing in it
	taken int           // of buf, by the last line
}

func newLines(r io.Reader) *lines { return &lines{r: r} }

// next returns a line, which is valid until the next call.
func (l *lines) next() ([]byte, error) {
	if l.buf != nil {
		l.buf.Next(l.taken)
		l.taken = 0
		if l.buf.Len() == 0 {
			l.release()
		}
	}
	for {
		if l.buf != nil {
			if at := bytes.IndexByte(l.buf.Bytes(), '\n'); at >= 0 {
				l.taken = at + 1
				return l.buf.Bytes()[:at], nil
			}
			if l.buf.Len() > maxAnswer {
				return nil, fmt.Errorf("a line is longer than %d bytes", maxAnswer)
			}
		}
		var n int
		var err error
		if l.buf == nil {
			if n, err = l.r.Read(l.first[:]); n > 0 {
				l.buf = lineBuffers.Get().(*bytes.Buffer)
				l.buf.Write(l.first[:n])
			}
		} else {
			l.buf.Grow(bytes.MinRead)
			room := l.buf.AvailableBuffer()
			n, err = l.r.Read(room[:cap(room)])
			l.buf.Write(room[:n])
		}
		if n == 0 && err != nil {
			return nil, err
		}
	}
}

// release gives the buffer back.
func (l *lines) release() {
	if l.buf != nil {
		l.buf.Reset()
		lineBuffers.Put(l.buf)
		l.buf = nil
	}
}
