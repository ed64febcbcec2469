//go:build e2e

// Package qemu proves on the real parts, as package e2e does, that a pod runs on a virtual
// machine that boots the image: the firmware of the machine is QEMU's, all else is what
// cells in clouds have. The machines are emulated, so there are few, and all tests share
// them.
package qemu

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// The network of the cells.
var (
	ownNetwork = harness.MustClaim("qemu")
	ipv6CIDR   = ownNetwork.IPv6CIDR.String()
)

// isPinned reports whether the lock of the boot image's packages has a kernel.
func isPinned(t *testing.T, kernel string) bool {
	t.Helper()
	lock, err := debian.Pinned()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(lock, func(p debian.Package) bool {
		return strings.HasPrefix(path.Base(p.Path), "linux-image-"+kernel+"_")
	})
}

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	o := harness.Options{
		Network:  ownNetwork,
		Stderr:   os.Stderr,
		DevArgs:  []string{"--cloud", "qemu", "--ipv6-cidr", ipv6CIDR},
		Patience: 15 * time.Minute, // machines are emulated
	}
	os.Exit(harness.Main(o, &world, m.Run))
}

// server serves what is on its volume; client sleeps, sees all processes of its machine, and has a profile of AppArmor that it has
// loaded into the machine's kernel. Both are Ready once they can be asked.
const pods = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: kip, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeSelector: {type: virtual-kubelet}
  securityContext: {appArmorProfile: {type: RuntimeDefault}}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo started; echo hello > /data/index.html; sync; exec httpd -f -p 8080 -h /data']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata:
  name: client
  labels: {app: client}
  annotations:
    pod.elotl.co/host-modules: tcp_bbr
    pod.elotl.co/host-sysctls: vm.max_map_count=262144,net.ipv4.tcp_congestion_control=bbr
spec:
  nodeSelector: {type: virtual-kubelet}
  hostPID: true
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: profile
    image: busybox:1.36
    command:
    - sh
    - -c
    - |
      cat >/host/run/profile <<END
      #include <tunables/global>
      profile kip-test flags=(attach_disconnected) {
        #include <abstractions/base>
        file, network, capability, signal, ptrace, unix,
        deny /etc/shadow r,
      }
      END
      chroot /host /sbin/apparmor_parser --replace /run/profile
    securityContext: {privileged: true}
    volumeMounts: [{name: host, mountPath: /host}]
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: kip-test}}
  volumes: [{name: host, hostPath: {path: /}}]
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8080}]}
`

const closed = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: nobody}}}]}]}
`

// gets asks the server at a host, with its port where that is another than 80.
func gets(s *namespace.Space, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, code, errs := s.Attempt(ctx, "exec", "client", "--", "timeout", "3", "wget", "-qO-", "http://"+at+"/index.html")
		if out != "hello\n" {
			return fmt.Errorf("the server says %q (exit %d, %s)", out, code, errs)
		}
		return nil
	}
}

