package namespace

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
)

// OnKip makes a pod's spec run on the virtual node: the beginning of every
// manifest here.
const OnKip = `nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 2
`

// NoOtherCells proves that only the named pods have cells, and that the others wait.
// A Cell is shown a moment late, so each look is when a pod that came later has its
// own and runs.
func (s *Space) NoOtherCells(pods ...string) {
	s.Helper()
	for range Looks {
		s.Apply(Sleeper("later"))
		s.WaitReady("later")
		cells, err := s.Cells(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, c := range cells {
			if name := c.Status.Pod.Name; name != "later" && !slices.Contains(pods, name) {
				s.Errorf("pod %s has cell %s, which is %s", name, c.Name, c.Status.Phase)
			}
		}
		all, err := s.World.Admin.CoreV1().Pods(s.NS).List(s.Context(), metav1.ListOptions{})
		if err != nil {
			s.Fatal(err)
		}
		for _, p := range all.Items {
			if p.Name != "later" && !slices.Contains(pods, p.Name) && p.Status.Phase != corev1.PodPending {
				s.Errorf("pod %s, which is to wait, is %s", p.Name, p.Status.Phase)
			}
		}
		s.Kubectl("delete", "pod", "later", "--wait=false")
		s.WaitGone("later")
	}
}

// WaitGone waits until a pod and its cell are gone.
func (s *Space) WaitGone(name string) {
	s.Helper()
	s.Eventually("pod "+name+" and its cell are gone", func(ctx context.Context) error {
		if _, err := s.Pod(ctx, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is still there (%v)", err)
		}
		return s.NoCellOf(name)(ctx)
	})
}

// CellOf returns the one cell of a pod.
func (s *Space) CellOf(name string) apiv1.Cell {
	s.Helper()
	var found apiv1.Cell
	s.Eventually("pod "+name+" has its cell", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		n := 0
		for _, c := range cells {
			if c.Status.Pod.Name == name {
				found = c
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("it has %d cells", n)
		}
		return nil
	})
	return found
}

// WaitEvent waits for an event about a pod whose reason is given and whose
// message contains text.
func (s *Space) WaitEvent(pod, reason, text string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("event %s on pod %s with %q", reason, pod, text), func(ctx context.Context) error {
		list, err := s.World.Admin.CoreV1().Events(s.NS).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("the pod's events are\n  %s", strings.Join(seen, "\n  "))
	})
}

// NoCellOf checks that a pod, which may still be there, has no cell.
func (s *Space) NoCellOf(pod string) func(context.Context) error {
	return func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if c.Status.Pod.Name == pod {
				return fmt.Errorf("cell %s is %s", c.Name, c.Status.Phase)
			}
		}
		return nil
	}
}

// Bare is a pod on the virtual node; spec is indented by two.
func Bare(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  " + OnKip + spec
}

// Sleeper is a pod that runs a shell until it is told to stop.
func Sleeper(name string) string {
	return Bare(name, `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; echo started; while :; do sleep 0.1; done']
`)
}

// WebServer is a pod that serves text at port 8080.
func WebServer(name, spec, text string) string {
	return Bare(name, spec+`  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /tmp/www; echo `+text+` > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`)
}

// PodsOf are the pods with a label app, without those that are being deleted.
func (s *Space) PodsOf(ctx context.Context, app string) ([]corev1.Pod, error) {
	list, err := s.World.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// WaitPodOf waits until a controller has a Ready pod other than one of this name.
func (s *Space) WaitPodOf(app, other string) *corev1.Pod {
	s.Helper()
	var found *corev1.Pod
	s.Within(LossPatience, "a ready pod of "+app+" other than "+strconv.Quote(other), func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, app)
		if err != nil {
			return err
		}
		var seen []string
		for i := range pods {
			if p := &pods[i]; p.Name != other && IsReady(p) {
				found = p
				return nil
			}
			seen = append(seen, fmt.Sprintf("%s is %s: %s", pods[i].Name, pods[i].Status.Phase, States(&pods[i])))
		}
		return fmt.Errorf("its pods are %q", seen)
	})
	return found
}

// Sleeps is the spec of a pod of a template, which runs until it is told to stop.
const Sleeps = `      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: 'busybox:1.36', command: [sh, -c, 'trap "exit 0" TERM; echo started; while :; do sleep 0.1; done']}
`

// LossPatience is patience after what Kip itself waits for before it gives a
// silent cell up.
const LossPatience = 90*time.Second + Patience

// Within waits until check returns nil, for longer than a step takes: for what
// Kip waits for itself.
func (s *Space) Within(d time.Duration, what string, check func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	if err := Poll(ctx, check); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}
