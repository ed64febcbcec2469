package hostports

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func TestPortsOfTwoPodsAreToldApartAndRestored(t *testing.T) {
	first, second := NewMark(), NewMark()
	for _, hostIP := range []string{"", "0.0.0.0", "127.0.0.1", "127.1.2.3", "::", "::1"} {
		a, ok := first.Apart(hostIP)
		b, _ := second.Apart(hostIP)
		if address, err := netip.ParseAddr(a); !ok || err != nil || a == b || !address.Is6() {
			t.Errorf("hostIP %q becomes %q and %q, %t (%v): want two addresses", hostIP, a, b, ok, err)
		}
		if again, _ := first.Apart(hostIP); again != a {
			t.Errorf("two ports with the hostIP %q of a pod have %s and %s: the API server does not see that they are one", hostIP, a, again)
		}
		if copied, ok := second.Apart(a); !ok || copied != b {
			t.Errorf("%s of a pod that was copied becomes %q, %t: want %s", a, copied, ok, b)
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 1, HostIP: a}}}},
			Containers:     []corev1.Container{{}, {Ports: []corev1.ContainerPort{{ContainerPort: 80}, {HostPort: 2, HostIP: b}}}},
		}}
		want := pod.DeepCopy()
		want.Spec.InitContainers[0].Ports[0].HostIP, want.Spec.Containers[1].Ports[1].HostIP = hostIP, hostIP
		if Restore(pod); !equality.Semantic.DeepEqual(pod, want) {
			t.Errorf("the cell of a pod with the hostIP %q is shown %+v", hostIP, pod.Spec)
		}
	}
}

func TestAnAddressOfAMachineStays(t *testing.T) {
	for _, hostIP := range []string{"10.0.0.1", "2001:db8::1", "100::fe00:0:0:1", "nonsense", "127.1"} {
		if got, ok := NewMark().Apart(hostIP); ok {
			t.Errorf("hostIP %s becomes %s", hostIP, got)
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 1, HostIP: hostIP}}}}}}
		if Restore(pod); pod.Spec.Containers[0].Ports[0].HostIP != hostIP {
			t.Errorf("a cell is shown %s in place of %s", pod.Spec.Containers[0].Ports[0].HostIP, hostIP)
		}
	}
}
