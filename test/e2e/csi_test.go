//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/registry"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// csiImage has test/csidriver.
const csiImage = "example.com/csidriver:1"

// csiImages makes a folder with csiImage, for the cells' registry. Where it has not
// been built (`make bin/csidriver`) the folder is empty, and the tests that want it
// fail when they pull it.
func csiImages() (dir string, err error) {
	root, err := harness.Repository()
	if err != nil {
		return "", err
	}
	// A name of its own, so that a run that was killed leaves nothing for good.
	dir = filepath.Join(root, ".kip", bridge+".images")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	images, err := layout.Write(dir, empty.Index)
	if err != nil {
		return dir, err
	}
	program, err := os.ReadFile(filepath.Join(root, "bin", "csidriver"))
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	if err != nil {
		return dir, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "csidriver", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return dir, err
	}
	if _, err := w.Write(program); err != nil {
		return dir, err
	}
	if err := w.Close(); err != nil {
		return dir, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	if err != nil {
		return dir, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return dir, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return dir, err
	}
	config.OS, config.Architecture, config.Config.Entrypoint = "linux", runtime.GOARCH, []string{"/csidriver"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return dir, err
	}
	return dir, images.AppendImage(image, layout.WithAnnotations(map[string]string{registry.RefName: csiImage}))
}

// csiServer has the volumes of the driver, by their IDs.
type csiServer struct {
	url     string
	mu      sync.Mutex
	content map[string]string
	written map[string]int // times
}

func serveCSI(t *testing.T) *csiServer {
	t.Helper()
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(prefix.Masked().Addr().Next().String(), "0")) // the host's, on the bridge
	if err != nil {
		t.Fatal(err)
	}
	s := &csiServer{url: "http://" + l.Addr().String(), content: map[string]string{}, written: map[string]int{}}
	server := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return s
}

func (s *csiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, "/")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPut {
		s.content[id] = string(body)
		s.written[id]++
		return
	}
	_, _ = io.WriteString(w, s.content[id])
}

func (s *csiServer) has(id string) (content string, written int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content[id], s.written[id]
}

// csiPlugin is a driver as it is installed: its CSIDriver, and its DaemonSet in the
// namespace of the test.
func csiPlugin(driver, image, attach string) string {
	return strings.NewReplacer("DRIVER", driver, "IMAGE", image, "ATTACH", attach).Replace(`apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: DRIVER}
spec:
  attachRequired: ATTACH
  podInfoOnMount: true
  volumeLifecycleModes: [Persistent, Ephemeral]
  tokenRequests: [{audience: vault}]
  requiresRepublish: true
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: DRIVER}
spec:
  selector: {matchLabels: {app: DRIVER}}
  template:
    metadata: {labels: {app: DRIVER}}
    spec:
      priorityClassName: system-node-critical
      serviceAccountName: default
      nodeSelector: {kubernetes.io/os: linux, driver: wanted}
      tolerations: [{key: anything, operator: Exists}]
      containers:
      - name: registrar
        image: IMAGE
        args: [-socket=/csi/csi.sock, -register=/registration, -kubelet-socket=/var/lib/kubelet/plugins/DRIVER/csi.sock]
        resources: {requests: {cpu: 10m, memory: 20Mi}, limits: {memory: 64Mi}}
        volumeMounts:
        - {name: csi, mountPath: /csi}
        - {name: registration, mountPath: /registration}
      - name: driver
        image: IMAGE
        args: [-driver=DRIVER, -socket=/csi/csi.sock]
        env:
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: MORE, valueFrom: {secretKeyRef: {name: missing, key: more, optional: true}}}
        securityContext: {privileged: true}
        volumeMounts:
        - {name: csi, mountPath: /csi}
        - {name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}
      volumes:
      - {name: csi, hostPath: {path: /var/lib/kubelet/plugins/DRIVER, type: DirectoryOrCreate}}
      - {name: registration, hostPath: {path: /var/lib/kubelet/plugins_registry, type: Directory}}
      - {name: kubelet, hostPath: {path: /var/lib/kubelet, type: Directory}}
---
`)
}

