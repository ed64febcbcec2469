package hollow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What follows are the requests that only a whole cell makes: a pod lives without
// them. One that fails is logged, and not repeated, unless it says so.

func (k *kubelet) try(what string, err error) bool {
	if err != nil && k.ctx.Err() == nil {
		k.m.log.Debug(what, "err", err)
	}
	return err == nil
}

// createNode is what a kubelet begins with. It is told that there is one.
func (k *kubelet) createNode() {
	node := corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: k.nodeName, Labels: k.nodeLabels()},
	}
	if err := k.ask(k.ctx, http.MethodPost, "/api/v1/nodes", jsonBody, node, nil); refused(err) != http.StatusConflict {
		k.try("node not created", err)
	}
}

func (k *kubelet) nodeLabels() map[string]string {
	return map[string]string{
		corev1.LabelHostname: k.nodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": runtime.GOARCH,
	}
}

// labelNode is the patch by which a kubelet makes a node that it found its own.
func (k *kubelet) labelNode() error {
	patch := map[string]any{"metadata": map[string]any{
		"labels": k.nodeLabels(), "annotations": map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
	}}
	return k.ask(k.ctx, http.MethodPatch, k.nodePath()+"/status", mergePatch, patch, nil)
}

// createCSINode makes the node's CSINode, and has Kip say that there are no
// ResourceSlices.
func (k *kubelet) createCSINode() {
	const path = "/apis/storage.k8s.io/v1/csinodes"
	if refused(k.ask(k.ctx, http.MethodGet, path+"/"+k.nodeName, "", nil, nil)) == http.StatusNotFound {
		k.try("node not read", k.ask(k.ctx, http.MethodGet, k.nodePath(), "", nil, nil))
		k.try("CSINode not created", k.ask(k.ctx, http.MethodPost, path, jsonBody, storagev1.CSINode{
			TypeMeta: metav1.TypeMeta{Kind: "CSINode", APIVersion: "storage.k8s.io/v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name: k.nodeName, OwnerReferences: k.owned(),
				Annotations: map[string]string{"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs," +
					"kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd," +
					"kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"},
			},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}},
		}, nil))
	}
	if err := k.ask(k.ctx, http.MethodDelete, "/apis/resource.k8s.io/v1/resourceslices", "", nil, nil); refused(err) != http.StatusNotFound {
		k.try("ResourceSlices not deleted", err)
	}
}

func (k *kubelet) owned() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: k.nodeName, UID: "00000000-0000-0000-0000-000000000000"}}
}

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"

func (k *kubelet) createLease() {
	if refused(k.ask(k.ctx, http.MethodGet, leasesPath+"/"+k.nodeName, "", nil, nil)) != http.StatusNotFound {
		return
	}
	k.try("node not read", k.ask(k.ctx, http.MethodGet, k.nodePath(), "", nil, nil))
	seconds, now := int32(leaseSeconds), metav1.NewMicroTime(k.clock.Now())
	k.try("lease not created", k.ask(k.ctx, http.MethodPost, leasesPath, jsonBody, coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: k.nodeName, Namespace: corev1.NamespaceNodeLease, OwnerReferences: k.owned()},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.nodeName, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, nil))
}

// announceNode is what both parts tell of their start.
func (k *kubelet) announceNode() {
	now := k.clock.Now()
	const path = "/apis/events.k8s.io/v1/namespaces/" + metav1.NamespaceDefault + "/events"
	k.try("event not reported", k.askAs(k.ctx, byKubeProxy, http.MethodPost, path, jsonBody, eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{Kind: "Event", APIVersion: "events.k8s.io/v1"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: k.eventName(k.nodeName)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: byKubeProxy,
		ReportingInstance:   k.nodeName,
		Action:              "StartKubeProxy",
		Reason:              "Starting",
		Type:                corev1.EventTypeNormal,
		Regarding:           corev1.ObjectReference{Kind: "Node", Name: k.nodeName},
	}, nil))
	about := corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: k.nodeName}
	for _, e := range [][2]string{
		{"Starting", "Starting kubelet."},
		{"NodeAllocatableEnforced", "Updated Node Allocatable limit across pods"},
		{"NodeHasSufficientMemory", "Node " + k.nodeName + " status is now: NodeHasSufficientMemory"},
		{"NodeHasNoDiskPressure", "Node " + k.nodeName + " status is now: NodeHasNoDiskPressure"},
		{"NodeHasSufficientPID", "Node " + k.nodeName + " status is now: NodeHasSufficientPID"},
		{"NodeReady", "Node " + k.nodeName + " status is now: NodeReady"},
	} {
		k.reportEvent(k.ctx, about, e[0], e[1])
	}
}

func (k *kubelet) eventName(of string) string { return fmt.Sprintf("%s.%016x", of, rand.Uint64()) }

