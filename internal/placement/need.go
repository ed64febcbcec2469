package placement

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

// need is what a pod asks of its machine.
type need struct {
	milliCPU, memory, disk, gpus int64
	// devices are other accelerators.
	devices devices
	pages   hugePages
	// otherPages are huge pages of another size; "" for none.
	otherPages corev1.ResourceName
	// volume is the size of the root disk that an annotation asks for, in bytes.
	volume int64
	// swap is that of the machine, in bytes, for which an annotation asks.
	swap int64
	// disks are those of PersistentVolumes, of the cloud.
	disks int64
}

// none reports whether the pod asks for nothing at all of the size of its machine.
func (n need) none() bool {
	n.disks = 0
	return n == need{}
}

// resourceDisks is what a pod asks for with its volumes. No manifest names it.
const resourceDisks corev1.ResourceName = "kip.elotl.co/disks"

// needOf returns what the pod needs. It adds up as the scheduler does (init
// containers, sidecars, overhead, pod-level resources), with one difference: a
// container counts with its limit where that is higher than its request. The
// machine is the pod's own, nobody else's idle share of it can be borrowed, so
// a limit that the machine cannot give could never be reached.
//
// Extended resources other than GPUs and accelerators are not counted: no instance
// type has them, and operators use them to bound what the virtual node takes.
func needOf(pod *corev1.Pod) need {
	var n need
	for name, q := range resource.PodRequests(withLimits(pod), resource.PodResourcesOptions{}) {
		switch {
		case name == corev1.ResourceCPU:
			n.milliCPU = milliValue(q)
		case name == corev1.ResourceMemory:
			n.memory = value(q)
		case name == corev1.ResourceEphemeralStorage:
			n.disk = value(q)
		case name == resourceGPU:
			n.gpus = value(q)
		case name == resourceDisks:
			n.disks = value(q)
		case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) && q.Sign() > 0:
			// The smallest name, so that the answer does not depend on map order.
			if !n.pages.set(name, value(q)) && (n.otherPages == "" || name < n.otherPages) {
				n.otherPages = name
			}
		default:
			for i, o := range otherDevices {
				if o.resource == name {
					n.devices[i] = value(q)
				}
			}
		}
	}
	return n
}

// With returns the pod as it is to be placed when its machine runs something else
// beside it, such as the node plugins of its volumes. A pod that asks for nothing
// still does. Of the result, only the spec is for use; the pod is not changed.
func With(pod *corev1.Pod, requests corev1.ResourceList) *corev1.Pod {
	if len(requests) == 0 || needOf(pod).none() {
		return pod
	}
	placed := *pod // shallow, down to what is changed
	placed.Spec.Overhead = pod.Spec.Overhead.DeepCopy()
	if placed.Spec.Overhead == nil {
		placed.Spec.Overhead = corev1.ResourceList{}
	}
	for name, q := range requests {
		sum := placed.Spec.Overhead[name]
		sum.Add(q)
		placed.Spec.Overhead[name] = sum
	}
	return &placed
}

// WithDisks returns the pod as it is to be placed when so many disks of the cloud are to be attached
// to its machine, of whatever type. Of the result, only the spec is for use; the pod is not changed.
func WithDisks(pod *corev1.Pod, n int) *corev1.Pod {
	if n == 0 {
		return pod
	}
	placed := *pod // shallow, down to what is changed
	placed.Spec.Overhead = pod.Spec.Overhead.DeepCopy()
	if placed.Spec.Overhead == nil {
		placed.Spec.Overhead = corev1.ResourceList{}
	}
	placed.Spec.Overhead[resourceDisks] = *apiresource.NewQuantity(int64(n), apiresource.DecimalSI)
	return &placed
}