func TestAPodRunsOnAVirtualMachine(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	began := time.Now()
	s.Apply(pods)
	server, client := s.WaitReady("server"), s.WaitReady("client")
	world.SawDisk()
	t.Logf("both pods are Ready after %v", time.Since(began).Round(time.Second))

	t.Run("logs and exec", func(t *testing.T) {
		s := s.For(t)
		if got := s.Kubectl("logs", "server"); got != "started\n" {
			t.Errorf("the log is %q", got)
		}
		if got := s.Kubectl("exec", "server", "--", "cat", "/proc/sys/kernel/hostname"); got != "server\n" {
			t.Errorf("exec prints %q", got)
		}
		// A kernel of its own, not this host's.
		here, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Kubectl("exec", "server", "--", "cat", "/proc/sys/kernel/random/boot_id"); got == string(here) {
			t.Error("the pod runs on this host's kernel")
		}
	})
	t.Run("what its boot took, and the memory that its kernel sees, are as the Cell says", func(t *testing.T) {
		s := s.For(t)
		cells, err := s.Cells(t.Context())
		if err != nil || len(cells) != 2 {
			t.Fatalf("%d cells, %v", len(cells), err)
		}
		cell := cells[0]
		b, before := cell.Status.Boot, time.Duration(0)
		if b == nil {
			t.Fatal("the Cell does not say what its boot took")
		}
		for n, part := range []*metav1.Duration{b.Kernel, b.UserSpace, b.Network, b.Joined, b.Ready} {
			if part == nil || part.Duration < before || part.Duration > time.Since(began) {
				t.Fatalf("part %d of the boot %+v is none, or before another, or longer than the test", n, b)
			}
			before = part.Duration
		}
		types := sizes.Types(runtime.GOARCH)
		typ := types[slices.IndexFunc(types, func(t catalog.InstanceType) bool { return t.Name == cell.Status.InstanceType })]
		var kib int64
		if _, err := fmt.Sscanf(s.Kubectl("exec", cell.Status.Pod.Name, "--", "cat", "/proc/meminfo"), "MemTotal: %d kB", &kib); err != nil {
			t.Fatal(err)
		}
		// Little more at most, or pods pay for what they do not get. What a kernel that Debian has
		// published since takes for itself does not decide whether a commit is good.
		least := catalog.KernelSees(typ.MemoryBytes)
		if kib<<10 < least || kib<<10 > least+typ.MemoryBytes/100 {
			text := fmt.Sprintf("the kernel of a %s sees %d bytes, and %d are taken for granted: measure the constants of internal/catalog anew",
				typ.Name, kib<<10, least)
			if kernel := strings.TrimSpace(s.Kubectl("exec", cell.Status.Pod.Name, "--", "uname", "-r")); isPinned(t, kernel) {
				t.Error(text)
			} else {
				t.Logf("kernel %s, which the lock does not pin: %s", kernel, text)
			}
		}
	})
	t.Run("limits and sysctls are as on other nodes", func(t *testing.T) {
		hasTheLimitsOfANode(t, s.For(t), "server")
	})
	// Those of its neighbour are as ever, as hasTheLimitsOfANode has seen.
	t.Run("the client's kernel is as it asks", func(t *testing.T) {
		s := s.For(t)
		const want = "262144\nbbr\n"
		if got := s.Kubectl("exec", "client", "--", "cat", "/proc/sys/vm/max_map_count",
			"/proc/sys/net/ipv4/tcp_congestion_control"); got != want {
			t.Errorf("the client has %q, want %q", got, want)
		}
	})
	t.Run("AppArmor holds the pods to their profiles", func(t *testing.T) {
		s := s.For(t)
		const secret = "echo secret > /etc/shadow && cat /etc/shadow"
		for pod, want := range map[string]string{"server": "cri-containerd.apparmor.d (enforce)\n", "client": "kip-test (enforce)\n"} {
			if got := s.Kubectl("exec", pod, "--", "cat", "/proc/self/attr/current"); got != want {
				t.Errorf("%s has the profile %q, want %q", pod, got, want)
			}
		}
		if out, code, errs := s.Attempt(t.Context(), "exec", "client", "--", "sh", "-c", secret); code == 0 ||
			!strings.Contains(errs, "Permission denied") {
			t.Errorf("what its profile denies gives the client %q (exit %d, %s)", out, code, errs)
		}
		s.Kubectl("exec", "server", "--", "sh", "-c", secret)
	})
	t.Run("addresses of both families", func(t *testing.T) {
		s := s.For(t)
		ips := server.Status.PodIPs
		if len(ips) != 2 || len(server.Status.HostIPs) != 2 {
			t.Fatalf("the server has the addresses %v, its machine %v", ips, server.Status.HostIPs)
		}
		if a, err := netip.ParseAddr(ips[1].IP); err != nil || !netip.MustParsePrefix(ipv6CIDR).Contains(a) {
			t.Errorf("its second address is %s (%v), want one of %s", ips[1].IP, err, ipv6CIDR)
		}
		s.Eventually("the client reaches the server by IPv6", gets(s, net.JoinHostPort(ips[1].IP, "8080")))
	})
	t.Run("the pod's processes have a worse oom_score_adj than what runs them", func(t *testing.T) {
		s := s.For(t)
		scores := map[string]string{}
		for line := range strings.Lines(s.Kubectl("exec", "client", "--", "sh", "-c",
			`for p in /proc/[0-9]*; do echo "$(tr '\0' ' ' < $p/cmdline | cut -d ' ' -f 1) $(cat $p/oom_score_adj)"; done`)) {
			if name, score, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				scores[name] = score
			}
		}
		for name, want := range map[string]string{"containerd": "-999", "kubelet": "-999", "sh": "1000"} {
			if scores[name] != want {
				t.Errorf("%s has the oom_score_adj %q, want %s: %v", name, scores[name], want, scores)
			}
		}
	})
	t.Run("its machine's console is shown", func(t *testing.T) {
		s := s.For(t)
		cells, err := s.Cells(t.Context())
		if err != nil || len(cells) != 2 {
			t.Fatalf("%d cells, %v", len(cells), err)
		}
		show := exec.CommandContext(t.Context(), world.Tool("kipctl"), "console", cells[0].Name, "--socket", world.Socket)
		out, errs, err := namespace.Run(show)
		if err != nil || !strings.Contains(out, "the agent begins") || !strings.Contains(out, "a pod is here") {
			t.Errorf("kipctl console %s: %v: %s\n%s", cells[0].Name, err, errs, out)
		}
	})
	t.Run("the volume is a disk of the machine", func(t *testing.T) {
		s := s.For(t)
		if got := s.Kubectl("exec", "server", "--", "sh", "-c", "grep ' /data ' /proc/mounts"); !strings.Contains(got, " ext4 ") ||
			!strings.HasPrefix(got, "/dev/") {
			t.Errorf("/data is mounted as %q", got)
		}
		disks, err := filepath.Glob(filepath.Join(world.State, "cloud", "disks", "*", "record.json"))
		if err != nil || len(disks) != 1 {
			t.Fatalf("disks: %q, %v", disks, err)
		}
		var record struct{ Disk cloud.Disk }
		text, err := os.ReadFile(disks[0])
		if err == nil {
			err = json.Unmarshal(text, &record)
		}
		if err != nil || record.Disk.Instance != machine(t, server).ID {
			t.Errorf("the disk is %+v, %v; the server's machine is %s", record.Disk, err, machine(t, server).ID)
		}
	})
	t.Run("a claim is expanded under its pod", func(t *testing.T) {
		s := s.For(t)
		s.Kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
		s.Eventually("the claim has what it asks for", func(ctx context.Context) error {
			pvc, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(ctx, "data", metav1.GetOptions{})
			if err == nil && (pvc.Status.Capacity.Storage().String() != "128Mi" || len(pvc.Status.AllocatedResourceStatuses) > 0) {
				err = fmt.Errorf("its status is %+v", pvc.Status)
			}
			return err
		})
		var mib int
		if _, err := fmt.Sscan(s.Kubectl("exec", "server", "--", "sh", "-c", "df -m /data | awk 'END {print $(NF-4)}'"), &mib); err != nil ||
			mib <= 96 || mib > 128 {
			t.Errorf("the file system has %d MiB of a disk of 128 (%v)", mib, err)
		}
		if got := s.Kubectl("exec", "server", "--", "cat", "/data/index.html"); got != "hello\n" {
			t.Errorf("the file has %q", got)
		}
	})
	t.Run("a Service, and a NetworkPolicy that closes it", func(t *testing.T) {
		s := s.For(t)
		service, err := world.Admin.CoreV1().Services(s.NS).Get(t.Context(), "server", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ip := service.Spec.ClusterIP
		if got := s.Kubectl("exec", "client", "--", "nslookup", "server."+s.NS+".svc.cluster.local."); !strings.Contains(got, ip) {
			t.Errorf("the Service's name is of %q, want %s", got, ip)
		}
		s.Eventually("the client reaches the server", gets(s, ip))
		s.Apply(closed)
		reaches := func(ctx context.Context) error {
			if gets(s, ip)(ctx) == nil {
				return errors.New("it does")
			}
			return nil
		}
		s.Eventually("the client does not reach it any more", reaches)
		s.Never("the client reaches the server", reaches, s.ExecTrue("client"))
		s.Kubectl("delete", "networkpolicy", "server")
		s.Eventually("the client reaches the server again", gets(s, ip))
	})
	t.Run("machines outlive Kip", func(t *testing.T) {
		s := s.For(t)
		if err := world.KillKip(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := world.StartKip(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Eventually("exec works again", s.ExecTrue("server"))
		if again, err := s.Pod(t.Context(), "server"); err != nil || again.UID != server.UID || again.Status.HostIP != server.Status.HostIP ||
			again.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("the pod is %+v, %v; was %+v", again.Status, err, server.Status)
		}
	})
	t.Run("memory that a pod uses up ends its container, and nothing else of the machine", func(t *testing.T) {
		s := s.For(t)
		// The client sees all processes of its machine. Of those with one name the others are forked to start something.
		parts := func() string {
			return s.Kubectl("exec", "client", "--", "sh", "-c",
				`for part in itzo containerd kubelet; do pidof $part | tr ' ' '\n' | sort -n | head -n 1; done`)
		}
		before := parts()
		if len(strings.Fields(before)) != 3 {
			t.Fatalf("the parts of the machine have the PIDs %q", before)
		}
		s.Kubectl("exec", "client", "--", "sh", "-c", "tail /dev/zero >/dev/null 2>&1 &") // it keeps what it has read of a line
		s.Eventually("the kubelet has started the container anew, since the kernel ended it", func(ctx context.Context) error {
			now, err := s.Pod(ctx, "client")
			if err != nil {
				return err
			}
			c := now.Status.ContainerStatuses[0]
			last := c.LastTerminationState.Terminated
			if c.RestartCount != 1 || c.State.Running == nil || last == nil || last.Reason != "OOMKilled" {
				return fmt.Errorf("it is %+v", c)
			}
			return nil
		})
		s.Eventually("exec works", s.ExecTrue("client"))
		if after := parts(); after != before {
			t.Errorf("the parts of the machine had the PIDs %q and have %q", before, after)
		}
	})
	t.Run("memory that a machine has freed goes back to the host", func(t *testing.T) {
		s := s.For(t)
		// All that there was, the container that ended had. What is free in large pieces goes back.
		const part = 128 << 20
		s.Eventually("QEMU has given back a good part of it", func(context.Context) error {
			all, now, err := memory(machine(t, client))
			if err == nil && now > all-part {
				err = fmt.Errorf("the machine has %d MiB, and QEMU %d of them", all>>20, now>>20)
			}
			return err
		})
	})
	t.Run("a pod's end leaves nothing", func(t *testing.T) {
		s := s.For(t)
		s.Kubectl("delete", "pod", "server", "client", "--wait=false")
		s.Eventually("the pods and their cells are gone", func(ctx context.Context) error {
			for _, name := range []string{"server", "client"} {
				if p, err := s.Pod(ctx, name); !apierrors.IsNotFound(err) {
					return fmt.Errorf("pod %s is there (%v): %s", name, err, namespace.States(p))
				}
			}
			return s.NoCells(ctx)
		})
		s.Kubectl("delete", "pvc", "data")
		if err := world.Empty(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// pages asks for huge pages of a size, and has a file of them on a volume.
const pages = `apiVersion: v1
kind: Pod
metadata: {name: NAME, annotations: {pod.elotl.co/swap: "SWAP"}}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command:
    - sh
    - -c
    - |
      fallocate -l FILE /pages/file && grep -E "HugePages_(Total|Free)|Hugetlb" /proc/meminfo && grep " /pages " /proc/mounts
      exec sleep 100000
    readinessProbe: {exec: {command: [test, -s, /pages/file]}, periodSeconds: 1}
    resources: {requests: {memory: 48Mi}, limits: {memory: 64Mi, hugepages-SIZE: ALL}}
    volumeMounts: [{name: pages, mountPath: /pages}]
  volumes: [{name: pages, emptyDir: {medium: HugePages}}]
`

// hasPages makes a pod with huge pages and swap, and waits until it has a file of them.
func hasPages(s *namespace.Space, name, swap, size, all, file string, want ...string) *corev1.Pod {
	s.Helper()
	s.Apply(strings.NewReplacer("NAME", name, "SWAP", swap, "SIZE", size, "FILE", file, "ALL", all).Replace(pages))
	pod := s.WaitReady(name)
	said := s.Kubectl("logs", name)
	for _, w := range append(want, "/pages hugetlbfs") {
		if !strings.Contains(said, w) {
			s.Errorf("pod %s does not have %q:\n%s", name, w, said)
		}
	}
	return pod
}

func TestAPodHasHugePagesOfItsMachine(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	hasPages(s, "large", "0", "2Mi", "512Mi", "536870912", "HugePages_Total:     256", "HugePages_Free:        0", "pagesize=2M")
	if got := s.CellOf("large").Status.InstanceType; got != "small" {
		t.Errorf("a pod with huge pages of 512Mi is on a %s, want a small", got)
	}
}

func TestAStandbyMachineGetsTheHugePagesAndTheSwapOfItsPod(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["cells"].(map[string]any)["standbyCells"] = []any{map[string]any{"instanceType": "micro", "count": 1}}
	})
	var kept cloud.Instance
	s.Eventually("a standby cell is ready", func(ctx context.Context) error {
		list, err := world.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all, err := host.Recorded(host.Config{StateDir: filepath.Join(world.State, "cloud")})
		if err != nil || len(all) != 1 || len(list.Items) != 1 {
			return fmt.Errorf("%d machines, %d cells, %v", len(all), len(list.Items), err)
		}
		kept = all[0]
		cell, err := namespace.AsCell(&list.Items[0])
		if err == nil && cell.Status.Phase != apiv1.Ready {
			err = fmt.Errorf("it is %s", cell.Status.Phase)
		}
		return err
	})
	pod := hasPages(s, "small", "128Mi", "2Mi", "64Mi", "8388608", "HugePages_Total:      32", "HugePages_Free:       28", "pagesize=2M")
	if i := machine(t, pod); i.ID != kept.ID {
		t.Errorf("the pod is on machine %s, want the standby machine %s", i.ID, kept.ID)
	}
	sharesSwap(s, "small", 48<<20, 128<<20)
}

// sharesSwap has a pod's container be limited to its share of its machine's swap, as a kubelet computes it with LimitedSwap.
func sharesSwap(s *namespace.Space, pod string, request, swap int64) {
	s.Helper()
	figures := map[string]int64{}
	for line := range strings.Lines(s.Kubectl("exec", pod, "--", "cat", "/proc/meminfo")) {
		var name string
		var kib int64
		if _, err := fmt.Sscanf(line, "%s %d kB", &name, &kib); err == nil {
			figures[name] = kib << 10
		}
	}
	if got := figures["SwapTotal:"]; got <= swap-(1<<20) || got > swap {
		s.Errorf("the machine of pod %s has %d bytes of swap, want %d", pod, got, swap)
	}
	share := int64(float64(request) / float64(figures["MemTotal:"]) * float64(figures["SwapTotal:"]))
	want := share / int64(os.Getpagesize()) * int64(os.Getpagesize())
	if got := s.Kubectl("exec", pod, "--", "cat", "/sys/fs/cgroup/memory.swap.max"); got != fmt.Sprintln(want) {
		s.Errorf("pod %s may swap %q, want %d of %v", pod, got, want, figures)
	}
}

// swapping holds more than its memory has room for, and says of what it was when it is told to go on.
const swapping = `apiVersion: v1
kind: Pod
metadata: {name: swapping, annotations: {pod.elotl.co/swap: 512Mi}}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command:
    - sh
    - -c
    - |
      tr '\0' x </dev/zero | dd bs=80M count=1 iflag=fullblock 2>/dev/null |
        { until [ -e /tmp/go ]; do sleep 1; done; md5sum >/tmp/sum; mv /tmp/sum /tmp/done; } &
      exec sleep 100000
    readinessProbe: {exec: {command: [sh, -c, 'test $(cat /sys/fs/cgroup/memory.swap.current) -gt 12000000']}, periodSeconds: 1}
    resources: {requests: {cpu: 500m, memory: 48Mi}, limits: {memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: guaranteed, annotations: {pod.elotl.co/swap: 512Mi}}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, "100000"]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
    volumeMounts: [{name: cgroups, mountPath: /cgroups, readOnly: true}]
  volumes: [{name: cgroups, hostPath: {path: /sys/fs/cgroup}}]
`

func TestAPodSwapsWhatItsMemoryHasNoRoomFor(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	s.Apply(swapping)
	pod := s.WaitReady("swapping")
	sharesSwap(s, "swapping", 48<<20, 512<<20)
	s.Kubectl("exec", "swapping", "--", "touch", "/tmp/go")
	want := fmt.Sprintf("%x  -\n", md5.Sum(bytes.Repeat([]byte("x"), 80<<20)))
	s.Eventually("what was swapped out comes back as it was", func(ctx context.Context) error {
		if got, _, _ := s.Attempt(ctx, "exec", "swapping", "--", "cat", "/tmp/done"); got != want {
			return fmt.Errorf("its sum is %q, want %q", got, want)
		}
		return nil
	})
	if now, err := s.Pod(t.Context(), "swapping"); err != nil || now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("the pod is %+v, %v", now.Status, err)
	}
	// By Kubernetes' rules, on a machine with as much swap. What runs the pod is not swapped out either.
	s.WaitReady("guaranteed")
	if got := s.Kubectl("exec", "guaranteed", "--", "cat", "/sys/fs/cgroup/memory.swap.max",
		"/cgroups/system/memory.swap.max"); got != "0\n0\n" {
		t.Errorf("a Guaranteed pod and its agent may swap %q", got)
	}
	if got := s.Kubectl("exec", "guaranteed", "--", "cat", "/proc/swaps"); strings.Count(got, "\n") != 2 || !strings.Contains(got, " file") {
		t.Errorf("its machine has the swap %q", got)
	}
}

const late = `apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 10
  restartPolicy: Never
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo started; trap "echo told; sleep 1; echo ended; exit 3" TERM; while :; do sleep 0.1; done']
`

// A machine's second boot is no second life where no pod was on it before. Its power button ends
// the pod first.
func TestAStoppedVirtualMachineStartsForItsPod(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["cells"].(map[string]any)["standbyCells"] = []any{map[string]any{"instanceType": "small", "count": 1, "stopped": true}}
	})
	var kept cloud.Instance
	s.Eventually("a machine is stopped", func(context.Context) error {
		all, err := host.Recorded(host.Config{StateDir: filepath.Join(world.State, "cloud")})
		if err == nil && (len(all) != 1 || all[0].State != cloud.Stopped) {
			err = fmt.Errorf("the machines are %+v", all)
		}
		if err == nil {
			kept = all[0]
		}
		return err
	})
	began := time.Now()
	s.Apply(late)
	p := s.WaitReady("late")
	t.Logf("the pod is Ready %v after it was made", time.Since(began).Round(time.Second))
	if i := machine(t, p); i.ID != kept.ID {
		t.Errorf("the pod is on machine %s, want %s, which was stopped", i.ID, kept.ID)
	}
	if got := s.Kubectl("logs", "late"); got != "started\n" {
		t.Errorf("the log is %q", got)
	}
	restore()
	s.Eventually("exec works", s.ExecTrue("late"))
	rest := s.Follow("late", "started")
	press(t, kept.ID)
	if log, err := rest(); err != nil || log != "told\nended\n" {
		t.Errorf("who follows the log sees then %q (%v)", log, err)
	}
	failed := s.WaitPod("late", "has Failed, and its kubelet says how its container ended", namespace.FailedAndTold)
	if x := failed.Status.ContainerStatuses[0].State.Terminated; failed.Status.Reason != "Terminated" || x.ExitCode != 3 {
		t.Errorf("the pod has Failed for %q: %s", failed.Status.Reason, namespace.States(failed))
	}
	s.Kubectl("delete", "pod", "late", "--wait=false")
	s.Eventually("the pod and its cell are gone", func(ctx context.Context) error {
		if p, err := s.Pod(ctx, "late"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod late is there (%v): %s", err, namespace.States(p))
		}
		return s.NoCells(ctx)
	})
	if err := world.Empty(t.Context()); err != nil {
		t.Error(err)
	}
}

