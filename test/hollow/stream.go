package hollow

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// watched is one event of a watch.
type watched struct {
	Type string `json:"type"`
	// Object is in JSON, or in protobuf if the watch is.
	Object json.RawMessage `json:"object"`

	version string
	// initialEnd says that all objects have come that were there at first.
	initialEnd bool
}

func (e *watched) meta(version string, annotations map[string]string) {
	e.version, e.initialEnd = version, e.Type == "BOOKMARK" && annotations[metav1.InitialEventsAnnotationKey] == "true"
}

// events reads the events of a watch, of which nearly all the time none comes.
type events interface {
	// next returns an event, which is valid until the next call.
	next() (watched, error)
	// release gives back what the reader holds.
	release()
}

func newEvents(r io.Reader, protobuf bool) events {
	if protobuf {
		return &frames{r: r}
	}
	return jsonEvents{newLines(r)}
}

type jsonEvents struct{ *lines }

func (j jsonEvents) next() (e watched, err error) {
	line, err := j.lines.next()
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("read an event: %w", err)
	}
	var object struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]string
		}
	}
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return e, fmt.Errorf("read an object: %w", err)
	}
	e.meta(object.Metadata.ResourceVersion, object.Metadata.Annotations)
	return e, nil
}

// frames are events in protobuf, each after its length in four bytes.
type frames struct {
	r    io.Reader
	head [4]byte // all the buffer that an idle watch has
}

// protobufMagic starts every object.
var protobufMagic = []byte("k8s\x00")

func (f *frames) release() {}

func (f *frames) next() (e watched, err error) {
	if _, err := io.ReadFull(f.r, f.head[:]); err != nil {
		return e, err
	}
	size := binary.BigEndian.Uint32(f.head[:])
	if size > maxAnswer {
		return e, fmt.Errorf("an event has %d bytes, more than %d", size, maxAnswer)
	}
	frame := lineBuffers.Get().(*bytes.Buffer)
	defer func() {
		frame.Reset()
		lineBuffers.Put(frame)
	}()
	if _, err := io.CopyN(frame, f.r, int64(size)); errors.Is(err, io.EOF) {
		return e, io.ErrUnexpectedEOF
	} else if err != nil {
		return e, err
	}
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame.Bytes()); err != nil { // copies
		return e, fmt.Errorf("read an event: %w", err)
	}
	e = watched{Type: event.Type, Object: event.Object.Raw}
	raw, ok := bytes.CutPrefix(event.Object.Raw, protobufMagic)
	if !ok {
		return e, fmt.Errorf("read an object: it does not begin with %q", protobufMagic)
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(raw); err != nil {
		return e, fmt.Errorf("read an object: %w", err)
	}
	if e.Type == "ERROR" {
		return e, nil
	}
	// The first field of every object is its metadata.
	var object metav1.PartialObjectMetadata
	if err := object.Unmarshal(unknown.Raw); err != nil {
		return e, fmt.Errorf("read an object's metadata: %w", err)
	}
	e.meta(object.ResourceVersion, object.Annotations)
	return e, nil
}