// withLimits returns the pod with requests raised to limits where those are
// higher: the pod itself where none is. It changes nothing of it; of another
// result, only the spec is set.
func withLimits(pod *corev1.Pod) *corev1.Pod {
	above := func(c corev1.Container) bool { return exceeds(c.Resources.Limits, c.Resources.Requests) }
	if !resource.IsPodLevelResourcesSet(pod) && !slices.ContainsFunc(pod.Spec.Containers, above) &&
		!slices.ContainsFunc(pod.Spec.InitContainers, above) {
		return pod
	}
	out := &corev1.Pod{Spec: pod.Spec} // shallow
	out.Spec.InitContainers = raised(pod.Spec.InitContainers)
	out.Spec.Containers = raised(pod.Spec.Containers)
	if !resource.IsPodLevelResourcesSet(pod) {
		return out
	}
	// What the pod as a whole requests replaces the sum over its containers. But
	// where the whole has no limit, containers may still use up to their own.
	sum := resource.AggregateContainerRequests(out, resource.PodResourcesOptions{})
	for name := range sum {
		_, requested := pod.Spec.Resources.Requests[name]
		_, limited := pod.Spec.Resources.Limits[name]
		if limited || !requested {
			delete(sum, name)
		}
	}
	// A copy, since overhead is added to it in place, and quantities of many digits
	// are pointers: the pod is everybody's.
	out.Spec.Resources = &corev1.ResourceRequirements{
		Requests: raise(raise(pod.Spec.Resources.Requests, pod.Spec.Resources.Limits), sum).DeepCopy(),
	}
	return out
}

// raised returns a copy of the containers, with requests raised to limits.
func raised(containers []corev1.Container) []corev1.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		r := &containers[i].Resources
		r.Requests = raise(r.Requests, r.Limits)
	}
	return containers
}

// Of a disk, the kubelet of a cell offers its pod less than there is.
const (
	// diskThreshold is what the kubelet keeps free (evictionHard of package configs), and takes
	// off what is allocatable.
	diskThreshold = 100 << 20
	// diskParts is what a disk has beside the root's file system: 64 MiB for the EFI program
	// (espSectors of package boot), and the file system's journal, at most as much of an image.
	diskParts = 128 << 20
	// inodeShare is the share of a file system that its inodes take: ext4 has one of 256 bytes
	// for each 16 KiB (mke2fs.conf: inode_ratio, inode_size). As much again is for the tables of
	// its groups.
	inodeShare = 64 / 2
)

// diskFor returns the size of the disk of which a pod gets so many bytes of ephemeral storage:
// the kubelet fails a pod that asks for more than is allocatable (OutOfephemeral-storage).
func diskFor(storage int64) int64 {
	if storage == 0 {
		return 0
	}
	besides := diskThreshold + diskParts + storage/(inodeShare-1) + 1
	return storage + min(besides, math.MaxInt64-storage)
}

// rootDisk returns the least size of a root disk as an annotation asks, and of one with room for so many bytes of ephemeral
// storage. The file of the swap comes on top.
func (n need) rootDisk(storage int64) int64 {
	return max(n.volume+n.swap, diskFor(storage+min(n.swap, math.MaxInt64-storage)))
}

// launchDisk returns the size of a root disk that is chosen at launch, and has a size by default.
func (n need) launchDisk(byDefault int64) int64 {
	return max(max(byDefault, n.volume)+inGiB(n.swap), inGiB(n.rootDisk(n.disk)))
}

// inGiB rounds bytes up to whole GiB, in which clouds make disks.
func inGiB(bytes int64) int64 {
	const gib = 1 << 30
	if bytes > math.MaxInt64-gib {
		return math.MaxInt64
	}
	return (bytes + gib - 1) / gib * gib
}

// exceeds reports whether a has anything that b has less of.
func exceeds(a, b corev1.ResourceList) bool {
	for name, q := range a {
		if have := b[name]; q.Cmp(have) > 0 {
			return true
		}
	}
	return false
}

// raise returns, for each resource, the larger of the two quantities.
func raise(a, b corev1.ResourceList) corev1.ResourceList {
	if !exceeds(b, a) {
		return a
	}
	out := make(corev1.ResourceList, max(len(a), len(b)))
	for name, q := range a {
		out[name] = q
	}
	for name, q := range b {
		if have := out[name]; q.Cmp(have) > 0 {
			out[name] = q
		}
	}
	return out
}

