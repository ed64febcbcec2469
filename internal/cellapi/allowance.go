package cellapi

import (
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
)

const (
	// maxRequest is the largest body that an API server reads
	// (k8s.io/apiserver/pkg/server/config.go, MaxRequestBodyBytes).
	maxRequest = 3 << 20
	// statusBody, perContainer, perMount and perSpecByte make the largest patch of a pod's
	// status. A kubelet writes of each container of the spec its state and the one before,
	// with the messages of both, its image and its resources; and of each mount its name
	// and path (k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go, convertToAPIContainerStatuses).
	// A byte of a name may take six in JSON.
	statusBody, perContainer, perMount, perSpecByte = 384 << 10, 16 << 10, 256, 6
	// storedOfOne is what a kubelet's status of a container takes, in bytes, with a termination
	// message of 4096 (k8s.io/kubernetes/pkg/kubelet/container, MaxContainerTerminationMessageLength).
	storedOfOne = 5 << 10
	// maxObject is the largest object that etcd stores (--max-request-bytes).
	maxObject = 1536 << 10
	// perObject is how often a kubelet asks for an object that its pod names when the pod
	// starts: a list and a watch of a Secret, a claim and its volume twice.
	perObject = 4
	// rewrites is how often a cell may have its pod stored at once, and rewriteRate how often
	// a second after that. A kubelet looks at its containers once a second, and sends the
	// latest status when the one before is answered.
	rewrites, rewriteRate = 32, 2
	// bytesWorked are the bytes of a status that Kip rebuilds in a microsecond, as measured.
	bytesWorked = 10
)

// allowance is what a cell may ask more for its pod's sake: a larger pod takes more.
type allowance struct {
	objects int // that the kubelet reads, or asks for, by name
	images  int // that it pulls
	status  int // the largest patch of the status, in bytes
	size    int // of the pod with the status of an honest kubelet, in bytes of protobuf
}

func allowanceOf(pod *corev1.Pod) allowance {
	refs := referencesOf(pod)
	mounts, containers := 0, 0
	eachContainer(pod, func(c *corev1.Container) {
		containers++
		mounts += len(c.VolumeMounts)
	})
	return allowance{
		images:  len(imagesOf(pod)),
		objects: len(refs.secrets) + len(refs.configMaps) + len(refs.claims) + len(pod.Spec.Volumes),
		status:  min(statusBody+perContainer*containers+perMount*mounts+perSpecByte*pod.Spec.Size(), maxRequest),
		// Not the status itself: a cell could make that large, and so be given more.
		size: min(pod.ObjectMeta.Size()+pod.Spec.Size()+storedOfOne*containers+perMount*mounts, maxObject),
	}
}

// eachContainer calls f with each container of a pod, of all sorts.
func eachContainer(pod *corev1.Pod, f func(*corev1.Container)) {
	for i := range pod.Spec.InitContainers {
		f(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		f(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		f(&c)
	}
}

// allowAll gives the cell what the pods take that its kubelet sees. c.mu is held.
func (c *boundPod) allowAll() {
	all := allowanceOf(c.pod.current)
	for _, p := range c.copies.all {
		more := allowanceOf(p.current)
		all.objects, all.images = all.objects+more.objects, all.images+more.images
		all.status, all.size = max(all.status, more.status), max(all.size, more.size)
	}
	c.allow(all)
}

// allow gives the cell what its pod takes. c.mu is held.
func (c *limits) allow(a allowance) {
	now := c.server.clock.Now()
	c.budget.allow(now, a)
	grow(c.passed, now, passedRate, passedBurst+perObject*a.objects)
	grow(c.credentials, now, credentialsRate, 2*a.images)
	grow(c.written, now, rate.Limit(rewriteRate*a.size), rewrites*a.size)
}

// admit takes requests as large as a says, at the budget that the cell has.
func (b *budget) admit(a allowance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.more = a
}

// allow gives the cell what its pod takes of what all requests are charged to.
func (b *budget) allow(now time.Time, a allowance) {
	b.admit(a)
	grow(b.asked, now, askedRate, askedBurst+perObject*(a.objects+a.images))
	// In JSON an object has about twice the bytes. Each write of a status has three more of
	// the pod answered: to a get before it, to itself, and in the watch.
	grow(b.sent, now, rate.Limit(sentRate+2*rewriteRate*a.size), 2*a.status)
	grow(b.answered, now, rate.Limit(answeredRate+6*rewriteRate*a.size), answeredBurst)
	grow(b.worked, now, rate.Limit(workRate+2*rewriteRate*a.size/bytesWorked), workBurst)
}

// grow gives a limiter more, at once. It never takes anything back: a pod that grows and
// shrinks by turns would be given more each time.
func grow(l *rate.Limiter, now time.Time, limit rate.Limit, burst int) {
	if limit > l.Limit() {
		l.SetLimitAt(now, limit)
	}
	if more := burst - l.Burst(); more > 0 && l.Limit() != rate.Inf {
		l.SetBurstAt(now, burst)
		l.ReserveN(now, -more)
	}
}
