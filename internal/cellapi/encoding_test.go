package cellapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/elotl/kip/internal/watches"
)

func allKinds() []*watches.Kind {
	kinds := []*watches.Kind{nodeKind, leaseKind, csiNodeKind, podKind, secretKind, configMapKind}
	return append(kinds, watches.SharedKinds()...)
}

func sample(t testing.TB, k *watches.Kind, name string) *watches.Object {
	t.Helper()
	o := k.New()
	o.SetName(name)
	o.SetNamespace("some")
	o.SetResourceVersion("42")
	o.SetLabels(map[string]string{"a": "b"})
	stored, err := watches.NewObject(k, o)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// The library's own codecs read what is composed here by hand.
func TestListsAndFramesDecode(t *testing.T) {
	for _, k := range allKinds() {
		for f := range format(watches.Forms) {
			t.Run(k.Name+" "+f.mediaType(), func(t *testing.T) {
				for n := range 3 {
					var objects []*watches.Object
					for i := range n {
						objects = append(objects, sample(t, k, fmt.Sprintf("o%d", i)))
					}
					pieces, err := listPieces(f, k, objects, 77)
					if err != nil {
						t.Fatal(err)
					}
					list, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(slices.Concat(pieces...), nil, nil)
					if err != nil {
						t.Fatalf("list of %d: %v", n, err)
					}
					if *gvk != k.ListGVK() {
						t.Errorf("the list is a %v, want %v", gvk, k.ListGVK())
					}
					accessor, err := meta.ListAccessor(list)
					if err != nil || accessor.GetResourceVersion() != "77" {
						t.Errorf("resourceVersion %q (%v), want 77", accessor.GetResourceVersion(), err)
					}
					items, err := meta.ExtractList(list)
					if err != nil || len(items) != n {
						t.Fatalf("%d items (%v), want %d", len(items), err, n)
					}
					for i, item := range items {
						// Items of a protobuf list carry no kind.
						item.GetObjectKind().SetGroupVersionKind(k.GVK())
						if !equality.Semantic.DeepEqual(item, objects[i].APIObject) {
							t.Errorf("item %d is %v, want %v", i, item, objects[i].APIObject)
						}
					}
				}

				o := sample(t, k, "one")
				if k == secretKind {
					// Sizes of more than one byte, and of more than two.
					o.APIObject.(*corev1.Secret).Data = map[string][]byte{"big": make([]byte, 40_000)}
				}
				e, err := formOf(o, f)
				if err != nil {
					t.Fatal(err)
				}
				var frames []byte
				for range 2 {
					frames = appendFrameHead(frames, f, watch.Modified, len(e.Whole))
					frames = append(frames, e.Whole...)
					frames = append(frames, frameTail(f)...)
				}
				serializer, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), f.mediaType())
				reader := serializer.StreamSerializer.Framer.NewFrameReader(io.NopCloser(bytes.NewReader(frames)))
				buffer := make([]byte, 256<<10)
				for range 2 {
					n, err := reader.Read(buffer)
					if err != nil {
						t.Fatal(err)
					}
					decoded, _, err := serializer.StreamSerializer.Serializer.Decode(buffer[:n], nil, &metav1.WatchEvent{})
					if err != nil {
						t.Fatal(err)
					}
					event := decoded.(*metav1.WatchEvent)
					if event.Type != "MODIFIED" {
						t.Errorf("event type %q", event.Type)
					}
					got, _, err := scheme.Codecs.UniversalDeserializer().Decode(event.Object.Raw, nil, nil)
					if err != nil {
						t.Fatal(err)
					}
					got.GetObjectKind().SetGroupVersionKind(k.GVK())
					if !equality.Semantic.DeepEqual(got, o.APIObject) {
						t.Errorf("the frame holds %v, want %v", got, o.APIObject)
					}
				}
			})
		}
	}
}

func TestAcceptedFormat(t *testing.T) {
	for accept, want := range map[string]string{
		"":                                    "application/json",
		"*/*":                                 "application/json",
		"application/*":                       "application/json",
		"application/json":                    "application/json",
		"application/vnd.kubernetes.protobuf": "application/vnd.kubernetes.protobuf",
		"application/vnd.kubernetes.protobuf,application/json":             "application/vnd.kubernetes.protobuf",
		"application/json;q=0.1,application/vnd.kubernetes.protobuf;q=0.9": "application/vnd.kubernetes.protobuf",
		"application/cbor,application/json":                                "application/json",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json":    "application/json",
		"application/vnd.kubernetes.protobuf;stream=watch":                 "application/vnd.kubernetes.protobuf",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io":     "",
		"application/cbor": "",
		"text/html":        "",
	} {
		f, ok := accepted(http.Header{"Accept": {accept}})
		if ok != (want != "") || (ok && f.mediaType() != want) {
			t.Errorf("Accept %q gives %q %t, want %q", accept, f.mediaType(), ok, want)
		}
	}
}

// All who read a version of an object are given the same bytes.
func TestObjectIsEncodedOnce(t *testing.T) {
	for f := range format(watches.Forms) {
		o := sample(t, secretKind, "p")
		var readers sync.WaitGroup
		first := make([]*byte, 64)
		for i := range first {
			readers.Go(func() {
				e, err := formOf(o, f)
				if err != nil {
					t.Error(err)
					return
				}
				pieces, err := listPieces(f, secretKind, []*watches.Object{o}, 1)
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.ContainsFunc(pieces, func(p []byte) bool { return &p[0] == &e.Item[0] }) {
					t.Error("a list holds a copy of the item")
				}
				first[i] = &e.Whole[0]
			})
		}
		readers.Wait()
		for i := range first {
			if first[i] != first[0] {
				t.Fatalf("reader %d was given other bytes than reader 0", i)
			}
		}
	}
}

// discard takes frames like a client that is always ready.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
func (discard) Flush()                      {}

// What one change of a Service costs, told to a thousand watchers: with the
// encoding shared, and with each watcher's own.
func BenchmarkServiceToThousandWatchers(b *testing.B) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s", ResourceVersion: "5"}}
	for i := range 20 {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("port-%d", i), Port: int32(1000 + i)})
	}
	k := watches.SharedKinds()[0]
	for _, shared := range []bool{true, false} {
		b.Run(fmt.Sprintf("shared=%t", shared), func(b *testing.B) {
			b.ReportAllocs()
			out := &stream{w: discard{}, control: http.NewResponseController(discard{}), format: formatProtobuf, kind: k}
			for b.Loop() {
				o, err := watches.NewObject(k, service.DeepCopy())
				if err != nil {
					b.Fatal(err)
				}
				for range 1000 {
					if !shared {
						o = &watches.Object{APIObject: o.APIObject, RV: o.RV}
					}
					out.object(watch.Modified, o)
					if !out.flush() {
						b.Fatal(out.err)
					}
				}
			}
		})
	}
}
