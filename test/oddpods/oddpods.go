package oddpods

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/elotl/kip/internal/placement"
)

// quantities are at the edges of what a quantity can be.
var quantities = []string{"0", "1n", "1m", "100m", "1", "1500m", "64Mi", "1Gi", "9E", "9223372036854775807", "1e30", "-1", "-9E",
	"0.000000001", "1Ki"}

func quantity(r *rand.Rand) resource.Quantity {
	return resource.MustParse(quantities[r.IntN(len(quantities))])
}

// Any returns a pod with anything in every field, which no API server would admit.
// It has a name, a namespace and a UID.
func Any(seed uint64) *corev1.Pod {
	r := random(seed)
	filler := randfill.NewWithSeed(int64(seed)).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Funcs(
		func(q *resource.Quantity, _ randfill.Continue) { *q = quantity(r) },
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<40)-(1<<39), 0) },
		func(f *metav1.FieldsV1, _ randfill.Continue) { *f = *metav1.NewFieldsV1("{}") },
		func(l *corev1.ResourceList, c randfill.Continue) {
			*l = corev1.ResourceList{}
			for range c.Intn(4) {
				(*l)[pick(r, resourceNames)] = quantity(r)
			}
		},
	)
	pod := &corev1.Pod{}
	filler.Fill(pod)
	pod.Name, pod.Namespace, pod.UID = "p", "ns", "uid"
	annotate(r, pod)
	return pod
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6b6970)) }

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

var resourceNames = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "nvidia.com/gpu", "hugepages-2Mi", "hugepages-1Gi",
	"example.com/thing", "",
}

// annotate gives the pod annotations of Kip, right ones and wrong ones.
func annotate(r *rand.Rand, pod *corev1.Pod) {
	for range r.IntN(3) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		name := placement.Prefix + pick(r, []string{"instance-type", "launch-type", "volume-size", "healthy-timeout", "zone", "no-such-thing",
			""})
		pod.Annotations[name] = pick(r, []string{"", ",", "nano", "micro,small", "no*", "*", "spot", "1Gi", "-1", "9E", "5m", "local", "true",
			"\x00", strings.Repeat("x", 300)})
	}
}

// Posted returns a pod for a namespace and a node that an API server may admit:
// one that would run, with some of its fields set to odd values. What is needed
// for a test to end stays: it has a short grace period and no finalizer.
func Posted(seed uint64, namespace, name, node string) *corev1.Pod {
	f := &fill{Rand: random(seed)}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "busybox:1.36", Command: []string{"sleep", "5"}}},
			RestartPolicy: pick(f.Rand, []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever,
				corev1.RestartPolicyOnFailure}),
		},
	}
	if f.chance(0.2) {
		annotate(f.Rand, pod)
	}
	for range 2 + f.IntN(7) {
		f.change(reflect.ValueOf(&pod.Spec).Elem(), "", 0)
	}
	f.mount(pod)
	grace := int64(1)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	pod.Spec.NodeName, pod.Spec.SchedulingGates = node, nil
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		Annotations: pod.Annotations,
		Labels:      map[string]string{"odd": fmt.Sprint(seed)},
	}
	return pod
}

// fill sets values by reflection.
type fill struct{ *rand.Rand }

func (f *fill) chance(p float64) bool { return f.Float64() < p }

