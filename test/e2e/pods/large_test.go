//go:build e2e

package pods

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// Each container is in the pod's status, has its logs, takes a command, and is in the node's metrics.
func TestAPodOf200ContainersRunsAndIsSeenWhole(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	const containers = 200
	var spec strings.Builder
	spec.WriteString("  terminationGracePeriodSeconds: 1\n  containers:\n")
	for c := range containers {
		fmt.Fprintf(&spec, "  - {name: c%d, image: 'busybox:1.36', command: [sh, -c, 'echo I am %d; exec sleep 100000']", c, c)
		if c == 0 {
			spec.WriteString(", resources: {requests: {memory: 1Gi}}")
		}
		spec.WriteString("}\n")
	}
	s.Apply(namespace.Bare("a", spec.String()))
	s.Within(2*namespace.Patience, "all containers are ready", func(ctx context.Context) error {
		pod, err := s.Pod(ctx, "a")
		if err != nil {
			return err
		}
		n := 0
		for _, c := range pod.Status.ContainerStatuses {
			if c.Ready {
				n++
			}
		}
		if n != containers || !namespace.IsReady(pod) {
			return fmt.Errorf("%d are ready of %d in the status", n, len(pod.Status.ContainerStatuses))
		}
		return nil
	})
	last := fmt.Sprintf("c%d", containers-1)
	if got, want := s.Kubectl("logs", "a", "-c", last), fmt.Sprintf("I am %d\n", containers-1); got != want {
		t.Errorf("its log is %q, want %q", got, want)
	}
	if got := s.Kubectl("exec", "a", "-c", "c100", "--", "echo", "here"); got != "here\n" {
		t.Errorf("a command prints %q", got)
	}
	for _, path := range []string{"metrics/cadvisor", "metrics/resource"} {
		s.Eventually("each container is in "+path, func(ctx context.Context) error {
			out, _, errs := s.Attempt(ctx, "get", "--raw", "/api/v1/nodes/"+harness.Node+"/proxy/"+path)
			for c := range containers {
				if !strings.Contains(out, fmt.Sprintf(`container="c%d"`, c)) {
					return fmt.Errorf("container c%d is not in %d bytes %s", c, len(out), errs)
				}
			}
			return nil
		})
	}
}

// A ConfigMap has 1 MiB at most.
func TestLargeConfigMapsReachAPodAndAreUpdated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	const count = 6
	maps := world.Admin.CoreV1().ConfigMaps(s.NS)
	large := func(i int) *corev1.ConfigMap {
		b := make([]byte, 1<<19)
		if _, err := rand.Read(b); err != nil {
			t.Fatal(err)
		}
		// Within the limit with its keys; half as text, which JSON leaves as it is, and half as bytes.
		text := hex.EncodeToString(b[:1<<18])
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)},
			Data: map[string]string{"text": text}, BinaryData: map[string][]byte{"bytes": b[:1<<19-64]}}
	}
	var spec, volumes strings.Builder
	sums := map[string]string{}
	note := func(m *corev1.ConfigMap) {
		sums["/"+m.Name+"/text"] = fmt.Sprintf("%x", sha256.Sum256([]byte(m.Data["text"])))
		sums["/"+m.Name+"/bytes"] = fmt.Sprintf("%x", sha256.Sum256(m.BinaryData["bytes"]))
	}
	for i := range count {
		m := large(i)
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		note(m)
		fmt.Fprintf(&spec, "    - {name: v%d, mountPath: /%s}\n", i, m.Name)
		fmt.Fprintf(&volumes, "  - {name: v%d, configMap: {name: %s}}\n", i, m.Name)
	}
	s.Apply(namespace.Bare("a", "  containers:\n  - name: main\n    image: busybox:1.36\n    command: [sleep, '100000']\n    volumeMounts:\n"+
		spec.String()+"  volumes:\n"+volumes.String()))
	s.WaitReady("a")
	whole := func(ctx context.Context) error {
		for file, want := range sums {
			out, _, errs := s.Attempt(ctx, "exec", "a", "--", "sha256sum", file)
			if got, _, _ := strings.Cut(out, " "); got != want {
				return fmt.Errorf("%s has the sum %q, want %s: %s", file, got, want, errs)
			}
		}
		return nil
	}
	if err := whole(t.Context()); err != nil {
		t.Error(err)
	}
	for i := range count {
		m := large(i)
		if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		note(m)
	}
	s.Eventually("the changes are in the pod", whole)
}

