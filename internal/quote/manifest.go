package quote

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/suggest"
)

// Workload is pods of one template.
type Workload struct {
	// Name is the pod's, or that of what owns its like.
	Name, Namespace string
	// Owner is kind and name such as Deployment/web; "" for a pod of its own.
	Owner string
	// Replicas is how many run at once.
	Replicas int64
	// Pod has the template's metadata and spec. It must not be changed.
	Pod *corev1.Pod
	// RunsPerMonth is how often a CronJob falls due; 0 for what is no CronJob.
	RunsPerMonth float64
	// Ends is true of pods that run to their end, after a time that no manifest says.
	Ends bool
	// NotOnKip is why such pods do not run on Kip's node, "" if they do.
	NotOnKip string
}

// MostBytes is how large a manifest may be.
const MostBytes = 16 << 20

// mostErrors is how many errors of a manifest are told.
const mostErrors = 20

// Read returns the workloads of a manifest: YAML with any number of documents, or JSON.
// Objects that have no pods, and custom resources, are left out. file is its name, for
// errors, which are joined *Error; namespace is that of objects that name none.
func Read(file, namespace string, data []byte) ([]Workload, error) {
	r := &reader{file: file, namespace: namespace}
	if len(data) > MostBytes {
		return nil, fmt.Errorf("%s: it is larger than %d MiB", file, MostBytes>>20)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.syntax(err)
			break
		}
		n := resolved(doc.Content[0])
		if !finite(n, map[*yaml.Node]bool{}, new(int)) {
			r.errs = append(r.errs, &Error{
				File:    file,
				Line:    n.Line,
				Problem: fmt.Sprintf("it contains itself, or aliases make more than %d values of it", mostNodes),
			})
			break
		}
		if n.ShortTag() != "!!null" {
			r.object(n)
		}
	}
	if len(r.errs) == 0 {
		return r.found, nil
	}
	// In one order, though many were found by going through maps.
	slices.SortFunc(r.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Problem, b.Problem))
	})
	var errs []error
	for _, e := range r.errs[:min(len(r.errs), mostErrors)] {
		errs = append(errs, e)
	}
	if more := len(r.errs) - mostErrors; more > 0 {
		errs = append(errs, fmt.Errorf("%s: and %d more", file, more))
	}
	return nil, errors.Join(errs...)
}

// reader reads one manifest.
type reader struct {
	file, namespace string
	found           []Workload
	errs            []*Error
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (r *reader) syntax(err error) {
	line, text := 1, err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		_, _ = fmt.Sscan(m[1], &line) // without a number it stays 1
		text = text[len(m[0]):]
	}
	r.errs = append(r.errs, &Error{File: r.file, Line: line, Problem: "error converting YAML to JSON: " + text})
}

// object reads one object, or those of a list.
func (r *reader) object(n *yaml.Node) {
	c := &checker{file: r.file, line: map[string]int{"": n.Line}}
	defer func() { r.errs = append(r.errs, c.errs...) }()
	if n.Kind != yaml.MappingNode {
		c.bad(n.Line, "want an object with apiVersion and kind")
		return
	}
	at := map[string]*yaml.Node{}
	for _, p := range c.pairs(n) {
		at[p.key.Value] = p.value
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if v := at[name]; v == nil || v.Kind != yaml.ScalarNode || v.Value == "" {
			c.bad(n.Line, "error validating data: %s not set", name)
			return
		}
	}
	kind, version := at["kind"], at["apiVersion"]
	gv, err := schema.ParseGroupVersion(version.Value)
	if err != nil {
		c.bad(version.Line, "apiVersion: %v", err)
		return
	}
	if items := at["items"]; items != nil && strings.HasSuffix(kind.Value, "List") {
		for _, item := range items.Content {
			r.object(resolved(item))
		}
		return
	}
	gvk := gv.WithKind(kind.Value)
	if !scheme.Scheme.Recognizes(gvk) {
		c.unrecognized(gvk, kind.Line)
		return
	}
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		c.bad(kind.Line, "%v", err)
		return
	}
	if !hasPods(obj) {
		return
	}
	c.object = fmt.Sprintf("%s %q", kind.Value, nameOf(c, at["metadata"]))
	c.value(n, reflect.TypeOf(obj).Elem(), "")
	if len(c.errs) > 0 {
		return
	}
	if err := json.Unmarshal(c.json(n), obj); err != nil {
		c.bad(n.Line, "%v", err)
		return
	}
	if w := r.workload(c, kind.Value, obj); len(c.errs) == 0 {
		r.found = append(r.found, w)
	}
}

