package cellapi

import (
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/elotl/kip/internal/watches"
)

// stream writes the frames of a watch. It has no buffer of its own: there are many
// watches, nearly all of them idle. After the first failure it writes nothing
// more; flush tells.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	format  format
	kind    *watches.Kind
	head    []byte // of the frame being written
	err     error
}

// begin starts a batch of frames, all of which the client must take within
// writeWithin.
func (s *stream) begin() {
	// The network's time is the real one. A writer that knows no deadline leaves
	// it to the transport's own limits.
	_ = s.control.SetWriteDeadline(time.Now().Add(writeWithin))
}

// flush sends what is written and reports whether the client has taken all so far.
func (s *stream) flush() bool {
	if s.err == nil {
		s.err = s.control.Flush()
	}
	if s.err == nil {
		// Over HTTP/2 a deadline that passes ends the stream even when nothing
		// is being written.
		_ = s.control.SetWriteDeadline(time.Time{})
	}
	return s.err == nil
}

func (s *stream) frame(t watch.EventType, whole []byte) {
	s.head = appendFrameHead(s.head[:0], s.format, t, len(whole))
	for _, p := range [][]byte{s.head, whole, frameTail(s.format)} {
		if s.err == nil {
			_, s.err = s.w.Write(p)
		}
	}
}

func (s *stream) object(t watch.EventType, o *watches.Object) {
	e, err := formOf(o, s.format)
	if err != nil {
		s.failure(err)
		s.flush()
		s.err = err
		return
	}
	s.frame(t, e.Whole)
}

// bookmark tells the client that it has seen all up to rv, and, at the end of the
// initial events, that these were all of them.
func (s *stream) bookmark(rv uint64, initialEnd bool) {
	o := s.kind.New()
	o.SetResourceVersion(strconv.FormatUint(rv, 10))
	if initialEnd {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	o.GetObjectKind().SetGroupVersionKind(s.kind.GVK())
	b, err := encode(s.format, o)
	if err != nil {
		s.err = err
		return
	}
	s.frame(watch.Bookmark, b)
}

// failure ends the watch with an ERROR event.
func (s *stream) failure(err error) {
	b, encodeErr := encode(s.format, statusOf(err))
	if encodeErr != nil {
		s.err = encodeErr
		return
	}
	s.frame(watch.Error, b)
}