// anchor is a certificate of an authority, PEM.
func anchor(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestAPodHasTheTrustBundlesThatItNamesAndSelects(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	bundles := world.Admin.CertificatesV1beta1().ClusterTrustBundles()
	put := func(name, signer string, labels map[string]string) *certificatesv1beta1.ClusterTrustBundle {
		b, err := bundles.Create(t.Context(), &certificatesv1beta1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: anchor(t, name)},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = bundles.Delete(context.Background(), name, metav1.DeleteOptions{}) })
		return b
	}
	signer := "example.com/" + s.NS
	named := put(s.NS+"-named", "", nil)
	live := put("example.com:"+s.NS+":live", signer, map[string]string{"use": "live"})
	other := put("example.com:"+s.NS+":other", signer, map[string]string{"use": "other"})
	s.Apply(namespace.Bare("a", fmt.Sprintf(`  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '100000']
    volumeMounts: [{name: trust, mountPath: /trust}]
  volumes:
  - name: trust
    projected:
      sources:
      - clusterTrustBundle: {name: %s, path: named.pem}
      - clusterTrustBundle: {signerName: %s, labelSelector: {matchLabels: {use: live}}, path: signer.pem}
      - clusterTrustBundle: {name: %s-none, path: none.pem, optional: true}
`, named.Name, signer, s.NS)))
	s.WaitReady("a")
	read := func() (string, string) {
		return s.Kubectl("exec", "a", "--", "cat", "/trust/named.pem"), s.Kubectl("exec", "a", "--", "cat", "/trust/signer.pem")
	}
	if byName, bySigner := read(); byName != named.Spec.TrustBundle || bySigner != live.Spec.TrustBundle {
		t.Errorf("the pod has\n%s\n%s, want\n%s\n%s", byName, bySigner, named.Spec.TrustBundle, live.Spec.TrustBundle)
	}
	other.Labels["use"] = "live"
	if _, err := bundles.Update(t.Context(), other, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the pod has the anchors of both bundles of the signer", func(context.Context) error {
		_, got := read()
		if !strings.Contains(got, strings.TrimSpace(live.Spec.TrustBundle)) || !strings.Contains(got, strings.TrimSpace(other.Spec.TrustBundle)) {
			return fmt.Errorf("it has\n%s", got)
		}
		return nil
	})
}

func TestAPodMountsAnImageAndRunsInAUserNamespaceOfItsOwn(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("image", `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '100000']
    volumeMounts: [{name: image, mountPath: /image}]
  volumes:
  - {name: image, image: {reference: 'busybox:1.36', pullPolicy: IfNotPresent}}
`))
	s.Apply(namespace.Bare("users", `  hostUsers: false
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, '100000']
    securityContext: {procMount: Unmasked}
`))
	s.WaitReady("image")
	if got := s.Kubectl("exec", "image", "--", "/image/bin/busybox", "echo", "from the image"); got != "from the image\n" {
		t.Errorf("a program of the volume prints %q", got)
	}
	s.WaitReady("users")
	f := strings.Fields(s.Kubectl("exec", "users", "--", "cat", "/proc/self/uid_map"))
	if len(f) != 3 || f[0] != "0" || f[1] == "0" || f[2] != "65536" {
		t.Errorf("its users are %q, want 65536 that are not the machine's", f)
	}
	if got := s.Kubectl("exec", "users", "--", "sh", "-c", "grep -c ' /proc/' /proc/self/mounts || true"); strings.TrimSpace(got) != "0" {
		t.Errorf("%s parts of /proc are masked", strings.TrimSpace(got))
	}
}

// kubectl debug makes a pod on the node; its machine is no other pod's.
func TestANodeDebuggerShowsAMachineOfItsOwn(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	out, code, warned := s.Try("debug", "node/"+harness.Node, "--image=busybox:1.36", "--", "sh", "-c",
		"ls /host/var/lib/kubelet/config.yaml; ls /host/var/log/pods; echo that is all; sleep 100000")
	if code != 0 || !strings.Contains(warned, "kipctl exec CELL") {
		t.Errorf("kubectl debug ends with %d and prints %q, want a warning that says how to get onto a pod's machine", code, warned)
	}
	_, name, found := strings.Cut(out, "Creating debugging pod ")
	name, _, _ = strings.Cut(name, " ")
	if !found {
		t.Fatalf("kubectl debug prints %q", out)
	}
	s.WaitReady(name)
	var log string
	s.Eventually("it says what it sees", func(ctx context.Context) error {
		if log, _, _ = s.Attempt(ctx, "logs", name); !strings.Contains(log, "that is all") {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
	s.Kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")
	if !strings.Contains(log, "/host/var/lib/kubelet/config.yaml") || !strings.Contains(log, name) || strings.Contains(log, s.NS+"_a_") {
		t.Errorf("it sees\n%s", log)
	}
}
