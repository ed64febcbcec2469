package provisioner

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// The library registers types in client-go's scheme whenever a controller is made, which is
// each time that Kip begins to lead. All clients read that scheme without a lock, those too
// that work while Kip does not lead: Go ends a process whose map is read and written at
// once. So the library gets a scheme of its own, under the name that it knows. Clients go on
// with the one that they were compiled with, in scheme.Codecs and scheme.ParameterCodec, which
// nothing writes to any more. It has to be done before any goroutine reads the name.
func init() { scheme.Scheme = newScheme() }

// newScheme returns a scheme like client-go's.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	return s
}
