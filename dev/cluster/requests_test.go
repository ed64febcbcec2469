package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/manifest"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/servingcert"
)

// notKept forgets.
type notKept struct{}

func (notKept) Load(context.Context) ([]byte, error) { return nil, nil }
func (notKept) Save(context.Context, []byte) error   { return nil }

// kubeletPort answers for the logs of a pod on node kip-0, as the API server asks for them.
type kubeletPort struct {
	*testing.T
	identities
	address netip.Addr

	mu     sync.Mutex
	serves func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	told   []string
}

func newKubeletPort(t *testing.T, is identities) *kubeletPort {
	p := &kubeletPort{T: t, identities: is, address: netip.MustParseAddr("127.0.0.1")}
	l, err := tls.Listen("tcp", net.JoinHostPort(p.address.String(), "0"), &tls.Config{
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.serves(hello)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a line") }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	server.SetKeepAlivesEnabled(false) // each request looks at the certificate
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	becomes(t, "the node says where its kubelet port is", func() error {
		there, err := is.admin.CoreV1().Nodes().Get(t.Context(), "kip-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		there.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: p.address.String()}}
		there.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(l.Addr().(*net.TCPAddr).Port)
		_, err = is.admin.CoreV1().Nodes().UpdateStatus(t.Context(), there, metav1.UpdateOptions{})
		return err
	})
	pods := is.admin.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "logs"},
		Spec:       corev1.PodSpec{NodeName: "kip-0", Containers: []corev1.Container{{Name: "main", Image: "busybox"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		if err := pods.Delete(context.Background(), "logs", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	})
	return p
}

// serve has the port serve certificates from now on.
func (p *kubeletPort) serve(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serves = get
}

// logs are those of the pod, by the API server.
func (p *kubeletPort) logs() error {
	text, err := p.admin.CoreV1().Pods("default").GetLogs("logs", &corev1.PodLogOptions{}).DoRaw(p.Context())
	if err == nil && string(text) == "a line" {
		return nil
	}
	return fmt.Errorf("%q, %w", text, err)
}

// says reports whether an Event has all of these words.
func (p *kubeletPort) says(words ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.told, func(e string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
	}) {
		return fmt.Errorf("the Events are %q, want one with %q", p.told, words)
	}
	return nil
}

// request has Kip keep a certificate for the port while do runs.
func (p *kubeletPort) request(
	own *pki.Renewed, signer string, requester, approver kubernetes.Interface, do func(*servingcert.Certificate),
) {
	p.Helper()
	made, err := servingcert.New(p.Context(), servingcert.Config{
		Node:       "kip-0",
		Addresses:  []netip.Addr{p.address},
		SignerName: signer,
		Requester:  requester,
		AsNode:     requester == p.node,
		Approver:   approver,
		Keep:       notKept{},
		Own:        own.GetCertificate,
		Event: func(e events.Event) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.told = append(p.told, e.Type+" "+e.Reason+": "+e.Message)
		},
		Clock: clock.RealClock{},
		Log:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		p.Fatal(err)
	}
	p.serve(made.GetCertificate)
	ctx, stop := context.WithCancel(p.Context())
	ended := make(chan error, 1)
	go func() { ended <- made.Run(ctx) }()
	do(made)
	stop()
	if err := <-ended; err != nil {
		p.Error(err)
	}
	p.serve(own.GetCertificate)
	if err := p.admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(p.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		p.Fatal(err)
	}
}

// asked is the request that Kip has made.
func (p *kubeletPort) asked() (r *certificatesv1.CertificateSigningRequest) {
	p.Helper()
	becomes(p.T, "Kip requests a certificate", func() error {
		list, err := p.admin.CertificatesV1().CertificateSigningRequests().List(p.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("there are %d requests", len(list.Items))
		}
		if err == nil {
			r = &list.Items[0]
		}
		return err
	})
	return r
}

// approve does what kubectl certificate approve does.
func (p *kubeletPort) approve(by kubernetes.Interface, r *certificatesv1.CertificateSigningRequest) error {
	r = r.DeepCopy()
	conclude(r, certificatesv1.CertificateApproved, "KubectlApprove", "")
	_, err := by.CertificatesV1().CertificateSigningRequests().UpdateApproval(p.Context(), r.Name, r, metav1.UpdateOptions{})
	return err
}

func (p *kubeletPort) apply(doc []byte) {
	p.Helper()
	if _, err := manifest.Apply(p.Context(), p.config, "kip-dev", doc); err != nil {
		p.Fatal(err)
	}
}

// The API server verifies kubelets by the CA that its signers have.
func kubectlLogsWorksByACertificateOfEachKind(t *testing.T, is identities) {
	p := newKubeletPort(t, is)
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	own, err := authority.Server([]string{"kip-0"}, []netip.Addr{p.address})
	if err != nil {
		t.Fatal(err)
	}
	unverified := func() error {
		if err := p.logs(); err == nil || !strings.Contains(err.Error(), "x509") {
			return fmt.Errorf("kubectl logs: %w, want that the certificate is not verified", err)
		}
		return nil
	}
	p.serve(own.GetCertificate)
	becomes(t, "by Kip's own certificate", unverified)

	var files struct{ cert, key []byte }
	p.request(own, certificatesv1.KubeletServingSignerName, is.node, nil, func(made *servingcert.Certificate) {
		r := p.asked()
		if r.Spec.Username != "system:node:kip-0" {
			t.Errorf("%s asks as a node", r.Spec.Username)
		}
		becomes(t, "before it is approved", unverified)
		if err := p.approve(is.admin, r); err != nil {
			t.Fatal(err)
		}
		becomes(t, "by kubernetes.io/kubelet-serving", p.logs)
		files.cert, files.key = pemOf(t, made)
	})
	p.servesFiles(files.cert, files.key)

	p.request(own, certificatesv1.KubeletServingSignerName, is.node, nil, func(*servingcert.Certificate) {
		if err := denyAsGKE(t.Context(), is.admin, p.asked()); err != nil {
			t.Fatal(err)
		}
		becomes(t, "GKE denies a node's", func() error {
			return p.says("Warning", events.ServingCertificateRefused, "denied (AutoDenied)", "servingCertificate.requester to kip")
		})
		becomes(t, "once it is denied", unverified)
	})

	if err := refused(p.mayRequest(is.kip), "cannot"); err != nil {
		t.Errorf("without deploy/manifests/rights/csr.yaml Kip requests as itself: %v", err)
	}
	p.apply(deploy.CSR)
	becomes(t, "Kip may request", func() error { return p.mayRequest(is.kip) })
	p.request(own, certificatesv1.KubeletServingSignerName, is.kip, nil, func(*servingcert.Certificate) {
		r := p.asked()
		if err := denyAsGKE(t.Context(), is.admin, r); err != nil || !unanswered(r) {
			t.Errorf("GKE answers what Kip requests as itself: %+v, %v", r.Status, err)
		}
		if err := p.approve(is.admin, r); err != nil {
			t.Fatal(err)
		}
		becomes(t, "on GKE, requested by Kip", p.logs)
	})
	p.kipApproves(own, unverified)
}

// kipApproves proves that Kip approves with the right to, and for no other signer.
func (p *kubeletPort) kipApproves(own *pki.Renewed, unverified func() error) {
	p.Helper()
	p.request(own, EKSSigner, p.kip, p.kip, func(*servingcert.Certificate) {
		becomes(p.T, "Kip has no right to approve", func() error {
			return p.says("Warning", events.ServingCertificatePending, "deploy/manifests/rights/csr-approve.yaml", EKSSigner,
				"kubectl certificate approve "+p.asked().Name)
		})
		becomes(p.T, "before Kip may approve", unverified)
		p.apply(bytes.ReplaceAll(deploy.CSRApprove, []byte(certificatesv1.KubeletServingSignerName), []byte(EKSSigner)))
		becomes(p.T, "by the signer of EKS", p.logs)
	})
	p.mintsTheAPIServersName(EKSSigner, p.kip)
	p.request(own, certificatesv1.KubeletServingSignerName, p.node, nil, func(*servingcert.Certificate) {
		if err := refused(p.approve(p.kip, p.asked()), "not permitted to approve"); err != nil {
			p.Errorf("Kip approves for another signer: %v", err)
		}
	})
	p.apply(deploy.CSRApprove)
	p.mintsTheAPIServersName(certificatesv1.KubeletServingSignerName, p.node)
}

// mintsTheAPIServersName proves what the right to approve for a signer is worth: a certificate for any name,
// also that of the API server, of the CA by which pods verify that.
func (p *kubeletPort) mintsTheAPIServersName(signer string, by kubernetes.Interface) {
	p.Helper()
	const name = "kubernetes.default.svc"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.Fatal(err)
	}
	csr, err := cert.MakeCSRFromTemplate(key, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:kip-0", Organization: []string{"system:nodes"}},
		DNSNames: []string{name},
	})
	if err != nil {
		p.Fatal(err)
	}
	requests := by.CertificatesV1().CertificateSigningRequests()
	r, err := requests.Create(p.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "stolen-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    csr,
			SignerName: signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	becomes(p.T, "Kip's service account approves the API server's name for "+signer, func() error { return p.approve(p.kip, r) })
	becomes(p.T, signer+" signs the API server's name", func() error {
		there, err := requests.Get(p.Context(), r.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		signed, err := cert.ParseCertsPEM(there.Status.Certificate)
		if err != nil {
			return fmt.Errorf("%w: %+v", err, there.Status.Conditions)
		}
		published, err := p.admin.CoreV1().ConfigMaps("default").Get(p.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(published.Data["ca.crt"])) {
			return errors.New("no CA is published for pods")
		}
		_, err = signed[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		return err
	})
	if err := p.admin.CertificatesV1().CertificateSigningRequests().Delete(p.Context(), r.Name, metav1.DeleteOptions{}); err != nil {
		p.Fatal(err)
	}
}

// mayRequest is nil if a user may read requests.
func (p *kubeletPort) mayRequest(by kubernetes.Interface) error {
	_, err := by.CertificatesV1().CertificateSigningRequests().Get(p.Context(), "none", metav1.GetOptions{})
	if err != nil && !strings.Contains(err.Error(), "not found") {
		return err
	}
	return nil
}

// pemOf are a certificate that was signed and its key, as files have them.
func pemOf(t *testing.T, made *servingcert.Certificate) (cert, key []byte) {
	t.Helper()
	pair, err := made.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	private, is := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !is {
		t.Fatalf("the key is a %T", pair.PrivateKey)
	}
	if key, err = encodeKey(private); err != nil {
		t.Fatal(err)
	}
	return encodeCert(pair.Certificate[0]), key
}

// servesFiles proves that logs work by a certificate of files.
func (p *kubeletPort) servesFiles(cert, key []byte) {
	p.Helper()
	dir := p.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		p.Fatal(err)
	}
	files, err := node.NewFileCertificate(node.OfKubeletPort, certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		p.Fatal(err)
	}
	p.serve(files.GetCertificate)
	becomes(p.T, "by a certificate of files", p.logs)
}
