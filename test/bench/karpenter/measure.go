package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// The Deployment that is measured.
const (
	namespace = "kip-bench"
	name      = "load"
	// first is the pod that runs before, and stays.
	first = "first"
	// podCPU is what a pod asks for. A machine of Karpenter's has 1900m left for
	// pods, so that it takes one.
	podCPU = "1500m"
)

// poll is how often something is looked at that is not watched.
const poll = 50 * time.Millisecond

// product provides the machines.
type product interface {
	start(context.Context) error
	// processes are its own, by name.
	processes() map[string]int
	// settled waits until it is done with the machines of these nodes, one a pod.
	settled(ctx context.Context, nodes []string) error
	// stop ends its processes, remove takes it out of the cluster when the pods are
	// gone, both however far start came.
	stop(context.Context) error
	remove(context.Context) error
}

type measure struct {
	*cluster
	options
	product product // nil: it runs already
}

// result is what is printed.
type result struct {
	Pods int `json:"pods"`
	// BoundSeconds is from posting the Deployment to all pods being bound,
	// WallSeconds to the end of the window.
	BoundSeconds float64 `json:"bound_seconds"`
	WallSeconds  float64 `json:"wall_seconds"`
	// LostPods failed or were deleted, and were replaced within the window.
	LostPods  int                `json:"lost_pods"`
	Processes map[string]process `json:"processes"`
	// OtherCPUSeconds is what the rest of this machine used meanwhile. Where it is
	// not small against WallSeconds, the times say little.
	OtherCPUSeconds float64  `json:"other_cpu_seconds"`
	APIRequests     requests `json:"api_requests"`
}

// labels of the pods, by the name of what made them.
func labels(name string) map[string]string { return map[string]string{"app": name} }

func (m measure) run(ctx context.Context) (*result, error) {
	if err := m.warmUp(ctx); err != nil {
		return nil, fmt.Errorf("the pod before the window: %w", err)
	}
	pids := maps.Clone(m.options.processes)
	if m.product != nil {
		maps.Copy(pids, m.product.processes())
	}
	before, err := m.mark(ctx)
	if err != nil {
		return nil, err
	}
	used := map[string]time.Duration{}
	for name, pid := range pids {
		if err := resetPeakMemory(pid); err != nil {
			return nil, fmt.Errorf("process %s: %w", name, err)
		}
		if used[name], err = cpu(pid); err != nil {
			return nil, fmt.Errorf("process %s: %w", name, err)
		}
	}

	machine, err := machineCPU()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := m.client.AppsV1().Deployments(namespace).Create(ctx, m.deployment(), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("post the Deployment: %w", err)
	}
	pods, err := m.await(ctx, name, m.pods)
	if err != nil {
		return nil, err
	}
	if m.product != nil {
		if err := m.product.settled(ctx, slices.Collect(maps.Values(pods.nodes))); err != nil {
			return nil, err
		}
	}
	wall := time.Since(began)

	r := &result{
		Pods:         m.pods,
		BoundSeconds: pods.bound.Sub(began).Seconds(),
		WallSeconds:  wall.Seconds(),
		LostPods:     len(pods.lost),
		Processes:    map[string]process{},
	}
	busy, err := machineCPU()
	if err != nil {
		return nil, err
	}
	r.OtherCPUSeconds = (busy - machine).Seconds()
	for name, pid := range pids {
		p := process{}
		now, err := cpu(pid)
		if err == nil {
			p.CPUSeconds = (now - used[name]).Seconds()
			p.PeakMemoryBytes, err = peakMemory(pid)
		}
		if err != nil {
			return nil, fmt.Errorf("process %s: %w", name, err)
		}
		r.Processes[name] = p
		r.OtherCPUSeconds -= p.CPUSeconds
	}
	after, err := m.mark(ctx)
	if err != nil {
		return nil, err
	}
	r.APIRequests, err = readRequests(ctx, m.auditLog, before, after, m.pods)
	return r, err
}

// warmUp runs a pod before the window, with a machine that is as the others: the first
// launch of a new store, or of a new process, is not what is compared. It stays, so that
// no other gets its machine.
func (m measure) warmUp(ctx context.Context) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: first, Labels: labels(first)}, Spec: m.podSpec()}
	if _, err := m.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("post it: %w", err)
	}
	pods, err := m.await(ctx, first, 1)
	if err != nil || m.product == nil {
		return err
	}
	return m.product.settled(ctx, slices.Collect(maps.Values(pods.nodes)))
}

