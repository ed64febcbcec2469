package cellapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/elotl/kip/internal/sanitize"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watches"
)

// maxTrouble bounds what is kept of a kubelet's message about a plugin, in bytes.
const maxTrouble = 512

// CSIDrivers returns the CSI drivers that the cell's kubelet has registered, by its
// CSINode. A kubelet makes that once: it is not known of one that did before this
// process.
func (c *Cell) CSIDrivers() (registered []string, known bool) {
	o := c.csi.current()
	if o == nil {
		return nil, false
	}
	node, ok := o.APIObject.(*storagev1.CSINode)
	if !ok {
		return nil, false
	}
	for _, d := range node.Spec.Drivers {
		registered = append(registered, d.Name)
	}
	return registered, true
}

// PluginTrouble is the last warning of the cell's kubelet about the node plugin of a
// CSI driver, of those with the same reason the one that says most; "" for none.
func (c *Cell) PluginTrouble() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// notePlugin notes what an event says of a plugin. No object of the cluster stands
// for a plugin, so the event goes nowhere else.
func (c *Cell) notePlugin(event watches.APIObject) {
	var kind, reason, message string
	switch e := event.(type) {
	case *corev1.Event:
		kind, reason, message = e.Type, e.Reason, e.Message
	case *eventsv1.Event:
		kind, reason, message = e.Type, e.Reason, e.Note
	}
	if kind != corev1.EventTypeWarning {
		return
	}
	trouble := reason + ": " + message
	trouble = sanitize.Printable(cut(trouble, maxTrouble))
	reason = sanitize.Printable(cut(reason, 128))
	c.mu.Lock()
	defer c.mu.Unlock()
	// A kubelet that has said why it failed goes on to say that it failed.
	if c.trouble == trouble || strings.HasPrefix(c.trouble, reason+": ") && len(trouble) < len(c.trouble) {
		return
	}
	c.trouble = trouble
	if !c.refusals.AllowN(c.server.clock.Now(), 1) {
		return
	}
	c.server.log.Warn("a node plugin does not fare well", "cell", c.id, "reason", reason, "message", trouble)
}

// boundVolumes calls f with each volume that a claim of the pod is bound to, and that claim,
// until it returns true. A name other than "" is of the only volume that is looked for.
func (c *Cell) boundVolumes(ctx context.Context, name string, f func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) bool) error {
	pod, gone := c.lastPod()
	if pod == nil || gone {
		return nil
	}
	// That of the volume first, if it is known: a pod may have many claims.
	claims := slices.SortedFunc(maps.Keys(referencesOf(pod).claims), func(a, b string) int {
		isA, isB := c.claimHas(a, name), c.claimHas(b, name)
		switch {
		case isA && !isB:
			return -1
		case isB && !isA:
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, claim := range claims {
		if !c.names(pod.Namespace, claim) {
			continue
		}
		if found, err := c.boundVolume(ctx, pod.Namespace, claim, name, f); err != nil || found {
			return err
		}
	}
	return nil
}

// boundVolume calls f with the volume of a claim, if it is bound to one, of that name.
func (c *Cell) boundVolume(ctx context.Context, namespace, claim, name string,
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
	c.noteClaim(claim, pvc.Spec.VolumeName)
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

// noteClaim notes the volume that a claim of the pod is bound to, which does not change. It says
// only which claim is asked for first.
func (c *Cell) noteClaim(claim, volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if volume != "" && c.pod != nil && c.pod.claims.Has(claim) {
		c.pod.volumeOf[claim] = volume
	}
}

// claimHas reports whether a claim of the pod was bound to a volume when it was read last.
func (c *Cell) claimHas(claim, volume string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return volume != "" && c.pod != nil && c.pod.volumeOf[claim] == volume
}

// serveVolumeSecret passes the get of a Secret that a CSI volume of the pod names
// for the node: to stage, to publish or to expand it there. It may be in any
// namespace.
func (c *Cell) serveVolumeSecret(w http.ResponseWriter, r *http.Request, a *ask) error {
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
	return c.pass(w, r, a, body{}, nil)
}

// refuseMirror answers a kubelet that wants to make a mirror pod of the static pod
// of a plugin: it does each time that it looks at that.
func (c *Cell) refuseMirror(r *http.Request, a *ask) error {
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
