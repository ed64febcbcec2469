// Package manifest owns the applying of YAML documents to an API server, as
// `kubectl apply --server-side` does. It knows no particular kind.
package manifest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Parse returns the objects of a stream of YAML documents, in their order.
func Parse(doc []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(doc)))
	for n := 1; ; n++ {
		one, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read document %d: %w", n, err)
		}
		var u unstructured.Unstructured
		if err := yaml.UnmarshalStrict(one, &u.Object); err != nil {
			return nil, fmt.Errorf("parse document %d: %w", n, err)
		}
		if len(u.Object) == 0 {
			continue // nothing but comments
		}
		if u.GetAPIVersion() == "" || u.GetKind() == "" || u.GetName() == "" {
			return nil, fmt.Errorf("document %d: apiVersion %q, kind %q, metadata.name %q: all three are needed", n, u.GetAPIVersion(),
				u.GetKind(), u.GetName())
		}
		objects = append(objects, &u)
	}
}

// Apply makes the objects of doc exist as they are written there, in their
// order, as the given field manager, and returns them as the server has them.
func Apply(ctx context.Context, cfg *rest.Config, fieldManager string, doc []byte) ([]*unstructured.Unstructured, error) {
	objects, err := Parse(doc)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a discovery client: %w", err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for i, u := range objects {
		gvk := u.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return nil, fmt.Errorf("find %s on the server: %w", gvk, err)
		}
		var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			if u.GetNamespace() == "" {
				u.SetNamespace(metav1.NamespaceDefault)
			}
			resource = client.Resource(mapping.Resource).Namespace(u.GetNamespace())
		}
		applied, err := resource.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return nil, fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		objects[i] = applied
	}
	return objects, nil
}
