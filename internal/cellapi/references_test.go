package cellapi

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// stringPaths calls visit with the path and type's chain of every string in t.
func stringPaths(t reflect.Type, path []string, parents []reflect.Type, visit func(path []string, parent reflect.Type)) {
	if slices.Contains(parents, t) {
		return // no type of a pod contains itself
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		stringPaths(t.Elem(), path, parents, visit)
	case reflect.Struct:
		for f := range t.NumField() {
			field := t.Field(f)
			if field.IsExported() {
				stringPaths(field.Type, append(slices.Clone(path), field.Name), append(slices.Clone(parents), t), visit)
			}
		}
	case reflect.String:
		visit(path, parents[len(parents)-1])
	}
}

// set sets the string at path in v, making what is on the way.
func set(v reflect.Value, path []string, value string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		set(v.Elem(), path, value)
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		set(v.Index(0), path, value)
	case reflect.Struct:
		set(v.FieldByName(path[0]), path[1:], value)
	case reflect.String:
		v.SetString(value)
	}
}

// Every string in a PodSpec is set alone, and those that make a reference are
// compared with the list here. A field of a new version of the API that looks like
// a reference, by its name or its type, fails the test until someone decides.
func TestReferencesCoverEveryFieldOfAPodSpec(t *testing.T) {
	container := func(paths ...string) []string {
		var all []string
		for _, c := range []string{"InitContainers.", "Containers.", "EphemeralContainers.EphemeralContainerCommon."} {
			for _, p := range paths {
				all = append(all, c+p)
			}
		}
		return all
	}
	want := map[string][]string{
		"secret": slices.Concat(
			container("Env.ValueFrom.SecretKeyRef.LocalObjectReference.Name", "EnvFrom.SecretRef.LocalObjectReference.Name"),
			[]string{
				"ImagePullSecrets.Name",
				"Volumes.VolumeSource.AzureFile.SecretName",
				"Volumes.VolumeSource.CSI.NodePublishSecretRef.Name",
				"Volumes.VolumeSource.CephFS.SecretRef.Name",
				"Volumes.VolumeSource.Cinder.SecretRef.Name",
				"Volumes.VolumeSource.FlexVolume.SecretRef.Name",
				"Volumes.VolumeSource.ISCSI.SecretRef.Name",
				"Volumes.VolumeSource.Projected.Sources.Secret.LocalObjectReference.Name",
				"Volumes.VolumeSource.RBD.SecretRef.Name",
				"Volumes.VolumeSource.ScaleIO.SecretRef.Name",
				"Volumes.VolumeSource.Secret.SecretName",
				"Volumes.VolumeSource.StorageOS.SecretRef.Name",
			}),
		"configmap": slices.Concat(
			container("Env.ValueFrom.ConfigMapKeyRef.LocalObjectReference.Name", "EnvFrom.ConfigMapRef.LocalObjectReference.Name"),
			[]string{
				"Volumes.VolumeSource.ConfigMap.LocalObjectReference.Name",
				"Volumes.VolumeSource.Projected.Sources.ConfigMap.LocalObjectReference.Name",
			}),
		"claim": {"Volumes.VolumeSource.PersistentVolumeClaim.ClaimName"},
	}
	// These look like references and are none that a cell may read by.
	none := sets.New(slices.Concat(
		container(
			"Env.ValueFrom.ConfigMapKeyRef.Key", "Env.ValueFrom.SecretKeyRef.Key", // within the object
			"Resources.Claims.Name", "Resources.Claims.Request", // of the pod's own resource claims
		),
		[]string{
			"Resources.Claims.Name", "Resources.Claims.Request", // of the whole pod
			// Dynamic resource allocation is not served.
			"ResourceClaims.Name", "ResourceClaims.ResourceClaimName", "ResourceClaims.ResourceClaimTemplateName",
			// Within the object.
			"Volumes.VolumeSource.ConfigMap.Items.Key", "Volumes.VolumeSource.ConfigMap.Items.Path",
			"Volumes.VolumeSource.Secret.Items.Key", "Volumes.VolumeSource.Secret.Items.Path",
			"Volumes.VolumeSource.Projected.Sources.ConfigMap.Items.Key", "Volumes.VolumeSource.Projected.Sources.ConfigMap.Items.Path",
			"Volumes.VolumeSource.Projected.Sources.Secret.Items.Key", "Volumes.VolumeSource.Projected.Sources.Secret.Items.Path",
			// A path on the machine.
			"Volumes.VolumeSource.CephFS.SecretFile",
		})...)
	// A claim made from a template is named after pod and volume; tested below.
	templated := "Volumes.VolumeSource.Ephemeral."

	wanted := map[string]string{}
	for what, paths := range want {
		for _, p := range paths {
			wanted[p] = what
		}
	}
	visited := 0
	stringPaths(reflect.TypeFor[corev1.PodSpec](), nil, nil, func(path []string, parent reflect.Type) {
		visited++
		p := strings.Join(path, ".")
		pod := &corev1.Pod{}
		set(reflect.ValueOf(&pod.Spec), path, "probe")
		refs := referencesOf(pod)
		got := ""
		switch {
		case refs.secrets.Has("probe"):
			got = "secret"
		case refs.configMaps.Has("probe"):
			got = "configmap"
		case refs.claims.Has("probe"):
			got = "claim"
		}
		if got != wanted[p] {
			t.Errorf("%s is taken for %q, want %q", p, got, wanted[p])
		}
		delete(wanted, p)
		low := strings.ToLower(p)
		looksLike := strings.Contains(low, "secret") || strings.Contains(low, "configmap") || strings.Contains(low, "claim") ||
			parent == reflect.TypeFor[corev1.LocalObjectReference]() || parent == reflect.TypeFor[corev1.SecretReference]()
		if looksLike && got == "" && !none.Has(p) && !strings.HasPrefix(p, templated) {
			t.Errorf("%s looks like a reference: add it to referencesOf, or here to those that are none", p)
		}
	})
	for p := range wanted {
		t.Errorf("%s is not in a PodSpec any more", p)
	}
	if visited < 300 {
		t.Errorf("only %d strings were found in a PodSpec: the walk is broken", visited)
	}
}

func TestReferenceToAClaimMadeForThePod(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Name = "web"
	pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	if got := sets.List(referencesOf(pod).claims); !slices.Equal(got, []string{"web-scratch"}) {
		t.Errorf("claims %q, want web-scratch", got)
	}
}

func TestAPodWithAVolumeOfTrustBundlesRefersToThem(t *testing.T) {
	of := func(s ...corev1.VolumeProjection) bool {
		return referencesOf(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: s}}},
			{Name: "other", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}}}).trustBundles
	}
	if of() || of(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}) {
		t.Error("a pod without them does")
	}
	if !of(corev1.VolumeProjection{}, corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}) {
		t.Error("it does not")
	}
}

func TestNoReferencesInAnEmptyPod(t *testing.T) {
	refs := referencesOf(&corev1.Pod{Spec: corev1.PodSpec{
		ImagePullSecrets: []corev1.LocalObjectReference{{}},
		Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", ValueFrom: &corev1.EnvVarSource{}}},
			EnvFrom: []corev1.EnvFromSource{{}}}},
		Volumes: []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}})
	if n := len(refs.secrets) + len(refs.configMaps) + len(refs.claims); n != 0 {
		t.Errorf("%d references in a pod that names nothing: %v", n, refs)
	}
}
