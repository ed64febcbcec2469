package cellapi

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/elotl/kip/internal/watches"
)

// format is a media type that this API speaks.
type format int

const (
	formatJSON format = iota
	formatProtobuf
)

func (f format) mediaType() string {
	if f == formatProtobuf {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

func (f format) watchMediaType() string {
	if f == formatProtobuf {
		return runtime.ContentTypeProtobuf + ";stream=watch"
	}
	return runtime.ContentTypeJSON
}

// accepted returns the format that the client likes best, false when it takes
// none that this API speaks. A table or metadata only ("as=") is none of them.
func accepted(header http.Header) (format, bool) {
	value := strings.Join(header.Values("Accept"), ",")
	if strings.TrimSpace(value) == "" {
		return formatJSON, true
	}
	for _, clause := range goautoneg.ParseAccept(value) {
		if clause.Params["as"] != "" {
			continue
		}
		switch clause.Type + "/" + clause.SubType {
		case runtime.ContentTypeJSON, "application/*", "*/*":
			return formatJSON, true
		case runtime.ContentTypeProtobuf:
			return formatProtobuf, true
		}
	}
	return formatJSON, false
}

// bodyMediaType returns the media type of the request's body, JSON when unsaid.
func bodyMediaType(header http.Header) (string, error) {
	value := header.Get("Content-Type")
	if value == "" {
		return runtime.ContentTypeJSON, nil
	}
	t, _, err := mime.ParseMediaType(value)
	if err != nil {
		return "", fmt.Errorf("Content-Type %q is not a media type: %w", value, err)
	}
	return t, nil
}

// protobufMagic starts every Kubernetes object in protobuf.
var protobufMagic = []byte("k8s\x00")

// protobufMarshaler is implemented by all types of k8s.io/api.
type protobufMarshaler interface {
	Marshal() ([]byte, error)
}

// encode returns o in the format f. o must carry its kind and apiVersion.
func encode(f format, o runtime.Object) ([]byte, error) {
	b, _, err := encodeParts(f, o)
	return b, err
}

// encodeParts also returns the part of the encoding that is a list's item: all
// of it in JSON, the message without its envelope in protobuf.
func encodeParts(f format, o runtime.Object) (whole, item []byte, err error) {
	gvk := o.GetObjectKind().GroupVersionKind()
	if f == formatJSON {
		whole, err = json.Marshal(o)
		if err != nil {
			return nil, nil, fmt.Errorf("encode %s as JSON: %w", gvk.Kind, err)
		}
		return whole, whole, nil
	}
	m, ok := o.(protobufMarshaler)
	if !ok {
		return nil, nil, fmt.Errorf("encode %s as protobuf: %T has no protobuf form", gvk.Kind, o)
	}
	raw, err := m.Marshal()
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s as protobuf: %w", gvk.Kind, err)
	}
	head, tail, err := protobufEnvelope(gvk, len(raw))
	if err != nil {
		return nil, nil, err
	}
	whole = make([]byte, 0, len(head)+len(raw)+len(tail))
	whole = append(whole, head...)
	whole = append(whole, raw...)
	whole = append(whole, tail...)
	return whole, whole[len(head) : len(head)+len(raw)], nil
}

// protobufEnvelope returns what stands before and after the message of an object
// of size bytes: the magic and runtime.Unknown (1: TypeMeta, 2: the message,
// 3 and 4: content encoding and type, both empty).
func protobufEnvelope(gvk schema.GroupVersionKind, size int) (head, tail []byte, err error) {
	apiVersion, kindName := gvk.ToAPIVersionAndKind()
	meta := runtime.TypeMeta{APIVersion: apiVersion, Kind: kindName}
	m, err := meta.Marshal()
	if err != nil {
		return nil, nil, fmt.Errorf("encode type of %s: %w", gvk.Kind, err)
	}
	head = append(head, protobufMagic...)
	head = appendField(head, 1, len(m))
	head = append(head, m...)
	head = appendField(head, 2, size)
	tail = appendField(nil, 3, 0)
	tail = appendField(tail, 4, 0)
	return head, tail, nil
}

// appendField appends the key and length of a length-delimited protobuf field.
func appendField(b []byte, number, size int) []byte {
	b = binary.AppendUvarint(b, uint64(number)<<3|2)
	return binary.AppendUvarint(b, uint64(size))
}

// formOf returns an object as it is written in the format f.
func formOf(o *watches.Object, f format) (*watches.Form, error) {
	return o.Form(int(f), func(a watches.APIObject) (whole, item []byte, err error) { return encodeParts(f, a) })
}

// listPieces returns a list in the format f as pieces to be written one after
// another; the items' bytes are the shared ones.
func listPieces(f format, k *watches.Kind, objects []*watches.Object, rv uint64) ([][]byte, error) {
	version := strconv.FormatUint(rv, 10)
	items := make([][]byte, len(objects))
	for i, o := range objects {
		e, err := formOf(o, f)
		if err != nil {
			return nil, err
		}
		items[i] = e.Item
	}
	if f == formatJSON {
		apiVersion, kindName := k.ListGVK().ToAPIVersionAndKind()
		head := fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q},"items":[`, kindName, apiVersion, version)
		pieces := make([][]byte, 0, 2*len(items)+2)
		pieces = append(pieces, []byte(head))
		for i, item := range items {
			if i > 0 {
				pieces = append(pieces, comma)
			}
			pieces = append(pieces, item)
		}
		return append(pieces, listEnd), nil
	}
	meta := metav1.ListMeta{ResourceVersion: version}
	m, err := meta.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode metadata of %s: %w", k.ListGVK().Kind, err)
	}
	// Every list of the API has its metadata in field 1 and its items in field 2.
	first := append(appendField(nil, 1, len(m)), m...)
	size := len(first)
	body := make([][]byte, 0, 2*len(items)+3)
	for _, item := range items {
		lead := appendField(nil, 2, len(item))
		size += len(lead) + len(item)
		body = append(body, lead, item)
	}
	head, tail, err := protobufEnvelope(k.ListGVK(), size)
	if err != nil {
		return nil, err
	}
	pieces := make([][]byte, 0, len(body)+3)
	pieces = append(pieces, head, first)
	pieces = append(pieces, body...)
	return append(pieces, tail), nil
}

var (
	comma    = []byte(",")
	listEnd  = []byte("]}\n")
	frameEnd = []byte("}\n")
)

// appendFrameHead appends what stands before the object in a watch event: of type
// t, with an object of size bytes in the format f.
func appendFrameHead(b []byte, f format, t watch.EventType, size int) []byte {
	if f == formatJSON {
		b = append(b, `{"type":"`...)
		b = append(b, t...)
		return append(b, `","object":`...)
	}
	// A length of four bytes, then metav1.WatchEvent (1: type, 2: RawExtension
	// (1: the object)).
	extension := fieldSize(size)
	event := fieldSize(len(t)) + fieldSize(extension)
	b = binary.BigEndian.AppendUint32(b, uint32(event))
	b = appendField(b, 1, len(t))
	b = append(b, t...)
	b = appendField(b, 2, extension)
	return appendField(b, 1, size)
}

// fieldSize is the size of a length-delimited field of a small number.
func fieldSize(content int) int {
	size := 1 + content
	for n := content; ; n >>= 7 {
		size++
		if n < 0x80 {
			return size
		}
	}
}

// frameTail is what stands after the object in a watch event.
func frameTail(f format) []byte {
	if f == formatJSON {
		return frameEnd
	}
	return nil
}
