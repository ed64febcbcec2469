//go:build e2e

// Package aws proves on the real parts, as package e2e does, what Kip does on EC2: the
// driver and its SDK ask a model of it, under the policy that the documentation gives, and
// local cells stand behind its instances. Its tests inject faults, one after the other, but for those
// that wait for long.
package aws

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// The network of the cells.
var (
	ownNetwork = harness.MustClaim("aws")
	bridge     = ownNetwork.Bridge
)

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	o := harness.Options{Network: ownNetwork, Race: true, Stderr: os.Stderr, DevArgs: []string{"--cloud", "aws"}}
	os.Exit(harness.Main(o, &world, m.Run))
}

// space is a namespace of a test's own, and the model.
type space struct {
	*namespace.Space
	model harness.Model
}

func newSpace(t *testing.T) *space {
	t.Helper()
	m := world.Model()
	if m.URL == "" {
		t.Fatal("Kip's cloud is not EC2")
	}
	return &space{namespace.New(t, world), m}
}

// order changes what the model does.
func (s *space) order(what string, body any) {
	s.Helper()
	if err := s.model.Order(context.Background(), what, body); err != nil {
		s.Fatalf("%v: %+v", err, body)
	}
}

func (s *space) state(ctx context.Context) (state ec2.State) {
	s.Helper()
	if err := s.model.State(ctx, &state); err != nil {
		s.Fatal(err)
	}
	return state
}

// account asks EC2 as somebody else who uses the account: an administrator, or the controller of a
// driver. It returns the answer, and EC2's code if that is no success.
func (s *space) account(ctx context.Context, action string, parameters ...string) (answer []byte, code string) {
	s.Helper()
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	for _, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		form.Set(name, value)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.model.URL, strings.NewReader(form.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	// The model looks at no signature.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+machines.AdministratorKeyID+"/any")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		s.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		return answer, ""
	}
	var failed struct {
		Code string `xml:"Errors>Error>Code"`
	}
	if err := xml.Unmarshal(answer, &failed); err != nil || failed.Code == "" {
		s.Fatalf("%s: %d %s", action, resp.StatusCode, answer)
	}
	return answer, failed.Code
}

// since are the instances that there were not in an earlier state.
func (s *space) since(ctx context.Context, before ec2.State) []sim.Instance {
	s.Helper()
	return slices.DeleteFunc(s.state(ctx).Instances, func(i sim.Instance) bool {
		return slices.ContainsFunc(before.Instances, func(b sim.Instance) bool { return b.ID == i.ID })
	})
}

// only returns the one instance that there was not in an earlier state.
func (s *space) only(before ec2.State) sim.Instance {
	s.Helper()
	all := s.since(s.Context(), before)
	if len(all) != 1 {
		s.Fatalf("%d instances were launched, want 1: %+v", len(all), all)
	}
	return all[0]
}

// of returns the instance that a pod is on.
func (s *space) of(p *corev1.Pod) sim.Instance {
	s.Helper()
	all := s.state(s.Context()).Instances
	n := slices.IndexFunc(all, func(i sim.Instance) bool { return i.ManagementIP.String() == p.Status.HostIP && i.Ended.IsZero() })
	if n < 0 {
		s.Fatalf("pod %s is on %s, which no instance has: %+v", p.Name, p.Status.HostIP, all)
	}
	return all[n]
}

// waitOver waits until a pod and all instances since an earlier state are gone.
func (s *space) waitOver(pod string, before ec2.State) {
	s.Helper()
	s.Eventually("pod "+pod+" and its instance are gone", func(ctx context.Context) error {
		if p, err := s.Pod(ctx, pod); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is there (%v): %s", pod, err, namespace.States(p))
		}
		for _, i := range s.since(ctx, before) {
			if i.Ended.IsZero() {
				return fmt.Errorf("instance %s is %s", i.ID, i.State)
			}
		}
		return nil
	})
}

// pod sleeps; annotations are YAML, in braces.
func pod(name, annotations string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", annotations: " + annotations + `}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; echo hello; while :; do sleep 0.1; done']
    resources: {requests: {cpu: 100m, memory: 64Mi}}
`
}

// says asks the metadata service from a pod, and returns all that is answered.
func (s *space) says(ctx context.Context, pod string, request ...string) string {
	s.Helper()
	lines := strings.Join(append(request, "Host: 169.254.169.254", "Connection: close"), `\r\n`) + `\r\n\r\n`
	out, _, _ := s.Attempt(ctx, "exec", pod, "--", "sh", "-c", "printf '"+lines+"' | nc -w 5 169.254.169.254 80 2>&1")
	return out
}

const token, lifetime = "X-aws-ec2-metadata-token: ", "X-aws-ec2-metadata-token-ttl-seconds: 60"

func TestAPodRunsOnAnInstance(t *testing.T) {
	s := newSpace(t)
	before := s.state(t.Context())
	s.Apply(pod("a", "{}"))
	p := s.WaitReady("a")
	i := s.only(before)
	if i.State != cloud.Running || p.Status.HostIP != i.ManagementIP.String() {
		t.Errorf("the pod is on %s, the instance is %+v", p.Status.HostIP, i)
	}
	s.Eventually("the instance has the tags of its pod", func(context.Context) error {
		if tags := s.only(before).Tags; tags[cloud.TagPod] != "a" || tags[cloud.TagPodUID] != string(p.UID) {
			return fmt.Errorf("it has %v", tags)
		}
		return nil
	})
	if log := s.Kubectl("logs", "a"); log != "hello\n" {
		t.Errorf("the log is %q", log)
	}
	if out := s.Kubectl("exec", "a", "--", "echo", "inside"); out != "inside\n" {
		t.Errorf("exec prints %q", out)
	}
	if out := s.says(t.Context(), "a", "PUT /latest/api/token HTTP/1.1", lifetime); strings.Contains(out, "200 OK") {
		t.Errorf("a pod that may not reads metadata: %q", out)
	}
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.waitOver("a", before)
	if i := s.only(before); i.Cause != sim.Terminated {
		t.Errorf("the instance has ended by %q, want it terminated", i.Cause)
	}
}