// Sums of quantities can be larger than what Value and MilliValue can return.
var (
	maxValue = *apiresource.NewQuantity(math.MaxInt64, apiresource.DecimalSI)
	maxMilli = *apiresource.NewQuantity(math.MaxInt64/1000, apiresource.DecimalSI)
)

func value(q apiresource.Quantity) int64 {
	if q.Cmp(maxValue) >= 0 {
		return math.MaxInt64
	}
	return max(0, q.Value())
}

func milliValue(q apiresource.Quantity) int64 {
	if q.Cmp(maxMilli) >= 0 {
		return math.MaxInt64
	}
	return max(0, q.MilliValue())
}

// text says the need for people: "cpu 500m, memory 256Mi (+64Mi for the cell)".
func (n need) text(reserved int64) string {
	parts := make([]string, 0, 4) // as most have
	if n.milliCPU > 0 {
		parts = append(parts, "cpu "+cpuText(n.milliCPU))
	}
	switch {
	case n.memory > 0 && reserved > 0:
		parts = append(parts, "memory "+bytesText(n.memory)+" (+"+bytesText(reserved)+" for the cell)")
	case n.memory > 0:
		parts = append(parts, "memory "+bytesText(n.memory))
	case reserved > 0:
		parts = append(parts, fmt.Sprintf("memory 0 (+%s for the cell)", bytesText(reserved)))
	}
	for i, pages := range n.pages {
		if pages > 0 {
			parts = append(parts, string(pageSizes[i].resource)+" "+bytesText(n.pages.bytesOf(i)))
		}
	}
	if n.otherPages != "" {
		parts = append(parts, string(n.otherPages))
	}
	if n.disk > 0 {
		parts = append(parts, "ephemeral-storage "+bytesText(n.disk))
	}
	if n.volume > 0 {
		parts = append(parts, "a disk of "+bytesText(n.volume))
	}
	if n.swap > 0 {
		parts = append(parts, "swap "+bytesText(n.swap))
	}
	if n.gpus > 0 {
		parts = append(parts, fmt.Sprintf("%s %d", resourceGPU, n.gpus))
	}
	for i, count := range n.devices {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", otherDevices[i].resource, count))
		}
	}
	if len(parts) == 0 {
		return "no resources"
	}
	return strings.Join(parts, ", ")
}

// cpuText is the text of such a quantity. Of less than a thousand CPUs it is made here,
// since each choice says it: a quantity's own takes half a microsecond.
func cpuText(milli int64) string {
	switch {
	case milli < 0 || milli >= 1_000_000:
		return apiresource.NewMilliQuantity(milli, apiresource.DecimalSI).String()
	case milli%1000 == 0:
		return strconv.FormatInt(milli/1000, 10)
	default:
		return strconv.FormatInt(milli, 10) + "m"
	}
}

// binaryText is the text of a quantity of bytes, made here for the same reason.
func binaryText(b int64) string {
	if b < 1024 {
		return apiresource.NewQuantity(b, apiresource.BinarySI).String()
	}
	power := 0
	for b%1024 == 0 {
		b, power = b/1024, power+1
	}
	return strconv.FormatInt(b, 10) + [...]string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}[power]
}

// bytesText writes bytes as Kubernetes does (256Mi), and what is no round number
// with one decimal (286.1Mi).
func bytesText(b int64) string {
	const ki, mi, gi = 1 << 10, 1 << 20, 1 << 30
	switch {
	case b < ki || b < mi && b%ki == 0 || b%mi == 0:
		return binaryText(b)
	case b < mi:
		return fmt.Sprintf("%.1fKi", float64(b)/ki)
	case b < gi:
		return fmt.Sprintf("%.1fMi", float64(b)/mi)
	default:
		return fmt.Sprintf("%.1fGi", float64(b)/gi)
	}
}
