package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/doctor"
	"github.com/elotl/kip/internal/placement"
)

// virtualNodes selects the nodes of Kip.
const virtualNodes = "type=virtual-kubelet"

// requestTimeout bounds one request to the API server.
const requestTimeout = 30 * time.Second

// errNoCellResource says that the cluster does not have the Cell resource.
var errNoCellResource = errors.New("this cluster has no resource cells." + apiv1.GroupVersion.Group + ": has Kip been started in it?")

// cluster is the Kubernetes API.
type cluster struct {
	config  *rest.Config // nothing changes it
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	crds    apiextensionsclient.CustomResourceDefinitionInterface
	exec    execFunc
	host    string
	raw     func(ctx context.Context, path string) (doctor.Answer, error)
}

func connect(c clientcmd.ClientConfig) (*cluster, error) {
	config, err := c.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no Kubernetes cluster to ask: give --kubeconfig, or set KUBECONFIG")
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.Timeout = requestTimeout
	config.QPS, config.Burst = 20, 40 // try measures seconds: client-go's own five requests a second would delay it
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	extensions, err := apiextensionsclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	raw, err := doctor.Raw(config, kube.CoreV1().RESTClient())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &cluster{
		config:  config,
		kube:    kube,
		dynamic: dyn,
		crds:    extensions.CustomResourceDefinitions(),
		exec:    execIn(config, kube.CoreV1().RESTClient()),
		host:    config.Host,
		raw:     raw,
	}, nil
}

// cell is a Cell, and the object as the API server has it.
type cell struct {
	apiv1.Cell
	object map[string]any
}

func toCell(u *unstructured.Unstructured) (cell, error) {
	c := cell{object: u.Object}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c.Cell); err != nil {
		return c, fmt.Errorf("cell %s is not as this kipctl expects it: %w", u.GetName(), err)
	}
	return c, nil
}

// cells are all of them, by name.
func (c *cluster) cells(ctx context.Context) ([]cell, error) {
	found, err := c.dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errNoCellResource
	}
	if err != nil {
		return nil, fmt.Errorf("list cells: %w", err)
	}
	cells := make([]cell, 0, len(found.Items))
	for i := range found.Items {
		one, err := toCell(&found.Items[i])
		if err != nil {
			return nil, err
		}
		cells = append(cells, one)
	}
	slices.SortFunc(cells, func(a, b cell) int { return cmp.Compare(a.Name, b.Name) })
	return cells, nil
}

// newestByPod are the cells by the UID of their pod. A pod that was tried on
// several has the last.
func newestByPod(cells []cell) map[types.UID]cell {
	byPod := make(map[types.UID]cell, len(cells))
	for _, c := range cells {
		if was, ok := byPod[c.Status.Pod.UID]; !ok || was.Status.Attempt < c.Status.Attempt {
			byPod[c.Status.Pod.UID] = c
		}
	}
	return byPod
}

// pods are those on virtual nodes, by namespace and name; in all namespaces if
// namespace is empty.
func (c *cluster) pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: virtualNodes})
	if err != nil {
		return nil, fmt.Errorf("list virtual nodes: %w", err)
	}
	var pods []corev1.Pod
	for _, n := range nodes.Items {
		on := fields.OneTermEqualSelector("spec.nodeName", n.Name).String()
		found, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: on})
		if err != nil {
			return nil, fmt.Errorf("list pods on node %s: %w", n.Name, err)
		}
		pods = append(pods, found.Items...)
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// explain says of a pod what the Kubernetes API knows.
func (c *cluster) explain(ctx context.Context, namespace, name string) (*adminapi.Explanation, error) {
	pod, err := c.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	if on := pod.Spec.NodeName; on != "" {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, on, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get node %s: %w", on, err)
		}
		if err == nil && node.Labels["type"] != "virtual-kubelet" {
			if by := pod.Annotations[placement.AnnotationProfile]; by != "" {
				return nil, fmt.Errorf("pod %s/%s is on node %s, which is not a virtual node: profile %s chose it when it was made (docs/profiles.md)",
					namespace, name, on, by)
			}
			return nil, fmt.Errorf("pod %s/%s is on node %s, which is not a virtual node: Kip has no part in it", namespace, name, on)
		}
	}
	e := &adminapi.Explanation{Pod: apiv1.Ref(pod), Node: pod.Spec.NodeName, PodPhase: string(pod.Status.Phase), Ended: adminapi.EndOf(pod),
		Profile: pod.Annotations[placement.AnnotationProfile]}
	cells, err := c.cells(ctx)
	if err != nil && !errors.Is(err, errNoCellResource) {
		return nil, err
	}
	if own, ok := newestByPod(cells)[pod.UID]; ok {
		e.Cell = &adminapi.Cell{Name: own.Name, Status: own.Status}
	}
	e.Waiting = waiting(pod, e.Cell)
	if k := apiv1.WithoutMachine(pod); k != nil {
		e.NoMachine = k.Message
	}
	if e.Events, err = c.events(ctx, namespace, pod.UID); err != nil {
		return nil, err
	}
	if n := len(e.Events); n > 0 && e.Cell == nil && e.Waiting != "" && e.Node != "" {
		e.Waiting += ": " + e.Events[n-1].Message // Kip says there why it waits
	}
	return e, nil
}

// events are those about a pod, oldest first.
func (c *cluster) events(ctx context.Context, namespace string, uid types.UID) ([]adminapi.Event, error) {
	about := fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String()
	list, err := c.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: about})
	if err != nil {
		return nil, fmt.Errorf("list the events of pod %s in namespace %s: %w", uid, namespace, err)
	}
	events := make([]adminapi.Event, 0, len(list.Items))
	for i := range list.Items {
		events = append(events, shortEvent(&list.Items[i]))
	}
	slices.SortStableFunc(events, func(a, b adminapi.Event) int { return a.Time.Compare(b.Time) })
	return events, nil
}

// waiting is what a pod waits for, as far as it and its cell tell.
func waiting(pod *corev1.Pod, c *adminapi.Cell) string {
	if pod.Status.Phase != corev1.PodPending {
		return ""
	}
	if pod.Spec.NodeName == "" {
		for _, cond := range pod.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
				return "a node: " + cmp.Or(cond.Message, cond.Reason)
			}
		}
		return "the scheduler"
	}
	switch {
	case c == nil:
		return "a cell"
	case c.Status.Phase != apiv1.Bound:
		why := "its cell, which is " + string(c.Status.Phase)
		if c.Status.Reason != "" {
			why += ": " + c.Status.Reason
		}
		return why
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			why := fmt.Sprintf("container %s: %s", s.Name, w.Reason)
			if w.Message != "" {
				why += ": " + w.Message
			}
			return why
		}
	}
	return "its containers to start"
}

func shortEvent(e *corev1.Event) adminapi.Event {
	s := adminapi.Event{
		Count:   e.Count,
		Type:    e.Type,
		Reason:  e.Reason,
		Message: e.Message,
		Time:    e.CreationTimestamp.Time,
	}
	switch {
	case e.Series != nil:
		s.Time, s.Count = e.Series.LastObservedTime.Time, e.Series.Count
	case !e.LastTimestamp.IsZero():
		s.Time = e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		s.Time = e.EventTime.Time
	}
	return s
}
