//go:build e2e

package pods

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// runtimeClass makes a RuntimeClass until the test ends.
func (s *space) runtimeClass(class *nodev1.RuntimeClass) {
	s.Helper()
	classes := world.Admin.NodeV1().RuntimeClasses()
	if _, err := classes.Create(s.Context(), class, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = classes.Delete(context.Background(), class.Name, metav1.DeleteOptions{}) })
}

// ids are what differs from node to node in what a kubelet says.
var ids = regexp.MustCompile(`[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// refusal is why a pod does not run, as its status or its Events say; "" as long as nobody says.
func (s *space) refusal(ctx context.Context, name string) (string, error) {
	pod, err := s.Pod(ctx, name)
	if err != nil {
		return "", err
	}
	if pod.Status.Phase == corev1.PodFailed {
		return pod.Status.Reason + ": " + pod.Status.Message, nil
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return w.Reason + ": " + w.Message, nil
		}
	}
	list, err := world.Admin.CoreV1().Events(s.NS).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return "", err
	}
	for _, e := range list.Items {
		if strings.HasPrefix(e.Reason, "FailedCreatePodSandBox") {
			return e.Reason + ": " + e.Message, nil
		}
	}
	return "", nil
}

func TestACellRefusesAPodInTheWordsOfAnOrdinaryNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	unknown := s.NS + "-gvisor"
	s.runtimeClass(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: unknown}, Handler: "runsc"})
	pods := map[string]struct{ spec, want string }{
		"class":    {"  runtimeClassName: " + unknown + "\n", `no runtime for "runsc" is configured`},
		"apparmor": {"  securityContext: {appArmorProfile: {type: RuntimeDefault}}\n", "AppArmor"},
		"profile":  {"  securityContext: {appArmorProfile: {type: Localhost, localhostProfile: mine}}\n", "AppArmor"},
		"seccomp":  {"  securityContext: {seccompProfile: {type: Localhost, localhostProfile: not/there.json}}\n", "not/there.json"},
		"sysctl":   {"  securityContext: {sysctls: [{name: kernel.msgmax, value: '65536'}]}\n", "SysctlForbidden"},
	}
	const containers = "  containers: [{name: main, image: 'busybox:1.36', command: [sleep, '100000']}]\n"
	for name, p := range pods {
		kip := namespace.Bare(name+"-kip", p.spec+containers)
		s.Apply(kip)
		node := strings.Replace(namespace.Bare(name+"-node", p.spec+containers), "type: virtual-kubelet", "kubernetes.io/hostname: node-1", 1)
		s.Apply(node)
	}
	for name, p := range pods {
		said := map[string]string{}
		for _, where := range []string{"node", "kip"} {
			pod := name + "-" + where
			s.Eventually("pod "+pod+" is refused", func(ctx context.Context) error {
				why, err := s.refusal(ctx, pod)
				if err == nil && why == "" {
					err = errors.New("nobody says so")
				}
				said[where] = strings.ReplaceAll(ids.ReplaceAllString(why, "ID"), pod, "POD")
				return err
			})
		}
		if said["kip"] != said["node"] || !strings.Contains(said["kip"], p.want) {
			t.Errorf("%s: a cell says\n%s\nan ordinary node\n%s\nwant %q", name, said["kip"], said["node"], p.want)
		}
	}
}

func TestARuntimeClassPlacesItsPodsAndCountsItsOverhead(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	class := s.NS + "-large"
	s.runtimeClass(&nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: "runc",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("5Gi")}},
		// With it Kip's admission adds the toleration.
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"type": "virtual-kubelet"}},
	})
	pod := func(name string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  terminationGracePeriodSeconds: 1\n" +
			"  containers: [{name: main, image: 'busybox:1.36', command: [sleep, '100000'], resources: {requests: {cpu: 100m, memory: 64Mi}}}]\n"
	}
	s.Apply(strings.Replace(pod("over"), "spec:\n", "spec:\n  runtimeClassName: "+class+"\n", 1))
	s.Apply(strings.Replace(pod("plain"), "spec:\n", "spec:\n  nodeSelector: {type: virtual-kubelet}\n", 1))
	over := s.WaitReady("over")
	s.WaitReady("plain")
	if over.Spec.NodeName != harness.Node || over.Spec.Overhead.Memory().String() != "5Gi" {
		t.Errorf("it is on %s with an overhead of %v", over.Spec.NodeName, over.Spec.Overhead)
	}
	large, small := s.CellOf("over").Status.InstanceType, s.CellOf("plain").Status.InstanceType
	if large != "m6i.large" || small != "t3.micro" {
		t.Errorf("its cell is a %s, that of the same pod without overhead a %s", large, small)
	}
}

// To Kip these are cells of EC2. Their agents know that they share a kernel, which reserves no pages for one of them.
func TestAPodWithHugePagesWaitsAndIsToldWhy(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	const spec = `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '100000']
    resources: {requests: {cpu: 100m, memory: 64Mi, hugepages-2Mi: 64Mi}, limits: {memory: 64Mi, hugepages-2Mi: 64Mi}}
`
	s.Apply(namespace.Bare("scheduled", spec))
	s.WaitEvent("scheduled", "FailedScheduling", "Insufficient hugepages-2Mi")
	s.Apply(namespace.Bare("bound", "  nodeName: "+harness.Node+"\n"+spec))
	s.WaitEvent("bound", "HugePagesRefused", "reserve hugepages-2Mi: this machine shares its kernel with others")
	s.Eventually("the cell is gone", s.NoCellOf("bound"))
	s.Never("it has a cell", s.NoCellOf("bound"), func(ctx context.Context) error {
		pod, err := s.Pod(ctx, "bound")
		if err == nil && pod.Status.Phase != corev1.PodPending {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return err
	})
}