// unrecognized notes a kind that Kubernetes does not have. One of a group that it has not
// either is a custom resource.
func (c *checker) unrecognized(gvk schema.GroupVersionKind, line int) {
	if !scheme.Scheme.IsGroupRegistered(gvk.Group) && gvk.Group != "extensions" {
		return
	}
	var versions, kinds []string
	for known := range scheme.Scheme.AllKnownTypes() {
		if known.Kind == gvk.Kind && known.Version != runtime.APIVersionInternal && known.Group != "extensions" {
			versions = append(versions, known.GroupVersion().String())
		}
		if known.GroupVersion() == gvk.GroupVersion() {
			kinds = append(kinds, known.Kind)
		}
	}
	slices.Sort(versions)
	slices.Sort(kinds)
	meant := ""
	if nearest := suggest.Nearest(gvk.Kind, kinds); nearest != "" {
		meant = fmt.Sprintf("; did you mean %s?", nearest)
	}
	if len(versions) > 0 {
		meant = "; it is in " + strings.Join(versions, ", ")
	}
	c.bad(line, "no matches for kind %q in version %q%s", gvk.Kind, gvk.GroupVersion(), meant)
}

func nameOf(c *checker, metadata *yaml.Node) string {
	if metadata != nil && metadata.Kind == yaml.MappingNode {
		for _, p := range c.pairs(metadata) {
			if p.key.Value == "name" {
				return p.value.Value
			}
		}
	}
	return ""
}

func hasPods(obj runtime.Object) bool {
	switch obj.(type) {
	case *corev1.Pod, *corev1.ReplicationController, *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet,
		*batchv1.Job, *batchv1.CronJob:
		return true
	}
	return false
}

const daemonSet = "not priced: a DaemonSet has one pod on each node, and how many nodes there are is in no manifest; " +
	"on Kip's virtual node it gets no machine, unless pod.elotl.co/machine asks for one"

// workload is what an object says of its pods.
func (r *reader) workload(c *checker, kind string, obj runtime.Object) Workload {
	w := Workload{}
	meta := obj.(metav1.Object)
	w.Name, w.Namespace = cmp.Or(meta.GetName(), meta.GetGenerateName()), cmp.Or(meta.GetNamespace(), r.namespace)
	if w.Name == "" {
		c.at("metadata.name", "Required value: name or generateName is required")
	}
	w.Owner = kind + "/" + w.Name
	replicas := func(n *int32) int64 {
		if n == nil {
			return 1
		}
		if *n < 0 {
			c.at("spec.replicas", "Invalid value: %d: must be greater than or equal to 0", *n)
		}
		return int64(*n)
	}
	template, field := &corev1.PodTemplateSpec{}, "spec.template"
	switch o := obj.(type) {
	case *corev1.Pod:
		w.Owner, w.Replicas, field = "", 1, ""
		template = &corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
		w.Ends = o.Spec.RestartPolicy == corev1.RestartPolicyNever || o.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	case *corev1.ReplicationController:
		if o.Spec.Template != nil {
			template = o.Spec.Template
		}
		w.Replicas = replicas(o.Spec.Replicas)
	case *appsv1.Deployment:
		template, w.Replicas = &o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.ReplicaSet:
		template, w.Replicas = &o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.StatefulSet:
		template, w.Replicas = &o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.DaemonSet:
		template, w.NotOnKip = &o.Spec.Template, daemonSet
	case *batchv1.Job:
		template, w.Replicas, w.Ends = &o.Spec.Template, atOnce(c, o.Spec, "spec"), true
	case *batchv1.CronJob:
		job := o.Spec.JobTemplate.Spec
		template, field, w.Ends = &job.Template, "spec.jobTemplate.spec.template", true
		w.Replicas = atOnce(c, job, "spec.jobTemplate.spec")
		zone := ""
		if o.Spec.TimeZone != nil {
			zone = *o.Spec.TimeZone
		}
		var err error
		if w.RunsPerMonth, err = runsPerMonth(o.Spec.Schedule, zone); err != nil {
			c.at("spec.schedule", "Invalid value: %q: %v", o.Spec.Schedule, err)
		}
		if o.Spec.Suspend != nil && *o.Spec.Suspend {
			w.RunsPerMonth, w.Replicas = 0, 0
		}
	}
	w.Pod = &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	c.pod(w.Pod, field)
	return w
}

