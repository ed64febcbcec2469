package cellapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// podAPI answers what is asked about pods.
type podAPI struct {
	*base
	pod     *boundPod
	passing *passing
	node    *cellNode
}

// servePod answers all that is asked about pods.
func (c *podAPI) servePod(w http.ResponseWriter, r *http.Request, a *ask) error {
	switch {
	case a.Subresource == "" && (a.Verb == "list" || a.Verb == "watch"):
		return c.readPods(w, r, a)
	case a.Subresource == "" && a.Verb == "create":
		return c.refuseMirror(r, a)
	}
	if copy := c.pod.copyOf(a.Namespace, a.Name); copy != nil {
		return c.serveCopy(w, r, a, copy)
	}
	switch {
	case a.Subresource == "" && a.Verb == "get":
		return c.passPodGet(w, r, a)
	case a.Subresource == "" && a.Verb == "delete":
		return c.passPodDelete(w, r, a)
	case a.Subresource == "status" && a.Verb == "patch":
		return c.passPodStatus(w, r, a)
	}
	return c.forbidden(a, "")
}

// readPods answers a list or watch of pods. An empty answer is only given when it
// is true.
func (c *podAPI) readPods(w http.ResponseWriter, r *http.Request, a *ask) error {
	options, err := listOptions(r, a.Verb)
	if err != nil {
		return err
	}
	rv, err := version(options)
	if err != nil {
		return err
	}
	if c.pod.bound() == nil && rv > unboundVersion {
		// This kubelet has been shown a pod, by a Kip before this one. It is
		// not to believe that the pod is gone because its binding has not been
		// restored.
		return notYet("the pod of cell " + c.id)
	}
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	if err := c.pod.knowsCopies(w, r); err != nil {
		return err
	}
	return c.read(w, r, &reader{
		collection: c.pod.pods,
		clock:      c.server.clock,
		namespace:  a.Namespace,
		lifetime:   c.lifetime,
	}, a)
}

// ownPod checks that a is about the cell's pod, and that the pod is not gone.
func (c *podAPI) ownPod(a *ask) (*binding, error) {
	b := c.pod.bound()
	if b == nil || a.Namespace != b.namespace || a.Name != b.name {
		return nil, c.forbidden(a, "it sees only its own pod")
	}
	if _, gone := c.pod.lastPod(); gone {
		return nil, apierrors.NewNotFound(podKind.GroupResource(), a.Name)
	}
	return b, nil
}

func (c *podAPI) passPodGet(w http.ResponseWriter, r *http.Request, a *ask) error {
	b, err := c.ownPod(a)
	if err != nil {
		return err
	}
	return c.passing.pass(w, r, a, body{}, func(answer []byte) error {
		pod, err := decode[*corev1.Pod](answer)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("read the API server's answer: %w", err))
		}
		if pod.UID != b.uid {
			// Another pod of the same name: the cell's own is gone.
			return apierrors.NewNotFound(podKind.GroupResource(), a.Name)
		}
		return nil
	})
}

func podConflict(name string, got string, want types.UID) error {
	return apierrors.NewConflict(podKind.GroupResource(), name, fmt.Errorf("the pod's UID is %q here, the cell's pod is %q", got, want))
}

// passPodDelete passes the deletion of the cell's pod, bound to its UID.
func (c *podAPI) passPodDelete(w http.ResponseWriter, r *http.Request, a *ask) error {
	b, err := c.ownPod(a)
	if err != nil {
		return err
	}
	options, err := deletionOf(r)
	if err != nil {
		return err
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if uid := options.Preconditions.UID; uid != nil && *uid != b.uid {
		return podConflict(a.Name, string(*uid), b.uid)
	}
	options.Preconditions.UID = &b.uid
	options.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"}
	remade, err := json.Marshal(options)
	if err != nil {
		return fmt.Errorf("encode the deletion of pod %s/%s: %w", b.namespace, b.name, err)
	}
	return c.passing.pass(w, r, a, body{mediaType: runtime.ContentTypeJSON, bytes: remade, final: true}, nil)
}

// deletionOf decodes the options of a deletion.
func deletionOf(r *http.Request) (*metav1.DeleteOptions, error) {
	if len(r.URL.Query()) > 0 {
		return nil, apierrors.NewBadRequest("options of a deletion belong into the body")
	}
	sent, err := readBody(r)
	if err != nil || len(sent) == 0 {
		return &metav1.DeleteOptions{}, err
	}
	return decodeOptions(sent)
}

// decodeOptions decodes the options of a deletion, and nothing else.
func decodeOptions(b []byte) (*metav1.DeleteOptions, error) {
	gvk, err := kindOfBody(b)
	if err != nil {
		return nil, err
	}
	if gvk.Kind != "DeleteOptions" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %q, it must be DeleteOptions", cut(gvk.Kind, 64)))
	}
	return decode[*metav1.DeleteOptions](b)
}

// refuseMirror answers a kubelet that wants to make a mirror pod of the static pod
// of a plugin: it does each time that it looks at that.
func (c *podAPI) refuseMirror(r *http.Request, a *ask) error {
	body, err := readBody(r)
	if err != nil {
		return err
	}
	name, annotations, err := metadataOf(body)
	if err != nil || annotations[corev1.MirrorPodAnnotationKey] == "" {
		return c.forbidden(a, "")
	}
	return apierrors.NewForbidden(podKind.GroupResource(), cut(name, 253), fmt.Errorf("the plugins of a cell are nobody's pods"))
}

// metadataOf reads of an object, JSON or protobuf, only its name and annotations:
// quantities, as a pod's, are computed with as they are read.
func metadataOf(b []byte) (name string, annotations map[string]string, err error) {
	var o metav1.PartialObjectMetadata // has its metadata where all objects have theirs
	if rest, ok := bytes.CutPrefix(b, protobufMagic); ok {
		var u runtime.Unknown
		if err := u.Unmarshal(rest); err != nil {
			return "", nil, err
		}
		err = o.Unmarshal(u.Raw)
	} else {
		err = json.Unmarshal(b, &o)
	}
	return o.Name, o.Annotations, err
}
