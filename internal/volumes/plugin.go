package volumes

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/agentapi"
)

// Plugin is the node plugin of a CSI driver, as a cell runs it.
type Plugin struct {
	Driver string
	// Beside says that it runs as a copy of the pod of DaemonSet, and has no static pod.
	Beside    bool
	DaemonSet cache.ObjectName
	// Volume is one that is of the driver.
	Volume string
	// Pod is the static pod of the cell's kubelet, JSON.
	Pod []byte
	// Requests is what the plugin takes of the machine.
	Requests corev1.ResourceList
}

// Drivers are the CSI drivers whose node plugins run on cells.
type Drivers struct {
	// DaemonSets are those that ship the plugins, by the drivers' names.
	DaemonSets map[string]cache.ObjectName
	// Beside has the drivers whose plugins run as copies of the DaemonSet's own pod.
	Beside map[string]bool
	// CSIDriver and DaemonSet read one object.
	CSIDriver func(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	DaemonSet func(ctx context.Context, name cache.ObjectName) (*appsv1.DaemonSet, error)
}

// check returns an *UnsupportedError for a driver that no cell has.
func (d Drivers) check(volume, driver string) error {
	if _, has := d.DaemonSets[driver]; has {
		return nil
	}
	return &UnsupportedError{volume, fmt.Sprintf("CSI driver %s has no node plugin on cells: "+
		"an operator can name its DaemonSet in cells.csiDrivers of provider.yaml, if its CSIDriver says attachRequired: false", driver)}
}

// plugin returns the node plugin of a driver that a volume of a pod is of.
func (d Drivers) plugin(ctx context.Context, volume, driver string) (Plugin, error) {
	if err := d.check(volume, driver); err != nil {
		return Plugin{}, err
	}
	object, err := d.CSIDriver(ctx, driver)
	switch {
	case apierrors.IsNotFound(err):
		return Plugin{}, &NotReadyError{volume, fmt.Sprintf("there is no CSIDriver %s: is the driver installed?", driver)}
	case err != nil:
		return Plugin{}, fmt.Errorf("read CSIDriver %s: %w", driver, err)
	case object.Spec.AttachRequired == nil || *object.Spec.AttachRequired:
		return Plugin{},
			&UnsupportedError{volume, fmt.Sprintf("CSIDriver %s has spec.attachRequired: true, and nobody attaches its volumes to cells, "+
				"which are one node to Kubernetes: use a StorageClass with the provisioner %s, or a driver that needs no attaching", driver, Driver)}
	}
	name := d.DaemonSets[driver]
	set, err := d.DaemonSet(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return Plugin{},
			&NotReadyError{volume,
				fmt.Sprintf("there is no DaemonSet %s with the node plugin of CSI driver %s: see cells.csiDrivers in provider.yaml", name, driver)}
	case err != nil:
		return Plugin{}, fmt.Errorf("read DaemonSet %s: %w", name, err)
	}
	if d.Beside[driver] {
		return Plugin{Driver: driver, Beside: true, DaemonSet: name, Volume: volume}, nil
	}
	pod, err := staticPod(driver, set)
	if err != nil {
		return Plugin{}, &UnsupportedError{volume, fmt.Sprintf("the node plugin of CSI driver %s in DaemonSet %s %v", driver, name, err)}
	}
	encoded, err := json.Marshal(pod)
	if err != nil {
		return Plugin{}, fmt.Errorf("encode the node plugin of CSI driver %s: %w", driver, err)
	}
	return Plugin{Driver: driver, Pod: encoded, Requests: resource.PodRequests(pod, resource.PodResourcesOptions{})}, nil
}

// staticPod returns the pod of a DaemonSet as a static pod of a cell's kubelet. It
// is on the machine's network, since the pod's address is the pod's, and reads
// nothing of the Kubernetes API: kubelets refuse static pods that would. What is
// optional is left out; what is not is the error.
func staticPod(driver string, set *appsv1.DaemonSet) (*corev1.Pod, error) {
	spec := set.Spec.Template.Spec.DeepCopy()
	// Where it runs has been decided.
	spec.NodeName, spec.NodeSelector, spec.Affinity, spec.Tolerations, spec.TopologySpreadConstraints = "", nil, nil, nil, nil
	spec.SchedulerName, spec.PriorityClassName, spec.Priority, spec.PreemptionPolicy = "", "", nil, nil
	spec.ServiceAccountName, spec.DeprecatedServiceAccount, spec.AutomountServiceAccountToken, spec.ImagePullSecrets = "", "", nil, nil
	spec.HostNetwork, spec.RestartPolicy = true, corev1.RestartPolicyAlways
	if len(spec.ResourceClaims) > 0 {
		return nil, fmt.Errorf("has spec.resourceClaims, which cells do not have")
	}
	for i := range spec.Volumes {
		if err := withoutAPI(&spec.Volumes[i]); err != nil {
			return nil, err
		}
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			if err := withoutReferences(&list[i]); err != nil {
				return nil, err
			}
		}
	}
	spec.Priority = ptr.To[int32](agentapi.PluginPriority) // no admission gives it one
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   agentapi.PluginNamespace,
			Name:        agentapi.PluginPod(driver),
			Labels:      set.Spec.Template.Labels,
			Annotations: set.Spec.Template.Annotations,
		},
		Spec: *spec,
	}, nil
}

