//go:build e2e

package aws

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// classIn makes a class of Kip's own whose disks are in a zone, until the test ends.
func (s *space) classIn(zone string) (name string) {
	s.Helper()
	name = "kip-" + zone
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	all := world.Admin.StorageV1().StorageClasses()
	if _, err := all.Create(s.Context(), &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       volumes.Driver,
		Parameters:        map[string]string{"zone": zone},
		VolumeBindingMode: &wait,
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := all.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	return name
}

// isIn checks that the instance of a pod is in a subnet, with a public address if that gives one.
func (s *space) isIn(p *corev1.Pod, subnet ec2.Subnet) {
	s.Helper()
	if i := s.of(p); i.Zone != subnet.Zone || i.Subnet != subnet.ID {
		s.Errorf("pod %s is on %+v, want it in %+v", p.Name, i, subnet)
	}
	if public := s.described(p).Public; (public != "") != subnet.Public {
		s.Errorf("in %+v the instance of pod %s has the public address %q", subnet, p.Name, public)
	}
}

// A pod that is free to be anywhere is in the first zone: both cost the same.
func TestAPodRunsInTheZoneOfItsVolume(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	here, there := machines.Subnets[0], machines.Subnets[1]
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		delete(provider["cloud"].(map[string]any)["aws"].(map[string]any), "subnetID") // so they are all of the VPC
	})
	claim := strings.Replace(claimed, "storageClassName: kip,", "storageClassName: "+s.classIn(there.Zone)+",", 1)
	before := s.state(t.Context())
	s.Apply(claim + onClaim("writer"))
	writer := s.WaitReady("writer")
	volume := s.attachedBy(before, writer)
	if volume.Zone != there.Zone {
		t.Errorf("the volume is %+v, want it in %s", volume, there.Zone)
	}
	s.isIn(writer, there)
	s.Kubectl("exec", "writer", "--", "sh", "-c", "echo precious > /data/f")
	s.Kubectl("delete", "pod", "writer", "--wait=false")
	s.waitOver("writer", before)

	// Of a type that no test uses up.
	s.Apply(onClaim("reader") + "---\n" + pod("free", "{pod.elotl.co/instance-type: "+machines.Types()[1].Name+"}"))
	reader := s.WaitReady("reader")
	if again := s.attachedBy(before, reader); again.ID != volume.ID || again.Instance == volume.Instance {
		t.Errorf("the volume was %+v and is %+v", volume, again)
	}
	s.isIn(reader, there)
	s.isIn(s.WaitReady("free"), here)
	if out := s.Kubectl("exec", "reader", "--", "cat", "/data/f"); out != "precious\n" {
		t.Errorf("the reader finds %q", out)
	}
	for _, name := range []string{"reader", "free"} {
		if log := s.Kubectl("logs", name); log != "hello\n" {
			t.Errorf("the log of pod %s is %q", name, log)
		}
		s.Kubectl("delete", "pod", name, "--wait=false")
	}
	s.waitOver("reader", before)
	s.waitOver("free", before)
	s.Kubectl("delete", "pvc", "data", "--wait=false")
	s.waitDeleted(volume.ID)
	restore()
}