// serviceAccount waits until pods can be created in the namespace.
func (c *cluster) serviceAccount(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("wait for the service account of namespace %s: %w", namespace, err)
	}
	return nil
}

func (m measure) deployment() *appsv1.Deployment {
	replicas := int32(m.pods)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels(name)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels(name)},
				Spec:       m.podSpec(),
			},
		},
	}
}

func (m measure) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		NodeSelector:                  m.nodeSelector,
		TerminationGracePeriodSeconds: new(int64),
		Containers: []corev1.Container{{
			Name:            "main",
			Image:           "kip.elotl.co/pause:1",
			ImagePullPolicy: corev1.PullIfNotPresent,
			Resources:       corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(podCPU)}},
		}},
	}
}

// await waits until as many pods as wanted of those of a name are as they have to be.
func (m measure) await(ctx context.Context, name string, want int) (*pods, error) {
	client, selector := m.client.CoreV1().Pods(namespace), metav1.FormatLabelSelector(metav1.SetAsLabelSelector(labels(name)))
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return client.Watch(ctx, o)
		},
	}
	seen := &pods{nodes: map[string]string{}, running: map[string]bool{}, lost: map[string]bool{}}
	all := cache.ToListWatcherWithWatchListSemantics(lw, m.client)
	_, err := watchtools.UntilWithSync(ctx, all, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			return false, fmt.Errorf("watch the pods: %w", apierrors.FromObject(e.Object))
		}
		seen.see(pod, e.Type == watch.Deleted)
		if len(seen.nodes) < want {
			seen.bound = time.Time{}
		} else if seen.bound.IsZero() {
			seen.bound = time.Now()
		}
		return len(seen.nodes) == want && (!m.untilRunning || len(seen.running) == want), nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the pods (%d of %d bound, %d running, %d lost): %w", len(seen.nodes), want, len(seen.running),
			len(seen.lost), err)
	}
	return seen, nil
}

// pods are those that are waited for, by name.
type pods struct {
	nodes   map[string]string // of those that are bound
	running map[string]bool
	lost    map[string]bool // failed or deleted: the ReplicaSet makes others for them
	bound   time.Time       // since when all are bound
}

func (p *pods) see(pod *corev1.Pod, deleted bool) {
	if deleted || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed {
		delete(p.nodes, pod.Name)
		delete(p.running, pod.Name)
		p.lost[pod.Name] = true
		return
	}
	if pod.Spec.NodeName != "" {
		p.nodes[pod.Name] = pod.Spec.NodeName
	}
	if pod.Status.Phase == corev1.PodRunning {
		p.running[pod.Name] = true
	}
}

// mark makes a request that is found in the audit log.
func (m measure) mark(ctx context.Context) (string, error) {
	id := fmt.Sprintf("mark-%d", time.Now().UnixNano())
	if _, err := m.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, id, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("ask the API server for what is not there: %w", errors.Join(err, errors.New("want NotFound")))
	}
	return id, nil
}

// removePods removes what is measured, and waits until it is gone.
func (c *cluster) removePods(ctx context.Context) error {
	foreground := metav1.DeletePropagationForeground
	deployments := c.client.AppsV1().Deployments(namespace)
	byName := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	if err := deployments.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the Deployment: %w", err)
		}
	} else if err := gone(ctx, func(ctx context.Context) (int, error) {
		list, err := deployments.List(ctx, byName)
		if err != nil {
			return 0, err
		}
		return len(list.Items), nil
	}); err != nil {
		return fmt.Errorf("wait for the end of the Deployment: %w", err)
	}
	namespaces := c.client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %s: %w", namespace, err)
	}
	if err := gone(ctx, func(ctx context.Context) (int, error) {
		list, err := namespaces.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", namespace).String()})
		if err != nil {
			return 0, err
		}
		return len(list.Items), nil
	}); err != nil {
		return fmt.Errorf("wait for the end of namespace %s: %w", namespace, err)
	}
	return nil
}

// gone waits until nothing is left.
func gone(ctx context.Context, count func(context.Context) (int, error)) error {
	left := 0
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		var err error
		left, err = count(ctx)
		return left == 0, err
	})
	if err != nil {
		return fmt.Errorf("%d left: %w", left, err)
	}
	return nil
}