// csiVolume is a volume of a driver, and a claim that is bound to it. Its Secrets
// are in namespace elsewhere.
func (s *space) csiVolume(name, driver string, server *csiServer, elsewhere string) {
	s.Helper()
	s.cluster(strings.NewReplacer("NAME", name, "DRIVER", driver, "SERVER", server.url, "SPACE", s.NS, "ELSEWHERE", elsewhere).Replace(`apiVersion: v1
kind: PersistentVolume
metadata: {name: SPACE-NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {namespace: SPACE, name: NAME}
  csi:
    driver: DRIVER
    volumeHandle: SPACE-NAME
    volumeAttributes: {server: "SERVER", colour: red}
    nodeStageSecretRef: {namespace: ELSEWHERE, name: stage}
    nodePublishSecretRef: {namespace: ELSEWHERE, name: publish}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {namespace: SPACE, name: NAME}
spec: {storageClassName: "", volumeName: SPACE-NAME, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
`))
}

// csiDrivers has Kip started with these drivers, whose DaemonSets are in the
// namespace and have their names.
func (s *space) csiDrivers(names ...string) {
	s.Helper()
	var list []any
	for _, name := range names {
		list = append(list, map[string]any{"name": name, "daemonSet": s.NS + "/" + name})
	}
	reconfigure(s.T, map[string]any{"csiDrivers": list})
}

// install installs a driver until the test ends.
func (s *space) install(driver, image, attach string) {
	s.Helper()
	s.Apply(csiPlugin(driver, image, attach))
	s.Cleanup(func() {
		_ = world.Admin.StorageV1().CSIDrivers().Delete(context.Background(), driver, metav1.DeleteOptions{})
	})
}

// Not parallel: it starts Kip anew.
func TestVolumesOfACSIDriverWorkOnCells(t *testing.T) {
	tier.All(t)
	server := serveCSI(t)
	elsewhere := newSpace(t)
	s := newSpace(t)
	const driver = "net.csi.example.com"
	s.csiDrivers(driver)
	s.install(driver, csiImage, "false")
	elsewhere.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: stage}\nstringData: {stageword: sesame}\n---\n" +
		"apiVersion: v1\nkind: Secret\nmetadata: {name: publish}\nstringData: {publishword: alohomora}\n")
	s.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: inline}\nstringData: {inlineword: friend}\n")
	s.csiVolume("shared", driver, server, elsewhere.NS)
	shared := s.NS + "-shared"
	server.content[shared] = "from the server"

	// Inline, with what a driver is told of the pod.
	s.Apply(withVolume("inline",
		"csi: {driver: "+driver+`, volumeAttributes: {server: "`+server.url+`"}, nodePublishSecretRef: {name: inline}}`))
	s.Apply(withVolume("first", "persistentVolumeClaim: {claimName: shared}"))
	s.WaitReady("inline")
	s.WaitReady("first")
	for pod, wants := range map[string][]string{
		"inline": {"friend", `"csi.storage.k8s.io/pod.name":"inline"`, `"csi.storage.k8s.io/ephemeral":"true"`, "serviceAccount.tokens", `vault`},
		"first":  {"sesame", "alohomora", "from the server", `"colour":"red"`, `"csi.storage.k8s.io/pod.name":"first"`, "serviceAccount.tokens"},
	} {
		got := s.in(pod, "cat /data/attributes /data/secrets /data/content")
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("the volume of pod %s has no %s:\n%s", pod, want, got)
			}
		}
	}

	s.republished("inline")

	// The plugin is nobody's pod, and no other cell's driver.
	all, err := world.Admin.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Items {
		if strings.Contains(p.Name, "csi-plugin") {
			t.Errorf("there is a pod %s/%s", p.Namespace, p.Name)
		}
	}
	// What Kip itself attaches, and the plugins of no cell.
	node, err := world.Admin.StorageV1().CSINodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil || len(node.Spec.Drivers) != 1 || node.Spec.Drivers[0].Name != volumes.Driver || node.Spec.Drivers[0].Allocatable != nil {
		t.Errorf("the virtual node has %+v, %v; want %s alone", node, err, volumes.Driver)
	}
	s.Eventually("the figures are those of the pods", func(ctx context.Context) error {
		for _, path := range []string{"/stats/summary", "/metrics/resource"} {
			text, err := nodeRaw(ctx, path, "", "")
			if err != nil {
				return err
			}
			if !strings.Contains(text, "first") || strings.Contains(text, "csi-plugin") || strings.Contains(text, "registrar") {
				return fmt.Errorf("%s does not have the pod, or has the plugin", path)
			}
		}
		return nil
	})
	cell := s.CellOf("first")
	s.Apply(namespace.Sleeper("plain"))
	s.WaitReady("plain")
	if in := s.plugins("plain"); len(in) > 0 {
		t.Errorf("the cell of a pod without such volumes runs %v", in)
	}
	if in := s.plugins("first"); len(in) != 1 {
		t.Errorf("cell %s runs %v", cell.Name, in)
	}

	// What a pod writes outlives its cell: it is unmounted before.
	s.in("inline", "echo inline > /data/content")
	s.in("first", "echo of the first > /data/content")
	killKip(t)
	startKip(t)
	s.Kubectl("delete", "pod", "inline", "first", "--wait=false")
	s.WaitGone("first")
	if got, n := server.has(shared); got != "of the first\n" || n != 1 {
		t.Errorf("after its pod the server has %q, written %d times", got, n)
	}
	s.WaitGone("inline")

	// So does what one writes that runs to its end, the moment before it.
	s.Apply(strings.Replace(strings.Replace(withVolume("second", "persistentVolumeClaim: {claimName: shared}"),
		`trap "exit 0" TERM; echo started; while :; do sleep 0.1; done`, `cat /data/content; echo of the second > /data/content`, 1), "spec:\n",
		"spec:\n  restartPolicy: Never\n", 1))
	s.WaitPod("second", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
	s.Eventually("its cell is gone", s.NoCellOf("second"))
	if got, n := server.has(shared); got != "of the second\n" || n != 2 {
		t.Errorf("after the second pod the server has %q, written %d times", got, n)
	}
	if got := s.Kubectl("logs", "second"); got != "of the first\n" {
		t.Errorf("the second pod read %q", got)
	}
	s.Kubectl("delete", "pod", "second") // or its claim would stay
}

