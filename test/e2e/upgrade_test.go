//go:build e2e

package e2e

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// older is the folder of the programs of an older Kip and its agent.
func older(t *testing.T) string {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	if why, err := os.ReadFile(filepath.Join(root, ".kip", "older", "why")); err == nil {
		t.Skip(strings.TrimSpace(string(why)))
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	bin := filepath.Join(root, ".kip", "older", "bin")
	if _, err := os.Stat(filepath.Join(bin, "itzo-lite")); err != nil {
		t.Fatalf("the older Kip is not built (%v): hack/older, which make e2e runs", err)
	}
	return bin
}

// olderRoot makes the root of cells with the older agent.
func olderRoot(t *testing.T, older string) string {
	t.Helper()
	programs, err := image.HostPrograms()
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	programs[image.Portmap] = world.Tool("portmap")
	root := filepath.Join(t.TempDir(), "root")
	agent := func(name string) string { return filepath.Join(older, name) }
	if err := image.Build(t.Context(), image.Options{
		Dir: root, Itzo: agent("itzo"), ItzoContainerd: agent("itzo-containerd"), ItzoLite: agent("itzo-lite"),
		Runc: world.Tool("runc"), Pause: world.Tool("pause"), Busybox: busybox, Programs: programs,
	}); err != nil {
		t.Fatal(err)
	}
	return root
}

// Not parallel: it ends Kip and starts it, as an upgrade does. The first is an older
// one, on cells with an older agent; the others are this one.
func TestNoPodNoticesThatKipIsUpgradedUnderLoad(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	bin := older(t)
	root, data := olderRoot(t, bin), filepath.Join(shortDir(t), "data")
	// The world's Kip knows no end but a crash, and a newer store than an older one
	// may read: one like it takes its place, with a store of its own.
	killKip(t)
	upgraded := func(provider map[string]any) {
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	}
	// The older Kip requests no certificate for its kubelet port.
	certFile, keyFile := servingFiles(t)
	t.Setenv("APISERVER_CERT_LOCATION", certFile)
	t.Setenv("APISERVER_KEY_LOCATION", keyFile)
	k := runKipBy(t, func(log string, args ...string) (*harness.Kip, error) {
		return world.RunKipOf(filepath.Join(bin, "kip"), log, args...)
	}, func(provider map[string]any) {
		upgraded(provider)
		for _, key := range []string{"grants", "endLimit"} { // it does not know them
			delete(provider["cells"].(map[string]any), key)
		}
		delete(provider, "servingCertificate")
		provider["cloud"].(map[string]any)["local"].(map[string]any)["rootDir"] = root
	})
	if err := errors.Join(os.Unsetenv("APISERVER_CERT_LOCATION"), os.Unsetenv("APISERVER_KEY_LOCATION")); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(data, "kip.sock")
	s.waitWorks(k, socket)
	olderVersion := kipVersion(t, socket)

	before := map[string]*corev1.Pod{}
	s.Apply(counting("counter"))
	for i := range 6 {
		s.Apply(sleeper(fmt.Sprint("kept-", i)))
	}
	before["counter"] = s.WaitReady("counter")
	counted := s.counts("counter", 0)
	for i := range 6 {
		name := fmt.Sprint("kept-", i)
		before[name] = s.WaitReady(name)
	}

	// Two at a time come, and two of three go again, when they run or before,
	// until all upgrades are over.
	ctx, stop := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	var mu sync.Mutex
	kept, deleted := map[string]bool{}, map[string]bool{}
	for worker := range 2 {
		churn.Go(func() {
			for n := 0; n < 5 || ctx.Err() == nil && n < 12; n++ {
				if err := s.churn(ctx, worker, n, func(name string, stays bool) {
					mu.Lock()
					defer mu.Unlock()
					if stays {
						kept[name] = true
					} else {
						deleted[name] = true
					}
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// Also when the test gives up: what runs on must not report to it.
	t.Cleanup(func() { stop(); churn.Wait() })
	for upgrade := range 2 {
		s.Eventually("pods come and go", func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if n := len(kept) + len(deleted); n < 3*(upgrade+1) {
				return fmt.Errorf("%d have come", n)
			}
			return nil
		})
		signal(t, k, syscall.SIGTERM)
		if err := s.waitEnd(k); err != nil {
			t.Errorf("a Kip that was told to end ended with %v", err)
		}
		k = runKip(t, upgraded)
		s.waitWorks(k, socket)
		if now := kipVersion(t, socket); now == olderVersion {
			t.Errorf("before and after the upgrade Kip is %s", now)
		}
	}
	stop()
	churn.Wait()
	t.Logf("%d pods were created, %d of them deleted", len(kept)+len(deleted), len(deleted))

	for name := range kept {
		if c := firstContainer(s.WaitReady(name)); c.RestartCount != 0 {
			t.Errorf("pod %s was started %d times again", name, c.RestartCount)
		}
	}
	for name := range deleted {
		s.waitGone(name)
	}
	s.allUnmoved(before)
	s.counts("counter", counted)
	cells, err := s.Cells(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := len(before) + len(kept); len(cells) != want {
		t.Errorf("there are %d cells for %d pods", len(cells), want)
	}
	s.deleteAll(slices.Concat(slices.Collect(maps.Keys(kept)), slices.Collect(maps.Keys(before)))...)
	instances, err := machinesOnDisk()
	if err != nil {
		t.Fatal(err)
	}
	if len(instances) > 0 {
		t.Errorf("instances are left: %v", instances)
	}
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Errorf("Kip ended with %v", err)
	}
}

// servingFiles are a certificate of the kubelet port, and its key, as an operator gets them:
// by a request of their own, which kip-dev approves.
func servingFiles(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	node, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ips []net.IP
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, net.ParseIP(a.Address))
		}
	}
	keyPEM, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	user := "system:node:" + harness.Node
	request, err := cert.MakeCSR(key, &pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}, nil, ips)
	if err != nil {
		t.Fatal(err)
	}
	as := rest.CopyConfig(world.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:nodes"}}
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	name, uid, err := csr.RequestCertificateWithContext(t.Context(), client, request, "", certificatesv1.KubeletServingSignerName, nil,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}, key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	signed, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(os.WriteFile(certFile, signed, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}

// kipVersion is what a Kip says that it is.
func kipVersion(t *testing.T, socket string) string {
	t.Helper()
	out, errs, err := namespace.Run(exec.CommandContext(t.Context(), world.Tool("kipctl"), "version", "--socket", socket, "-o", "json"))
	if err != nil {
		t.Fatalf("kipctl version: %v: %s", err, errs)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("kipctl version printed %q: %v", out, err)
	}
	return fmt.Sprint(v["kip"])
}

// churn makes a pod that stays, or one that is deleted: at once, or when it runs.
func (s *space) churn(ctx context.Context, worker, n int, tell func(name string, stays bool)) error {
	// Not cut short by the end of the churning: it is told of what was done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	name := fmt.Sprintf("churned-%d-%d", worker, n)
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(sleeper(name)), &pod); err != nil {
		return err
	}
	pods := world.Admin.CoreV1().Pods(s.NS)
	if _, err := pods.Create(ctx, &pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	stays := n%3 == 0
	tell(name, stays)
	if n%3 != 1 { // else it goes while it waits for its cell
		if err := namespace.Poll(ctx, func(ctx context.Context) error {
			pod, err := s.Pod(ctx, name)
			if err == nil && !namespace.IsReady(pod) {
				err = fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
			}
			return err
		}); err != nil {
			return fmt.Errorf("wait until pod %s is ready: %w", name, err)
		}
	}
	if stays {
		return nil
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return nil
}