// Nothing else says then what kept it: it has joined nobody.
func TestAMachineThatDiesBeforeItJoinsLeavesWhatItSaidLast(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	s.Apply(late)
	cloudConfig := host.Config{StateDir: filepath.Join(world.State, "cloud")}
	var id string
	s.Eventually("a machine boots", func(context.Context) error {
		all, err := host.Recorded(cloudConfig)
		if err != nil || len(all) != 1 {
			return fmt.Errorf("%d machines, %v", len(all), err)
		}
		id = all[0].ID
		said, err := os.ReadFile(filepath.Join(cloudConfig.MachineDir(id), "console.log"))
		if err == nil && !strings.Contains(string(said), "init begins") {
			err = fmt.Errorf("its console has %q", said)
		}
		return err
	})
	m, err := host.Inspect(cloudConfig, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(m.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.Eventually("an Event of the pod has what the machine said last", func(ctx context.Context) error {
		all, err := world.Admin.CoreV1().Events(s.NS).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + events.CellConsole})
		if err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.InvolvedObject.Name == "late" && strings.Contains(e.Message, "The console of "+id+" ends with: [") &&
				strings.Contains(e.Message, agentapi.ConsolePrefix) {
				return nil
			}
		}
		return fmt.Errorf("the Events are %+v", all.Items)
	})
	s.Kubectl("delete", "pod", "late", "--wait=false")
	s.Eventually("no cell is left", s.NoCells)
	if err := world.Empty(t.Context()); err != nil {
		t.Error(err)
	}
}

