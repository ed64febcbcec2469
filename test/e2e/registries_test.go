//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/dev/registry"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// issuer issues certificates for the address of the cells' bridge, and for clients.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key, cert: &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "registries"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign}}
	der, err := x509.CreateCertificate(rand.Reader, i.cert, i.cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	i.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return i
}

func (i *issuer) issue(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "one"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IP(ownNetwork.Host().AsSlice())}}, i.cert, key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// What opens the registries that want a password.
const registryUser, registryPassword = "puller", "sesame"

// serveRegistry serves an image on the bridge of the cells, by TLS if there is a configuration, and with a password if that is
// wanted. It returns the image's name.
func serveRegistry(t *testing.T, config *tls.Config, password bool) (host, image string) {
	t.Helper()
	return serveRegistryTo(t, config, func(user, word string) bool { return !password || user == registryUser && word == registryPassword })
}

// serveRegistryTo is serveRegistry for users who may read it. Who pushes has the password.
func serveRegistryTo(t *testing.T, config *tls.Config, may func(user, word string) bool) (host, image string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ownNetwork.Host().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	host = l.Addr().String()
	all := ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)))
	if config != nil {
		l = tls.NewListener(l, config)
	}
	serveOn(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, word, _ := r.BasicAuth(); !may(user, word) {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		all.ServeHTTP(w, r)
	}))
	image = host + "/team/busybox:1"
	pushBusybox(t, image, config)
	return host, image
}

// serveOn serves a registry on a listener until the test ends.
func serveOn(t *testing.T, l net.Listener, h http.Handler) {
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: h}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { s.Close() })
}

// pushBusybox writes an image into a registry that wants a password, by TLS if there is a configuration.
func pushBusybox(t *testing.T, image string, config *tls.Config) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	made, err := registry.Busybox(t.Context(), busybox)
	if err != nil {
		t.Fatal(err)
	}
	options := []name.Option{}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if config == nil {
		options = append(options, name.Insecure)
	} else {
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, Certificates: config.Certificates}
	}
	ref, err := name.ParseReference(image, options...)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, made, remote.WithContext(t.Context()), remote.WithTransport(transport),
		remote.WithAuth(&authn.Basic{Username: registryUser, Password: registryPassword})); err != nil {
		t.Fatal(err)
	}
	transport.CloseIdleConnections()
}

// Not parallel: Kip starts with other settings.
func TestImagesComeFromPrivateRegistries(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	ca, dir := newIssuer(t), t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certPEM, keyPEM := ca.issue(t)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.pem)
	own, ownImage := serveRegistry(t, &tls.Config{Certificates: []tls.Certificate{pair}}, true)
	plain, plainImage := serveRegistry(t, nil, true)
	mutual, mutualImage := serveRegistry(t, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: roots}, false)
	_, strangeImage := serveRegistry(t, &tls.Config{Certificates: []tls.Certificate{pair}}, false)
	clientCert, clientKey := ca.issue(t)
	caFile := file("ca.crt", ca.pem)
	reconfigure(t, map[string]any{"registries": []any{
		map[string]any{"host": own, "caFile": caFile},
		map[string]any{"host": plain, "plainHTTP": true},
		map[string]any{"host": mutual, "caFile": caFile, "clientCertificateFile": file("client.crt", clientCert),
			"clientKeyFile": file("client.key", clientKey)},
	}})

	auth := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	s.Apply(fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: pull}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {%q: {"auth": %q}, %q: {"auth": %q}}}'}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: puller}
imagePullSecrets: [{name: pull}]
`, own, auth, plain, auth))
	pod := func(name, more, image, policy string) string {
		return namespace.Bare(name, more+fmt.Sprintf(`  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: %s, command: [sleep, '100000']}
`, image, policy))
	}
	s.Apply(pod("secret", "  imagePullSecrets: [{name: pull}]\n", ownImage, "Always"))
	s.Apply(pod("account", "  serviceAccountName: puller\n", plainImage, "IfNotPresent"))
	s.Apply(pod("certificate", "", mutualImage, "IfNotPresent"))
	s.Apply(pod("nothing", "", ownImage, "IfNotPresent"))
	s.Apply(pod("strange", "", strangeImage, "Always"))
	s.Apply(pod("never", "  imagePullSecrets: [{name: pull}]\n", ownImage, "Never"))
	for _, name := range []string{"secret", "account", "certificate"} {
		s.WaitReady(name)
	}
	for name, why := range map[string]struct{ reason, event, text string }{
		"nothing": {"ErrImagePull", "Failed", "authorization failed"},
		// containerd reports of the registries that it asks a "not found" first: that of the cluster's mirror, not the unknown CA.
		"strange": {"ErrImagePull", "Failed", "failed to resolve image: " + strangeImage},
		"never":   {"ErrImageNeverPull", "ErrImageNeverPull", "not present"},
	} {
		s.WaitPod(name, "waits for its image", func(p *corev1.Pod) bool {
			for _, c := range p.Status.ContainerStatuses {
				if w := c.State.Waiting; w != nil && (w.Reason == why.reason || w.Reason == "ImagePullBackOff" && why.reason == "ErrImagePull") {
					return true
				}
			}
			return false
		})
		s.Eventually("pod "+name+" says why", func(ctx context.Context) error {
			out, _, errs := s.Attempt(ctx, "get", "events", "--field-selector", "involvedObject.name="+name+",reason="+why.event,
				"-o", `jsonpath={.items[*].message}`)
			if !strings.Contains(out, why.text) {
				return fmt.Errorf("its Events say %q %s", out, errs)
			}
			return nil
		})
	}
}
