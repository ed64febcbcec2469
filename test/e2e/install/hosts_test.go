//go:build e2e

package install

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// A Kip whose cells are machines of its own node, as docs/install.md says in "On a machine of your own". It is beside the world's own
// Kip: a release with another name, namespace and node.
const (
	rackRelease   = "rack"
	rackNamespace = "kip-rack"
	rackKip       = "rack-kip-0" // of its pod, and of its virtual node
	rackHost      = "node-1"
	// rackDir is where the host has what host.dir names, on its disk.
	rackDir = "/var/lib/containerd/opt-kip"
)

// Of cloud.local, by default.
const (
	rackBridge = "kip0"
	rackCIDR   = "10.110.0.0/16"
)

// ownHardware are the values of docs/install.md for Kip on a machine of one's own.
func ownHardware(t *testing.T) (values map[string]any) {
	t.Helper()
	block := printed(t, "## On a machine of your own", "yaml")
	if err := yaml.Unmarshal([]byte(block), &values); err != nil {
		t.Fatalf("the values of docs/install.md for a machine of one's own: %v", err)
	}
	return values
}

func TestKipRunsCellsOnItsOwnHost(t *testing.T) {
	tier.All(t)
	runsCellsOnItsOwnHost(t, "local")
}

func TestKipRunsVirtualMachinesOnItsOwnHost(t *testing.T) {
	tier.All(t)
	runsCellsOnItsOwnHost(t, "qemu")
}

// runsCellsOnItsOwnHost has Kip run cells of one of the clouds that are on its host.
func runsCellsOnItsOwnHost(t *testing.T, cloud string) {
	t.Helper()
	s := namespace.New(t, world)
	machine := ordinary(s, rackHost)
	prepareHost(s, machine, cloud)
	image := hostImage(s)
	_, file := chart(t)
	own := readValues[struct {
		Config struct{ Cells map[string]any }
	}](t, file)

	values := ownHardware(t)
	values["host"] = map[string]any{"name": rackHost}
	config := values["config"].(map[string]any)
	if cloud == "local" {
		config["cloud"] = map[string]any{"local": map[string]any{}}
	}
	config["cells"].(map[string]any)["registryMirrors"] = own.Config.Cells["registryMirrors"]
	values["image"] = image
	values["persistence"] = map[string]any{"storageClassName": ""}
	values["servingCertificate"] = map[string]any{"source": "csr", "approve": true} // the API server verifies kubelets
	values["storageClass"] = map[string]any{"create": false}
	values["uninstall"] = map[string]any{"force": true}
	installOnHost(s, writeYAML(t, filepath.Join(t.TempDir(), "values.yaml"), values))
	first := kipCalled(s, rackNamespace, rackKip, nil)
	if first.Spec.NodeName != rackHost || first.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("Kip's pod is on %s, and %s", first.Spec.NodeName, namespace.States(first))
	}

	s.Apply(fmt.Sprintf(onHost, rackKip))
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	if text := s.Kubectl("logs", "job/hello"); text != "hello\n" {
		t.Errorf("the Job logged %q", text)
	}
	web := s.WaitPodOf("web", "")
	here, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if own := s.Kubectl("exec", web.Name, "--", "cat", "/proc/sys/kernel/random/boot_id") != string(here); own != (cloud == "qemu") {
		t.Errorf("with the cloud %s the pod has a kernel of its own: %t", cloud, own)
	}
	s.Apply(asker)
	s.WaitReady("asker")
	routeToCells(s, ordinary(s, "node-2"), first.Status.HostIP)
	serves := func(after string) {
		t.Helper()
		s.Eventually("exec works after "+after, s.ExecTrue(web.Name))
		s.Eventually("a pod of another node reaches the cell after "+after, func(ctx context.Context) error {
			url := "http://" + net.JoinHostPort(web.Status.PodIP, "8080") + "/"
			out, code, errs := s.Attempt(ctx, "exec", "asker", "--", "timeout", "5", "wget", "-qO-", url)
			if code != 0 || out != "a cell\n" {
				return fmt.Errorf("%s answers %q: exit %d: %s", url, out, code, errs)
			}
			return nil
		})
	}
	serves("its start")
	if text := s.Kubectl("exec", "-n", rackNamespace, rackKip, "--", "kipctl", "get", "cells"); !strings.Contains(text, web.Name) {
		t.Errorf("kipctl in Kip's pod shows the cells\n%s", text)
	}
	logOf(s, rackNamespace, rackKip)

	s.Kubectl("delete", "pod", rackKip, "-n", rackNamespace)
	kipCalled(s, rackNamespace, rackKip, first)
	serves("another pod of Kip has come")
	now, err := s.Pod(t.Context(), web.Name)
	if err != nil {
		t.Fatal(err)
	}
	was, is := web.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
	if now.UID != web.UID || is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount {
		t.Errorf("with another pod of Kip the pod runs as %s with %d restarts, before as %s", is.ContainerID, is.RestartCount, was.ContainerID)
	}
	s.Apply(namespace.Bare("later", "  nodeName: "+rackKip+"\n  "+tolerates+`
  containers: [{name: main, image: 'busybox:1.36', command: [sleep, infinity]}]
`))
	s.WaitReady("later")
	logOf(s, rackNamespace, rackKip)

	if out, err := helmIn(t, rackNamespace, "uninstall", rackRelease, "--wait", "--timeout", "10m"); err != nil {
		t.Fatalf("uninstall by force: %v\n%s", err, out)
	}
	s.Eventually("nothing of a cell is left on the host", func(context.Context) error { return leftOnHost(machine, cloud) })
	if _, err := world.Admin.CoreV1().Nodes().Get(t.Context(), rackKip, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node is left: %v", err)
	}
}