// words are values of strings that mean something, by the name of their type or
// else of their field.
var words = map[string][]string{
	"PullPolicy":               {"Always", "IfNotPresent", "Never"},
	"RestartPolicy":            {"Always", "OnFailure", "Never"},
	"ContainerRestartPolicy":   {"Always", "Never", "OnFailure"},
	"DNSPolicy":                {"None", "Default", "ClusterFirst", "ClusterFirstWithHostNet"},
	"URIScheme":                {"HTTP", "HTTPS"},
	"Protocol":                 {"TCP", "UDP", "SCTP"},
	"StorageMedium":            {"", "Memory", "HugePages", "HugePages-2Mi"},
	"MountPropagationMode":     {"None", "HostToContainer", "Bidirectional"},
	"RecursiveReadOnlyMode":    {"Disabled", "IfPossible", "Enabled"},
	"TerminationMessagePolicy": {"File", "FallbackToLogsOnError"},
	"PreemptionPolicy":         {"Never", "PreemptLowerPriority"},
	"TaintEffect":              {"NoSchedule", "PreferNoSchedule", "NoExecute"},
	"TolerationOperator":       {"Exists", "Equal"},
	"HostPathType": {"", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice",
		"BlockDevice"},
	"Capability":                              {"ALL", "NET_ADMIN", "SYS_ADMIN", "NO_SUCH"},
	"SeccompProfileType":                      {"Unconfined", "RuntimeDefault", "Localhost"},
	"AppArmorProfileType":                     {"Unconfined", "RuntimeDefault", "Localhost"},
	"ProcMountType":                           {"Default", "Unmasked"},
	"PodFSGroupChangePolicy":                  {"Always", "OnRootMismatch"},
	"SupplementalGroupsPolicy":                {"Merge", "Strict"},
	"PodSELinuxChangePolicy":                  {"MountOption", "Recursive"},
	"NodeSelectorOperator":                    {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"},
	"LabelSelectorOperator":                   {"In", "NotIn", "Exists", "DoesNotExist"},
	"UnsatisfiableConstraintAction":           {"DoNotSchedule", "ScheduleAnyway"},
	"NodeInclusionPolicy":                     {"Honor", "Ignore"},
	"OSName":                                  {"linux", "windows"},
	"PersistentVolumeAccessMode":              {"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"},
	"PersistentVolumeMode":                    {"Filesystem", "Block"},
	"ResourceName":                            {"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "example.com/thing", "hugepages-2Mi"},
	"ResourceResizeRestartPolicy":             {"NotRequired", "RestartContainer"},
	"PodConditionType":                        {"example.com/ready", "Ready"},
	"Signal":                                  {"SIGTERM", "SIGKILL", "SIGUSR1"},
	"ContainerRestartRuleAction":              {"Restart", "RestartAllContainers"},
	"ContainerRestartRuleOnExitCodesOperator": {"In", "NotIn"},

	"Image": {"busybox:1.36", "busybox:no-such-tag", "no.such.host.invalid/a:b", "UPPER/CASE", "busybox@sha256:" +
		strings.Repeat("0", 64), ":::"},
	"MountPath":   {"/mnt", "/", "/dev", "/proc/x", "/a:b", "relative", "/etc/hosts", "/a/../b"},
	"DevicePath":  {"/dev/x", "/dev/null"},
	"SubPath":     {"", "a", "a/b", "..", "/abs"},
	"SubPathExpr": {"", "$(NO_SUCH)", "$(HOSTNAME)"},
	"FieldPath": {"metadata.name", "metadata.uid", "metadata.annotations['x']", "spec.nodeName", "status.podIP",
		"status.hostIPs", "spec.serviceAccountName"},
	"Resource":               {"limits.cpu", "limits.memory", "requests.ephemeral-storage", "requests.cpu"},
	"ContainerName":          {"", "main", "nobody"},
	"Path":                   {"a", "/a", "/etc", "/no/such/path", "a/b/../c", "/healthz", "..data"},
	"WorkingDir":             {"/", "/no/such/folder", "relative", "/etc/passwd"},
	"TerminationMessagePath": {"/dev/termination-log", "/etc/passwd", "/", "relative"},
	"Hostname":               {"a", "a-b-c", strings.Repeat("h", 63), "UPPER"},
	"Subdomain":              {"sub", "a.b"},
	"ServiceAccountName":     {"default", "no-such-account"},
	"PriorityClassName":      {"", "system-node-critical", "no-such-class"},
	"RuntimeClassName":       {"no-such-class"},
	"SchedulerName":          {"nobody"},
	"IP":                     {"127.0.0.1", "10.0.0.1", "::1", "256.0.0.1"},
	"HostIP":                 {"", "127.0.0.1", "0.0.0.0"},
	"Host":                   {"", "127.0.0.1", "no.such.host.invalid"},
	"Driver":                 {"no.such.driver.example.com"},
	"TopologyKey":            {"kubernetes.io/hostname", "topology.kubernetes.io/zone"},
	"Searches":               {"example.com", strings.Repeat("a.", 60) + "b", "."},
	"Nameservers":            {"127.0.0.1", "::1", "192.0.2.1"},
	"Server":                 {"192.0.2.1", "no.such.host.invalid"},
	"Reference":              {"busybox:1.36", "no.such.host.invalid/a:b"},
	"Command":                {"sleep", "/no/such/program", "sh", "-c", "exit 3", "$(X)", "", "\x01", "5"},
	"Args":                   {"5", "--no-such-flag", "$(HOSTNAME)", "", strings.Repeat("x", 5000)},
	"Value":                  {"", "x", "$(X)", "$$(X)", "${X}", "ä\u2028\U0001F600", strings.Repeat("v", 10000)},
	"LocalhostProfile":       {"no-such-profile.json", "../x"},
	"DefaultMode":            {"0"},
}

// names are those of objects and of what is named in a pod.
var names = []string{"a", "b", "no-such-object", "main", "kube-root-ca.crt", "kernel.shm_rmid_forced", "net.ipv4.ip_forward",
	"kernel.msgmax", strings.Repeat("n", 63), "with.dots", "UPPER", "x_y", ""}

// unions are structs of which one pointer is set, and no more.
var unions = []reflect.Type{
	reflect.TypeFor[corev1.VolumeSource](), reflect.TypeFor[corev1.ProbeHandler](), reflect.TypeFor[corev1.LifecycleHandler](),
	reflect.TypeFor[corev1.EnvVarSource](), reflect.TypeFor[corev1.VolumeProjection](),
}

// kept are fields that a test sets itself, or that would be refused in any case.
var kept = []string{"NodeName", "SchedulingGates", "EphemeralContainers", "TerminationGracePeriodSeconds", "Overhead",
	"DeprecatedServiceAccount", "Priority"}

// change sets one field somewhere below v, of which name is the field.
func (f *fill) change(v reflect.Value, name string, depth int) {
	if f.leaf(v, name) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		field := f.IntN(v.NumField())
		for t := v.Type(); !t.Field(field).IsExported() || slices.Contains(kept, t.Field(field).Name); {
			field = f.IntN(v.NumField())
		}
		f.change(v.Field(field), v.Type().Field(field).Name, depth+1)
	case reflect.Pointer:
		if v.IsNil() {
			f.set(v, name, depth)
		} else {
			f.change(v.Elem(), name, depth)
		}
	case reflect.Slice:
		if n := v.Len(); n > 0 && f.chance(0.7) {
			f.change(v.Index(f.IntN(n)), name, depth)
			return
		}
		element := reflect.New(v.Type().Elem()).Elem()
		f.set(element, name, depth)
		v.Set(reflect.Append(v, element))
	case reflect.Map:
		f.set(v, name, depth)
	}
}

// set gives v, and what is needed below it, values.
func (f *fill) set(v reflect.Value, name string, depth int) {
	if f.leaf(v, name) || depth > 10 {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if slices.Contains(unions, v.Type()) {
			one := f.IntN(v.NumField())
			f.set(v.Field(one), v.Type().Field(one).Name, depth+1)
			return
		}
		for i := range v.NumField() {
			t := v.Type().Field(i)
			if !t.IsExported() {
				continue
			}
			// What is not optional is set, the rest seldom.
			if t.Anonymous || !strings.Contains(t.Tag.Get("json"), "omitempty") || f.chance(0.25) {
				f.set(v.Field(i), t.Name, depth+1)
			}
		}
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		f.set(p.Elem(), name, depth+1)
		v.Set(p)
	case reflect.Slice:
		n := 1 + f.IntN(2)
		list := reflect.MakeSlice(v.Type(), n, n)
		for i := range n {
			f.set(list.Index(i), name, depth+1)
		}
		v.Set(list)
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		for range 1 + f.IntN(2) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.set(key, "Key", depth+1)
			f.set(value, "Value", depth+1)
			m.SetMapIndex(key, value)
		}
		v.Set(m)
	}
}