// memory is what a machine has, and what of it QEMU has of the host, in bytes: not what QEMU needs besides, of which the
// code that it makes as it emulates grows.
func memory(i cloud.Instance) (all, now int64, err error) {
	m, err := host.Inspect(host.Config{StateDir: filepath.Join(world.State, "cloud")}, i.ID)
	if err != nil {
		return 0, 0, err
	}
	types := sizes.Types(runtime.GOARCH)
	all = types[slices.IndexFunc(types, func(t catalog.InstanceType) bool { return t.Name == i.InstanceType })].MemoryBytes
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", m.PID))
	if err != nil {
		return 0, 0, err
	}
	var size int64
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "Size: %d kB", &kib); n == 1 {
			size = kib << 10
		}
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 && size == all {
			return all, kib << 10, nil
		}
	}
	return 0, 0, fmt.Errorf("QEMU has no %d bytes in one piece", all)
}

// press presses a machine's power button.
func press(t *testing.T, id string) {
	t.Helper()
	// A socket's name is short.
	dir, err := os.Open(host.Config{StateDir: filepath.Join(world.State, "cloud")}.MachineDir(id))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	monitor, err := vm.Dial(t.Context(), fmt.Sprintf("/proc/self/fd/%d/monitor", dir.Fd()), vm.AnswerLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Close()
	if err := monitor.Do(t.Context(), "system_powerdown", nil, nil); err != nil {
		t.Fatal(err)
	}
}

// machine is the one that a pod is on.
func machine(t *testing.T, p *corev1.Pod) cloud.Instance {
	t.Helper()
	all, err := host.Recorded(host.Config{StateDir: filepath.Join(world.State, "cloud")})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.ManagementIP.String() == p.Status.HostIP {
			return i
		}
	}
	t.Fatalf("no machine has the address %s: %+v", p.Status.HostIP, all)
	return cloud.Instance{}
}