// withoutAPI makes a volume of a plugin one for which nobody asks the API: empty,
// if it may be.
func withoutAPI(v *corev1.Volume) error {
	optional := func(o *bool) bool { return o != nil && *o }
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	refused := func(what string) error {
		return fmt.Errorf("has a volume %s of %s, and a static pod has nothing of the Kubernetes API: see beside in cells.csiDrivers", v.Name, what)
	}
	switch kind := kindOf(v.VolumeSource); {
	case v.Secret != nil && optional(v.Secret.Optional), v.ConfigMap != nil && optional(v.ConfigMap.Optional):
		v.VolumeSource = empty
	case v.Secret != nil:
		return refused("Secret " + v.Secret.SecretName)
	case v.ConfigMap != nil:
		return refused("ConfigMap " + v.ConfigMap.Name)
	case v.Projected != nil:
		var kept []corev1.VolumeProjection
		for _, s := range v.Projected.Sources {
			switch {
			case s.DownwardAPI != nil:
				kept = append(kept, s)
			case s.Secret != nil && optional(s.Secret.Optional), s.ConfigMap != nil && optional(s.ConfigMap.Optional):
			case s.ServiceAccountToken != nil:
				return refused("a service account's token")
			default:
				return refused("Secrets or ConfigMaps")
			}
		}
		if v.Projected.Sources = kept; len(kept) == 0 {
			v.VolumeSource = empty
		}
	case kind == "", v.EmptyDir != nil, v.HostPath != nil, v.DownwardAPI != nil, v.Image != nil, v.NFS != nil:
	default:
		return refused("kind " + kind)
	}
	return nil
}

// withoutReferences does the same for a container's environment.
func withoutReferences(c *corev1.Container) error {
	optional := func(o *bool) bool { return o != nil && *o }
	var env []corev1.EnvVar
	for _, e := range c.Env {
		from := e.ValueFrom
		switch {
		case from == nil || from.SecretKeyRef == nil && from.ConfigMapKeyRef == nil:
			env = append(env, e)
		case from.SecretKeyRef != nil && !optional(from.SecretKeyRef.Optional), from.ConfigMapKeyRef != nil &&
			!optional(from.ConfigMapKeyRef.Optional):
			return fmt.Errorf("has the variable %s of container %s from a Secret or ConfigMap, and a static pod has nothing of the Kubernetes API: see beside in cells.csiDrivers", e.Name, c.Name)
		}
	}
	c.Env = env
	for _, e := range c.EnvFrom {
		if e.SecretRef != nil && !optional(e.SecretRef.Optional) || e.ConfigMapRef != nil && !optional(e.ConfigMapRef.Optional) {
			return fmt.Errorf("has variables of container %s from a Secret or ConfigMap, and a static pod has nothing of the Kubernetes API: see beside in cells.csiDrivers", c.Name)
		}
	}
	c.EnvFrom = nil
	return nil
}
