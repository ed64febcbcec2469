package cellapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/sanitize"
)

const (
	// toldRate limits the Events that say that a pod's images cannot be pulled. Their
	// messages differ, as by the number of a request.
	toldRate = 1. / 300
	// maxRepository bounds the name of a repository in bytes (OCI Distribution
	// Specification, "Pulling manifests").
	maxRepository = 255
	// maxReason bounds what such an Event says, in bytes: the API server takes 1024.
	maxReason = 900
)

// imageCredentials is the resource of agentapi.PathImageCredentials.
var imageCredentials = schema.GroupVersionResource{Group: "kip.elotl.co", Version: "v1", Resource: "imagecredentials"}

// ImageCredentials has what pulls images.
type ImageCredentials interface {
	// Get returns what pulls from a repository of a registry, which is a host, and at most
	// from the others of it that are named. asker is the cell, so that none takes the turns of
	// others. It waits no longer than ctx, may be called at the same time, and however often it
	// is for the same. Its error is for people.
	Get(ctx context.Context, asker, registry, repository string, named []string) (agentapi.ImageCredentials, error)
}

// Recorder reports Events to the owners of pods. Several goroutines use it at a time, and it
// does not block.
type Recorder interface {
	Event(pod apiv1.PodReference, e events.Event)
}

// imageRef is where an image is: its name without tag and digest.
type imageRef struct{ registry, repository string }

// forms of an image's name (OCI Distribution Specification, "Pulling manifests"). No right
// takes any of their characters for more than itself.
var (
	registryForm   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+(:[0-9]+)?$`)
	repositoryForm = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
)

// imageRefOf is where an image is; nothing, and false, for a name without a registry, or of
// another form.
func imageRefOf(image string) (imageRef, bool) {
	if len(image) > agentapi.MaxImage {
		return imageRef{}, false
	}
	name, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	registry, repository, _ := strings.Cut(name, "/")
	ok := len(registry) <= maxRepository && registryForm.MatchString(registry) &&
		len(repository) <= maxRepository && repositoryForm.MatchString(repository)
	if !ok {
		return imageRef{}, false
	}
	return imageRef{registry, repository}, true
}

// imagesOf are all images that a pod names.
func imagesOf(pod *corev1.Pod) (all []string) {
	s := pod.Spec
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		all = append(all, c.Image)
	}
	for _, c := range s.EphemeralContainers {
		all = append(all, c.Image)
	}
	for _, v := range s.Volumes {
		if v.Image != nil {
			all = append(all, v.Image.Reference)
		}
	}
	return all
}

// imageAPI answers with what pulls the images of the pod.
type imageAPI struct {
	*base
	pod  *boundPod
	told *rate.Limiter // Events about it
}

// serveImageCredentials answers with what pulls one image of the pod. Which images those are
// is read of the pod as the API server has it, never of what the cell says.
func (c *imageAPI) serveImageCredentials(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Verb != "create" || a.Subresource != "" || a.Namespace != "" {
		return c.forbidden(a, "")
	}
	if !c.credentials.AllowN(c.server.clock.Now(), 1) {
		return overBudget(limitCredentials, "cell %s asks more than %d time a second for what pulls images", c.id, int(c.credentials.Limit()))
	}
	sent, err := readBody(r)
	if err != nil {
		return err
	}
	var asked agentapi.ImageRequest
	if err := json.Unmarshal(sent, &asked); err != nil {
		return apierrors.NewBadRequest("decode the body: " + err.Error())
	}
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	pods := c.pod.shownPods()
	if len(pods) == 0 {
		return c.forbidden(a, "it has no pod")
	}
	pod, image, named := namedByAny(pods, asked.Image)
	if pod == nil {
		return c.forbidden(a, fmt.Sprintf("its pod does not name the image %s", sanitize.Printable(cut(asked.Image, 256))))
	}
	if c.server.images == nil {
		return apierrors.NewServiceUnavailable("this cloud has no credentials for images")
	}
	rests(w)
	got, err := c.server.images.Get(r.Context(), c.id, image.registry, image.repository, named)
	if err != nil {
		if r.Context().Err() == nil && c.pod.isOwn(pod) { // of a copy its kubelet tells
			c.tellOfImage(pod, image, err)
		}
		return apierrors.NewServiceUnavailable("there are no credentials for this image: an Event of the pod says why")
	}
	answer, err := json.Marshal(got)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	defer deadline(w)()
	_, _ = w.Write(answer) // or the client is gone
	return nil
}

// namedByAny returns the first pod that names an image, with what namedBy finds; nil for none.
func namedByAny(pods []*corev1.Pod, image string) (by *corev1.Pod, found imageRef, named []string) {
	for _, pod := range pods {
		if found, named, ok := namedBy(pod, image); ok {
			return pod, found, named
		}
	}
	return nil, imageRef{}, nil
}

// namedBy finds where an image is that the pod names, and which repositories of the same
// registry it names besides.
func namedBy(pod *corev1.Pod, image string) (found imageRef, named []string, ok bool) {
	found, is := imageRefOf(image)
	if !is {
		return imageRef{}, nil, false
	}
	for _, name := range imagesOf(pod) {
		other, is := imageRefOf(name)
		if !is || other.registry != found.registry {
			continue
		}
		named = append(named, other.repository)
		ok = ok || other == found
	}
	return found, named, ok
}

// tellOfImage tells the pod's owner that there are no credentials. A pod with pull secrets
// may do without: then only a kubelet that cannot pull says so.
func (c *imageAPI) tellOfImage(pod *corev1.Pod, image imageRef, err error) {
	if len(pod.Spec.ImagePullSecrets) > 0 || !c.told.AllowN(c.server.clock.Now(), 1) {
		return
	}
	e := events.NewNoImageCredentials(image.registry+"/"+image.repository, err)
	e.Message = cut(e.Message, maxReason)
	c.server.events.Event(apiv1.Ref(pod), e)
}