// republished waits until the kubelet has published a pod's inline volume again and again, and returns what the driver notes there.
func (s *space) republished(pod string) (notes string) {
	s.Helper()
	s.Eventually("the volume of "+pod+" is published again and again", func(context.Context) error {
		if notes = s.in(pod, "cat /data/published"); strings.Count(notes, "published") < 3 {
			return fmt.Errorf("its driver notes %q", notes)
		}
		return nil
	})
	return notes
}

// plugins are the static pods of a pod's cell.
func (s *space) plugins(pod string) []string {
	s.Helper()
	found, err := filepath.Glob(s.machine(pod).path("etc/kubernetes/manifests/*.json"))
	if err != nil {
		s.Fatal(err)
	}
	return found
}

// Not parallel: it starts Kip anew.
func TestACSIVolumeThatCannotWorkSaysWhy(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	const attached, broken, missing, unnamed = "attached.csi.example.com", "broken.csi.example.com", "missing.csi.example.com",
		"unnamed.csi.example.com"
	s.csiDrivers(attached, broken, missing)
	s.install(attached, csiImage, "true")
	s.install(broken, "example.com/not-there:1", "false")
	inline := func(driver string) string {
		return withVolume(strings.Split(driver, ".")[0], "csi: {driver: "+driver+"}")
	}
	for _, driver := range []string{attached, broken, missing, unnamed} {
		s.Apply(inline(driver))
	}
	s.WaitEvent("unnamed", "VolumeUnsupported", "cells.csiDrivers")
	s.WaitEvent("attached", "VolumeUnsupported", "spec.attachRequired: true")
	s.WaitEvent("missing", "VolumeNotReady", "there is no CSIDriver "+missing)
	// This one has a cell, which has not the plugin's image.
	s.WaitEvent("broken", "CSIDriverNotReady", "example.com/not-there:1")
	s.NoOtherCells("broken")
	if pod, err := s.Pod(t.Context(), "broken"); err != nil || pod.Status.Phase != corev1.PodPending {
		t.Errorf("pod broken is %s (%v)", pod.Status.Phase, err)
	}
	s.Kubectl("delete", "pod", "broken", "--wait=false")
	s.WaitGone("broken")
}
