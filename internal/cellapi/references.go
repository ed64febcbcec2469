package cellapi

import (
	"slices"

	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// references are the names of objects that a pod's spec says its kubelet needs,
// all in the pod's namespace.
type references struct {
	secrets    sets.Set[string]
	configMaps sets.Set[string]
	claims     sets.Set[string]
	// trustBundles says that a volume has trust bundles of the cluster.
	trustBundles bool
}

// referencesOf returns what the pod names: in its volumes (projected and CSI ones
// included), the environment of all its containers, and its pull secrets.
func referencesOf(pod *corev1.Pod) references {
	refs := references{secrets: sets.New[string](), configMaps: sets.New[string](), claims: sets.New[string]()}
	for i := range pod.Spec.ImagePullSecrets {
		refs.local(&pod.Spec.ImagePullSecrets[i])
	}
	for _, c := range pod.Spec.InitContainers {
		refs.environment(c.Env, c.EnvFrom)
	}
	for _, c := range pod.Spec.Containers {
		refs.environment(c.Env, c.EnvFrom)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		refs.environment(c.Env, c.EnvFrom)
	}
	refs.volumes(pod)
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil {
			refs.trustBundles = refs.trustBundles || slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
				return s.ClusterTrustBundle != nil
			})
		}
	}
	return refs
}

// add notes a name, if it is one.
func add(set sets.Set[string], name string) {
	if name != "" {
		set.Insert(name)
	}
}

func (refs references) local(ref *corev1.LocalObjectReference) {
	if ref != nil {
		add(refs.secrets, ref.Name)
	}
}

func (refs references) environment(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add(refs.secrets, r.Name)
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add(refs.configMaps, r.Name)
		}
	}
	for _, e := range from {
		if e.SecretRef != nil {
			add(refs.secrets, e.SecretRef.Name)
		}
		if e.ConfigMapRef != nil {
			add(refs.configMaps, e.ConfigMapRef.Name)
		}
	}
}

func (refs references) volumes(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.Secret != nil:
			add(refs.secrets, v.Secret.SecretName)
		case v.ConfigMap != nil:
			add(refs.configMaps, v.ConfigMap.Name)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					add(refs.secrets, s.Secret.Name)
				}
				if s.ConfigMap != nil {
					add(refs.configMaps, s.ConfigMap.Name)
				}
			}
		case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
			add(refs.claims, volumes.ClaimOf(pod, v))
		case v.CSI != nil:
			refs.local(v.CSI.NodePublishSecretRef)
		case v.AzureFile != nil:
			add(refs.secrets, v.AzureFile.SecretName)
		case v.CephFS != nil:
			refs.local(v.CephFS.SecretRef)
		case v.Cinder != nil:
			refs.local(v.Cinder.SecretRef)
		case v.FlexVolume != nil:
			refs.local(v.FlexVolume.SecretRef)
		case v.ISCSI != nil:
			refs.local(v.ISCSI.SecretRef)
		case v.RBD != nil:
			refs.local(v.RBD.SecretRef)
		case v.ScaleIO != nil:
			refs.local(v.ScaleIO.SecretRef)
		case v.StorageOS != nil:
			refs.local(v.StorageOS.SecretRef)
		}
	}
}