// announce tells of the pod's containers.
func (k *kubelet) announce(w *workload, containers []container, reasons ...string) {
	if !k.whole() {
		return
	}
	k.spawn(func() {
		for _, c := range containers {
			for _, reason := range reasons {
				about := corev1.ObjectReference{
					Kind:            "Pod",
					APIVersion:      "v1",
					Namespace:       w.namespace,
					Name:            w.name,
					UID:             w.uid,
					ResourceVersion: w.seenVersion,
					FieldPath:       fmt.Sprintf("spec.containers{%s}", c.name),
				}
				k.reportEvent(k.ctx, about, reason, messages[reason])
			}
		}
	})
}

// messages are about as long as a kubelet's.
var messages = map[string]string{
	"Pulled":  "Container image already present on machine and can be accessed by the pod",
	"Created": "Container created",
	"Started": "Container started",
	"Killing": "Stopping container",
}

// reportEvent reports one event.
func (k *kubelet) reportEvent(ctx context.Context, about corev1.ObjectReference, reason, message string) {
	now, namespace := metav1.NewTime(k.clock.Now().Truncate(time.Second)), about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	k.try("event not reported", k.ask(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/events", jsonBody, corev1.Event{
		TypeMeta:            metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: k.eventName(about.Name)},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Type:                corev1.EventTypeNormal,
		InvolvedObject:      about,
		Reason:              reason,
		Message:             message,
		Source:              corev1.EventSource{Component: byKubelet, Host: k.nodeName},
		ReportingController: byKubelet,
		ReportingInstance:   k.nodeName,
	}, nil))
}

// reference is an object that a pod names.
type reference struct{ resource, name string }

// referencesOf are the ConfigMaps and Secrets that a kubelet watches for the pod.
func referencesOf(pod *corev1.Pod) []reference {
	found := map[reference]bool{}
	add := func(resource, name string) {
		if name != "" {
			found[reference{resource, name}] = true
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add("secrets", s.Name)
	}
	for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		for _, e := range c.Env {
			if from := e.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				add("configmaps", from.ConfigMapKeyRef.Name)
			} else if from != nil && from.SecretKeyRef != nil {
				add("secrets", from.SecretKeyRef.Name)
			}
		}
		for _, e := range c.EnvFrom {
			if e.ConfigMapRef != nil {
				add("configmaps", e.ConfigMapRef.Name)
			} else if e.SecretRef != nil {
				add("secrets", e.SecretRef.Name)
			}
		}
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			add("configmaps", v.ConfigMap.Name)
		case v.Secret != nil:
			add("secrets", v.Secret.SecretName)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					add("configmaps", s.ConfigMap.Name)
				} else if s.Secret != nil {
					add("secrets", s.Secret.Name)
				}
			}
		}
	}
	all := make([]reference, 0, len(found))
	for r := range found {
		all = append(all, r)
	}
	return all
}

// tokenOf is how long the first token lasts that the pod's volumes ask for, in
// seconds; 0 if none do.
func tokenOf(pod *corev1.Pod) int64 {
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if t := s.ServiceAccountToken; t != nil && t.ExpirationSeconds != nil {
				return *t.ExpirationSeconds
			}
		}
	}
	return 0
}

// prepare does what a kubelet does for a pod's volumes: it watches what the pod
// names and has a token made. Then the pod goes on.
func (k *kubelet) prepare(w *workload) {
	for _, r := range w.references {
		path := "/api/v1/namespaces/" + w.namespace + "/" + r.resource
		k.spawn(func() { k.follow(w.lifetime, watch{by: byKubelet, path: path, fields: "metadata.name=" + r.name}, nil) })
	}
	for w.tokenSeconds > 0 && k.requestToken(w) != nil {
		// No pod starts without.
		if !sleep(w.lifetime, k.clock, retryAfter) {
			return
		}
	}
	m := k.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pod == w && w.phase == starting && !w.deleted {
		k.later(stepping, m.fleet.cfg.StartTime, k.step)
	}
}

// requestToken has a token made, and plans the next.
func (k *kubelet) requestToken(w *workload) error {
	var made authenticationv1.TokenRequest
	path := "/api/v1/namespaces/" + w.namespace + "/serviceaccounts/" + w.serviceAccount + "/token"
	if err := k.ask(w.lifetime, http.MethodPost, path, jsonBody,
		authenticationv1.TokenRequest{
			TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"},
			Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: &w.tokenSeconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{
					Kind:       "Pod",
					APIVersion: "v1",
					Name:       w.name,
					UID:        w.uid,
				},
			},
		}, &made); err != nil {
		k.try("no token", err)
		return err
	}
	// When a fifth of its time is left, and up to 10 s sooner.
	left := made.Status.ExpirationTimestamp.Sub(k.clock.Now()) - time.Duration(w.tokenSeconds)*time.Second/5 - rand.N(10*time.Second)
	k.later(refreshing, max(left, time.Minute), func() { k.refreshToken(w) })
	return nil
}

func (k *kubelet) refreshToken(w *workload) {
	if k.requestToken(w) != nil && w.lifetime.Err() == nil {
		k.later(refreshing, time.Minute, func() { k.refreshToken(w) })
	}
}
