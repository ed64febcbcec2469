package provisioner

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// With -race: clients decode while Kip begins to lead again.
func TestWhatTheLibraryRegistersDisturbsNoClient(t *testing.T) {
	decode := scheme.Codecs.UniversalDeserializer()
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	began := make(chan struct{})
	clients.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			o, _, err := decode.Decode([]byte(`{"apiVersion":"v1","kind":"Event"}`), nil, nil)
			if _, is := o.(*corev1.Event); !is || err != nil {
				t.Errorf("decoded is %T, %v", o, err)
				return
			}
			if n == 0 {
				close(began)
			}
		}
	})
	<-began
	for range 100 { // as the library does for each controller
		if err := corev1.AddToScheme(scheme.Scheme); err != nil {
			t.Fatal(err)
		}
	}
}