func TestTheNextTypeIsTakenWhereOneIsUsedUp(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	s.Apply(pod("small", "{}"))
	s.WaitReady("small")
	cheapest := s.only(before).InstanceType
	s.order("capacity", cloudmodel.Capacity{Type: cheapest, Instances: 0})
	defer s.order("capacity", cloudmodel.Capacity{Type: cheapest, Instances: -1})
	before = s.state(t.Context())
	s.Apply(pod("other", "{}"))
	s.WaitReady("other")
	if i := s.only(before); i.InstanceType == cheapest {
		t.Errorf("the instance is a %s, of which there is none", i.InstanceType)
	}
	if out := s.Kubectl("get", "events"); !strings.Contains(out, "InsufficientInstanceCapacity") {
		t.Errorf("no event says why:\n%s", out)
	}
}

// claimed is a claim of Kip's own class, and onClaim a pod that has it at /data.
const claimed = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: kip, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
`

func onClaim(name string) string {
	return pod(name, "{}") + `    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`
}

// attachedBy returns the one volume that there was not in an earlier state, which the instance of
// a pod has; nobody but Kip has attached it.
func (s *space) attachedBy(before ec2.State, p *corev1.Pod) ec2.Volume {
	s.Helper()
	state := s.state(s.Context())
	var all []ec2.Volume
	for _, v := range state.Volumes {
		if !slices.ContainsFunc(before.Volumes, func(b ec2.Volume) bool { return b.ID == v.ID }) {
			all = append(all, v)
		}
	}
	if len(all) != 1 || !all[0].Encrypted || all[0].Kind != "gp3" {
		s.Fatalf("the volumes are %+v, want one that is encrypted", all)
	}
	on := slices.IndexFunc(state.Instances, func(i sim.Instance) bool { return i.ID == all[0].Instance })
	if on < 0 || state.Instances[on].ManagementIP.String() != p.Status.HostIP {
		s.Errorf("pod %s is on %s, its volume is %+v", p.Name, p.Status.HostIP, all[0])
	}
	attachments, err := world.Admin.StorageV1().VolumeAttachments().List(s.Context(), metav1.ListOptions{})
	if err != nil || len(attachments.Items) > 0 {
		s.Errorf("there are VolumeAttachments, which are for controllers that attach: %+v (%v)", attachments, err)
	}
	return all[0]
}

func TestAVolumeGoesFromOneInstanceToTheNext(t *testing.T) {
	s := newSpace(t)
	before := s.state(t.Context())
	s.Apply(claimed + onClaim("writer"))
	volume := s.attachedBy(before, s.WaitReady("writer"))
	s.Kubectl("exec", "writer", "--", "sh", "-c", "echo precious > /data/f")
	s.Kubectl("delete", "pod", "writer", "--wait=false")
	s.waitOver("writer", before)
	s.Apply(onClaim("reader"))
	if again := s.attachedBy(before, s.WaitReady("reader")); again.ID != volume.ID || again.Instance == volume.Instance {
		t.Errorf("the volume was %+v and is %+v", volume, again)
	}
	if out := s.Kubectl("exec", "reader", "--", "cat", "/data/f"); out != "precious\n" {
		t.Errorf("the reader finds %q", out)
	}
	s.expand("data", "2Gi")
	s.waitSize("data", volume.ID, 2)
	s.Kubectl("delete", "pod", "reader", "--wait=false")
	s.waitOver("reader", before)
	s.Kubectl("delete", "pvc", "data", "--wait=false")
	s.waitDeleted(volume.ID)
}

// expand has a claim ask for more.
func (s *space) expand(claim, size string) {
	s.Helper()
	s.Kubectl("patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
}

// waitSize waits until the volume of a claim has so many GiB, for EC2 and for Kubernetes, whoever
// has yet to make its file system larger.
func (s *space) waitSize(claim, volume string, gib int) {
	s.Helper()
	s.Eventually(fmt.Sprintf("volume %s has %d GiB", volume, gib), func(ctx context.Context) error {
		pvc, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pv, err := world.Admin.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all := s.state(ctx).Volumes
		if has := pv.Spec.Capacity.Storage().Value() >> 30; has != int64(gib) || !slices.ContainsFunc(all, func(v ec2.Volume) bool {
			return v.ID == volume && v.GiB == gib
		}) {
			return fmt.Errorf("its PersistentVolume has %d GiB, the volumes are %+v, the claim says %+v", has, all, pvc.Status)
		}
		return nil
	})
}

// waitDeleted waits until a volume is gone.
func (s *space) waitDeleted(volume string) {
	s.Helper()
	s.Eventually("the volume is deleted", func(ctx context.Context) error {
		if all := s.state(ctx).Volumes; slices.ContainsFunc(all, func(v ec2.Volume) bool { return v.ID == volume }) {
			return fmt.Errorf("there are %+v", all)
		}
		return nil
	})
}