// onHost is a Job, and a Deployment of a web server, on a virtual node.
const onHost = `apiVersion: batch/v1
kind: Job
metadata: {name: hello}
spec:
  backoffLimit: 0
  template:
    spec:
      nodeSelector: {type: virtual-kubelet, kubernetes.io/hostname: %[1]s}
      restartPolicy: Never
      containers: [{name: main, image: 'busybox:1.36', command: [echo, hello]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {type: virtual-kubelet, kubernetes.io/hostname: %[1]s}
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'mkdir /tmp/www; echo a cell > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`

// installOnHost installs the release, which is removed when the test ends.
func installOnHost(s *namespace.Space, values string) {
	s.Helper()
	ctx := s.Context()
	if _, err := world.Admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: rackNamespace, Labels: map[string]string{enforced: "privileged"}},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	volume := node.Volume("kip-rack", rackHost, rackRelease, types.NamespacedName{Namespace: rackNamespace, Name: "data-" + rackKip})
	if err := os.MkdirAll(ordinary(s, rackHost).Path(filepath.Join(node.VolumeDir, rackRelease)), 0o777); err != nil {
		s.Fatal(err)
	}
	if _, err := world.Admin.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if s.Failed() {
			for _, args := range [][]string{{"get", "pods", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"},
				{"logs", rackKip, "--tail=200"}} {
				out, errs, _ := namespace.Run(world.Kubectl(context.Background(), append(args, "-n", rackNamespace)...))
				s.Logf("kubectl %s\n%s%s", strings.Join(args, " "), out, errs)
			}
		}
		var errs []error
		for _, args := range [][]string{{"delete", "namespace", rackNamespace}, {"delete", "persistentvolume", volume.Name}} {
			out, _, err := namespace.Run(world.Kubectl(context.Background(), args...))
			errs = append(errs, err)
			s.Logf("kubectl %s: %s", strings.Join(args, " "), out)
		}
		if err := errors.Join(errs...); err != nil {
			s.Error(err)
		}
	})
	folder, _ := chart(s.T)
	if out, err := helmIn(s.T, rackNamespace, "install", rackRelease, folder, "--values", values, "--wait", "--timeout", "5m"); err != nil {
		s.Fatalf("install: %v\n%s", err, out)
	}
}

