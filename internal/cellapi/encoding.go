package cellapi

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// format is a media type that this API speaks.
type format int

const (
	formatJSON format = iota
	formatProtobuf
	formats
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

// object is one version of one object. It never changes. Where many cells read it,
// it is written in each format at most once.
type object struct {
	apiObject
	rv uint64
	// mu guards forms, and the object while it is written: a quantity keeps its
	// text.
	mu    sync.Mutex
	forms *[formats]*form // nil where one cell reads it, once or twice
}

type form struct{ whole, item []byte }

// newObject takes over o, which must not be changed by anyone from here on and
// must carry a resource version.
func newObject(k *kind, o apiObject) (*object, error) {
	rv, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s %s: resourceVersion %q is not a number", k.name, key(o.GetNamespace(), o.GetName()), o.GetResourceVersion())
	}
	o.GetObjectKind().SetGroupVersionKind(k.gvk())
	object := &object{apiObject: o, rv: rv}
	if !k.ofOneCell {
		object.forms = new([formats]*form)
	}
	return object, nil
}

// at returns a copy of the object that carries another resource version.
func (o *object) at(rv uint64) *object {
	c := o.DeepCopyObject().(apiObject)
	c.SetResourceVersion(strconv.FormatUint(rv, 10))
	other := &object{apiObject: c, rv: rv}
	if o.forms != nil {
		other.forms = new([formats]*form)
	}
	return other
}

func (o *object) form(f format) (*form, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forms != nil && o.forms[f] != nil {
		return o.forms[f], nil
	}
	whole, item, err := encodeParts(f, o.apiObject)
	if err != nil {
		return nil, err
	}
	e := &form{whole, item}
	if o.forms != nil {
		o.forms[f] = e
	}
	return e, nil
}

// listPieces returns a list in the format f as pieces to be written one after
// another; the items' bytes are the shared ones.
func listPieces(f format, k *kind, objects []*object, rv uint64) ([][]byte, error) {
	version := strconv.FormatUint(rv, 10)
	items := make([][]byte, len(objects))
	for i, o := range objects {
		e, err := o.form(f)
		if err != nil {
			return nil, err
		}
		items[i] = e.item
	}
	if f == formatJSON {
		apiVersion, kindName := k.listGVK().ToAPIVersionAndKind()
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
		return nil, fmt.Errorf("encode metadata of %s: %w", k.listGVK().Kind, err)
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
	head, tail, err := protobufEnvelope(k.listGVK(), size)
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
