package cellapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watches"
)

// volumeAPI answers what is asked about the claims of the pod, and the volumes that they are bound to.
type volumeAPI struct {
	*base
	pod     *boundPod
	passing *passing
}

// boundVolumes calls f with each volume that a claim of the pod is bound to, and that claim,
// until it returns true. A name other than "" is of the only volume that is looked for.
func (c *volumeAPI) boundVolumes(
	ctx context.Context, name string, f func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) bool,
) error {
	pod, gone := c.pod.lastPod()
	if pod == nil || gone {
		return nil
	}
	// That of the volume first, if it is known: a pod may have many claims.
	claims := slices.SortedFunc(maps.Keys(referencesOf(pod).claims), func(a, b string) int {
		isA, isB := c.pod.claimHas(a, name), c.pod.claimHas(b, name)
		switch {
		case isA && !isB:
			return -1
		case isB && !isA:
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, claim := range claims {
		if !c.pod.names(pod.Namespace, claim) {
			continue
		}
		if found, err := c.boundVolume(ctx, pod.Namespace, claim, name, f); err != nil || found {
			return err
		}
	}
	return nil
}

// boundVolume calls f with the volume of a claim, if it is bound to one, of that name.
func (c *volumeAPI) boundVolume(ctx context.Context, namespace, claim, name string,
	f func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) bool,
) (found bool, err error) {
	done, err := c.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, passWithin) // an API server that hangs keeps no turn of others
	defer cancel()
	core := c.as.client.CoreV1()
	pvc, err := core.PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.pod.noteClaim(claim, pvc.Spec.VolumeName)
	if name != "" && pvc.Spec.VolumeName != name {
		return false, nil
	}
	pv, err := volumes.OfClaim(ctx, core, pvc)
	switch {
	case errors.As(err, new(*volumes.UnboundError)), name == "" && apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return f(pv, pvc), nil
}

// serveVolumeSecret passes the get of a Secret that a CSI volume of the pod names
// for the node: to stage, to publish or to expand it there. It may be in any
// namespace.
func (c *volumeAPI) serveVolumeSecret(w http.ResponseWriter, r *http.Request, a *ask) error {
	named := false
	err := c.boundVolumes(r.Context(), "", func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) bool {
		csi := pv.Spec.CSI
		if csi == nil || c.server.cloudDriver.Attached(pv) {
			return false
		}
		named = slices.ContainsFunc([]*corev1.SecretReference{csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.NodeExpandSecretRef},
			func(ref *corev1.SecretReference) bool {
				return ref != nil && ref.Namespace == a.Namespace && ref.Name == a.Name
			})
		return named
	})
	if err != nil {
		return fmt.Errorf("look for a volume of the pod that names secret %s: %w", watches.Key(a.Namespace, a.Name), err)
	}
	if !named {
		return c.forbidden(a, "its pod does not name it")
	}
	return c.passing.pass(w, r, a, body{}, nil)
}

// serveVolume answers a get of a volume that a claim of the pod is bound to. The
// cell's kubelet sees it its own way: one on a disk of the cloud, which Kip has
// attached, is a local volume there.
func (c *volumeAPI) serveVolume(w http.ResponseWriter, r *http.Request, a *ask) error {
	if a.Subresource != "" || a.Verb != "get" {
		return c.forbidden(a, a.Resource+" can only be read, by name")
	}
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	if pod, _ := c.pod.lastPod(); pod == nil {
		return c.forbidden(a, "its pod does not name it")
	}
	var bound *corev1.PersistentVolume
	var to *corev1.PersistentVolumeClaim
	if err := c.boundVolumes(r.Context(), a.Name, func(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
		bound, to = pv, claim
		return true
	}); err != nil {
		return err
	}
	if bound == nil {
		return c.forbidden(a, "no claim of its pod is bound to it")
	}
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	bound.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolume")) // a client leaves it out
	writeObject(w, f, http.StatusOK, volumes.OnCell(bound, to, c.server.cloudDriver))
	return nil
}

// boundClaim reads a claim that the pod names, and the volume that it is bound to.
func (c *volumeAPI) boundClaim(ctx context.Context, a *ask) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, passWithin)
	defer cancel()
	defer context.AfterFunc(c.lifetime, cancel)()
	core := c.as.client.CoreV1()
	done, err := c.turn(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	claim, err := core.PersistentVolumeClaims(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	pv, err := volumes.OfClaim(ctx, core, claim)
	if errors.As(err, new(*volumes.UnboundError)) {
		return nil, nil, c.forbidden(a, "it is bound to no volume")
	}
	return claim, pv, err
}