// prepareHost makes of an ordinary node's machine what docs/install.md wants of the host.
func prepareHost(s *namespace.Space, m namespace.Machine, cloud string) {
	s.Helper()
	made := likeThisHosts(s, m, "loop-control", "net/tun", "kvm")
	// The machine's root is an overlay, on which no other can be.
	dir := m.Path(rackDir)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(rackDir, m.Path("/opt/kip"))); err != nil {
		s.Fatal(err)
	}
	bootable(s, cloud, dir)
	// Cells pull images from the registry of this host, which has no route to them.
	nft := func(program string) error {
		return m.Inside(func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(program)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	if err := nft(translation(s)); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		// As docs/uninstall.md says.
		errs := []error{nft("delete table ip cells\n"), m.Inside(func() error {
			link, err := netlink.LinkByName(rackBridge)
			if errors.As(err, &netlink.LinkNotFoundError{}) {
				return nil
			}
			return errors.Join(err, netlink.LinkDel(link))
		})}
		for _, family := range []string{"bridge", "inet"} {
			errs = append(errs, nft(fmt.Sprintf("add table %[1]s kip-agents-%[2]s\ndelete table %[1]s kip-agents-%[2]s\n", family, rackBridge)))
		}
		errs = append(errs, os.RemoveAll(dir), os.Remove(m.Path("/opt/kip")))
		for _, device := range made {
			errs = append(errs, os.Remove(device))
		}
		if err := errors.Join(errs...); err != nil {
			s.Error(err)
		}
	})
}

// likeThisHosts makes the devices of this host that a machine lacks, and returns their paths.
func likeThisHosts(s *namespace.Space, m namespace.Machine, names ...string) (made []string) {
	s.Helper()
	for _, name := range names {
		var like unix.Stat_t
		if err := unix.Stat("/dev/"+name, &like); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			s.Fatal(err)
		}
		device := m.Path("/dev/" + name)
		if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(like.Rdev)); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			s.Fatal(err)
		}
		made = append(made, device)
	}
	return made
}

// bootable has in a folder what the machines of a cloud start from, where the page says.
func bootable(s *namespace.Space, cloud, dir string) {
	s.Helper()
	root, err := harness.Repository()
	if err != nil {
		s.Fatal(err)
	}
	if cloud == "local" {
		run(s, exec.CommandContext(s.Context(), "cp", "-a", filepath.Join(root, ".kip", "cell-root")+"/.", filepath.Join(dir, "cell-root")))
		return
	}
	to := filepath.Join(dir, "image")
	if err := os.Mkdir(to, 0o755); err != nil {
		s.Fatal(err)
	}
	stem := filepath.Join(world.Bin, "image", "kip-cell-amd64")
	run(s, exec.CommandContext(s.Context(), "cp", stem+".qcow2", stem+".efi", stem+".manifest.json", to))
}

// translation is what docs/install.md has a host translate of its cells, with the addresses of this cluster's nodes in place of the page's
// networks. This host, which has the registry, is none of them.
func translation(s *namespace.Space) string {
	s.Helper()
	const examples = "10.244.0.0/16, 192.168.1.0/24"
	root, err := harness.Repository()
	if err != nil {
		s.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		s.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(page), "nft -f - <<'END'\n")
	rules, _, _ = strings.Cut(rules, "END\n")
	if !strings.Contains(rules, rackCIDR) || !strings.Contains(rules, examples) {
		s.Fatalf("docs/install.md has the rules %q: want such of %s, with %s", rules, rackCIDR, examples)
	}
	nodes, err := world.Admin.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{LabelSelector: "!" + apiv1.LabelController})
	if err != nil {
		s.Fatal(err)
	}
	var addresses []string
	for _, n := range nodes.Items {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() {
				addresses = append(addresses, a.Address)
			}
		}
	}
	return strings.Replace(rules, examples, strings.Join(addresses, ", "), 1)
}

// routeToCells leads a node to the cells of the host with an address.
func routeToCells(s *namespace.Space, m namespace.Machine, by string) {
	s.Helper()
	gateway, err := netip.ParseAddr(by)
	if err != nil {
		s.Fatal(err)
	}
	_, cells, err := net.ParseCIDR(rackCIDR)
	if err != nil {
		s.Fatal(err)
	}
	route := &netlink.Route{Dst: cells, Gw: gateway.AsSlice()}
	if err := m.Inside(func() error { return netlink.RouteAdd(route) }); err != nil {
		s.Fatalf("add a route to %s by %s: %v", rackCIDR, by, err)
	}
	s.Cleanup(func() {
		if err := m.Inside(func() error { return netlink.RouteDel(route) }); err != nil {
			s.Errorf("remove the route to %s: %v", rackCIDR, err)
		}
	})
}