// leaf sets v if it is no composite.
func (f *fill) leaf(v reflect.Value, name string) bool {
	switch p := v.Addr().Interface().(type) {
	case *resource.Quantity:
		*p = quantity(f.Rand)
		return true
	case *metav1.Time:
		*p = metav1.NewTime(time.Unix(f.Int64N(1<<33), 0))
		return true
	case *intstr.IntOrString:
		*p = pick(f.Rand, []intstr.IntOrString{intstr.FromInt32(80), intstr.FromInt32(1), intstr.FromInt32(65535), intstr.FromString("http"),
			intstr.FromInt32(0)})
		return true
	}
	switch v.Kind() {
	case reflect.String:
		list := words[v.Type().Name()]
		if v.Type().Name() == "string" || list == nil {
			list = words[name]
		}
		if list == nil {
			list = names
		}
		v.SetString(pick(f.Rand, list))
	case reflect.Bool:
		v.SetBool(f.chance(0.5))
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(pick(f.Rand, []int64{0, 1, 2, 3, 10, 80, 420, 511, 1000, 65535, math.MaxInt32, -1}))
	case reflect.Uint8:
		v.SetUint(f.Uint64N(256))
	case reflect.Float64:
		v.SetFloat(f.Float64())
	default:
		return false
	}
	return true
}

// mount lets the first container use most volumes, so that they are set up for
// somebody.
func (f *fill) mount(pod *corev1.Pod) {
	c := &pod.Spec.Containers[0]
	for i, v := range pod.Spec.Volumes {
		if v.Name != "" && f.chance(0.8) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: fmt.Sprintf("/volumes/%d", i),
				ReadOnly: f.chance(0.3)})
		}
	}
}