// atOnce is how many pods of a Job run at once.
func atOnce(c *checker, spec batchv1.JobSpec, field string) int64 {
	n := int64(1)
	if spec.Parallelism != nil {
		n = int64(*spec.Parallelism)
	}
	if n < 0 {
		c.at(field+".parallelism", "Invalid value: %d: must be greater than or equal to 0", n)
	}
	if spec.Completions != nil {
		if *spec.Completions < 0 {
			c.at(field+".completions", "Invalid value: %d: must be greater than or equal to 0", *spec.Completions)
		}
		n = min(n, int64(*spec.Completions))
	}
	if spec.Suspend != nil && *spec.Suspend {
		return 0
	}
	return n
}

// pod checks what its price depends on.
func (c *checker) pod(pod *corev1.Pod, field string) {
	if len(pod.Spec.Containers) == 0 {
		c.at(join(field, "spec.containers"), "Required value")
	}
	for name, containers := range map[string][]corev1.Container{"containers": pod.Spec.Containers, "initContainers": pod.Spec.InitContainers} {
		for i, container := range containers {
			c.resources(fmt.Sprintf("%s[%d].resources", join(field, "spec."+name), i), container.Resources)
		}
	}
	if pod.Spec.Resources != nil {
		c.resources(join(field, "spec.resources"), *pod.Spec.Resources)
	}
	_, err := placement.ParseAnnotations(pod.Annotations)
	for name := range pod.Annotations {
		var invalid *placement.InvalidAnnotationError
		if _, one := placement.ParseAnnotations(only(pod.Annotations, name)); one != nil && err != nil && errors.As(one, &invalid) {
			c.at(join(field, "metadata.annotations."+name), "%v", invalid)
		}
	}
}

// only are the annotations without those with Prefix but one, and the one that it may need.
func only(annotations map[string]string, name string) map[string]string {
	one := map[string]string{name: annotations[name]}
	if allow, ok := annotations[placement.AnnotationAllowMetadata]; ok && name == placement.AnnotationInstanceProfile {
		one[placement.AnnotationAllowMetadata] = allow
	}
	return one
}

func (c *checker) resources(field string, r corev1.ResourceRequirements) {
	for list, of := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, q := range of {
			if q.Sign() < 0 {
				c.at(fmt.Sprintf("%s.%s.%s", field, list, name), "Invalid value: %q: must be greater than or equal to 0", q.String())
			}
		}
	}
	for name, q := range r.Requests {
		if limit, ok := r.Limits[name]; ok && q.Cmp(limit) > 0 {
			c.at(fmt.Sprintf("%s.requests.%s", field, name), "Invalid value: %q: must be less than or equal to %s limit of %s",
				q.String(), name, limit.String())
		}
	}
}