// leftOnHost names what there is of cells on a host: folders, processes, cgroups, network devices, mounts and loop devices.
func leftOnHost(m namespace.Machine, cloud string) error {
	var left []string
	state := m.Path(filepath.Join(rackDir, cloud))
	for _, what := range []string{"machines", "disks"} {
		entries, err := os.ReadDir(filepath.Join(state, what))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			left = append(left, what+" "+e.Name())
		}
	}
	loops, err := host.LoopsOf(state)
	if err != nil {
		return err
	}
	left = append(left, loops...)
	cgroups, err := filepath.Glob(m.Path("/sys/fs/cgroup/kip-" + rackBridge + "/i-*"))
	v1, v1Err := filepath.Glob(m.Path("/sys/fs/cgroup/*/kip-" + rackBridge + "/i-*"))
	if err := errors.Join(err, v1Err); err != nil {
		return err
	}
	left = slices.Concat(left, cgroups, v1)
	// Other machines of this host may have cells in cgroups of these names, too.
	own, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID), "cgroup"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(own), "\n")
	ofCells := strings.TrimSuffix(first, "/init") + "/kip-" + rackBridge + "/i-"
	processes, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}
	for _, p := range processes {
		if text, err := os.ReadFile(p); err == nil && strings.Contains(string(text), ofCells) {
			left = append(left, p)
		}
	}
	mounts, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID), "mounts"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && (strings.HasPrefix(f[1], rackDir) || strings.HasPrefix(f[1], "/opt/kip")) {
			left = append(left, "mount "+f[1])
		}
	}
	if err := m.Inside(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if name := l.Attrs().Name; strings.HasPrefix(name, "kip") && name != rackBridge {
				left = append(left, "network device "+name)
			}
		}
		return err
	}); err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left: %q", left)
	}
	return nil
}

// dockerfile is what docs/install.md makes an image with a host's programs of.
var dockerfile = regexp.MustCompile(`^FROM debian:(\S+)-slim
RUN apt-get update && apt-get install -y --no-install-recommends (.+)
COPY --from=ghcr\.io/elotl/kip:VERSION /kip /kipctl /
ENV PATH=\$PATH:/
ENTRYPOINT \["/kip"\]
$`)

// hostImage is the image with a host's programs that docs/install.md has, as values of the chart. The ordinary nodes can pull it.
func hostImage(s *namespace.Space) map[string]any {
	s.Helper()
	text := printed(s.T, "### An image with a host's programs", "dockerfile")
	is := dockerfile.FindStringSubmatch(text)
	if is == nil {
		s.Fatalf("docs/install.md makes an image by %q: want something like %s", text, dockerfile)
	}
	tree := filepath.Join(s.TempDir(), "debian.tar")
	packages := strings.Join(strings.Fields(is[2]), ",")
	args := []string{"--quiet", "--variant=minbase", "--skip=output/dev", "--include=" + packages, is[1], tree}
	run(s, exec.CommandContext(s.Context(), "mmdebstrap", args...))
	layer, err := tarball.LayerFromFile(tree, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		s.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(world.Bin, "images", "kip"))
	if err != nil {
		s.Fatal(err)
	}
	base, err := imageOf(index)
	if err != nil {
		s.Fatal(err)
	}
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		s.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		s.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"} // of Debian's image, and Kip's
	if image, err = mutate.ConfigFile(image, config); err != nil {
		s.Fatal(err)
	}
	images := newRegistry(s)
	if err := images.Push(s.Context(), "kip-host:test", image); err != nil {
		s.Fatal(err)
	}
	for _, n := range []string{"node-1", "node-2"} { // the hook's Job is on either
		pullsFrom(s, ordinary(s, n), images.Address())
	}
	return map[string]any{"repository": images.Address() + "/kip-host", "tag": "test"}
}

// imageOf is the image for this host's architecture in an index, or in an index of that.
func imageOf(index v1.ImageIndex) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest.Manifests {
		if d.MediaType.IsIndex() {
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			return imageOf(inner)
		}
		if d.MediaType.IsImage() && (d.Platform == nil || d.Platform.Architecture == runtime.GOARCH) {
			return index.Image(d.Digest)
		}
	}
	return nil, fmt.Errorf("the image of Kip has none for %s", runtime.GOARCH)
}
