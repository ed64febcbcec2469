package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// Environment variables that name the kubelet port's certificate and key files.
const (
	CertFileEnv = "APISERVER_CERT_LOCATION"
	KeyFileEnv  = "APISERVER_KEY_LOCATION"
)

// FileCertificate is a serving certificate from two PEM files, read again when
// either changes. Its GetCertificate is for a tls.Config.
type FileCertificate struct {
	what              string // for people
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	read    [2]fileVersion
}

type fileVersion struct {
	modified time.Time
	size     int64
}

// OfKubeletPort is what errors and logs call the certificate of the kubelet port.
const OfKubeletPort = "the certificate of the kubelet port (" + CertFileEnv + ", " + KeyFileEnv + ")"

// NewFileCertificate reads the pair, which errors and logs call what; it is an error if
// that fails now.
func NewFileCertificate(what, certFile, keyFile string, log *slog.Logger) (*FileCertificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, fmt.Errorf("%s: a certificate and its key come together, and these are %q and %q", what, certFile, keyFile)
	}
	f := &FileCertificate{
		what:     what,
		certFile: certFile,
		keyFile:  keyFile,
		log:      log,
	}
	versions, err := f.versions()
	if err == nil {
		err = f.load(versions)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return f, nil
}

// GetCertificate returns the pair as it is in the files now, or the last one
// that was whole (between the writing of one file and of the other it is not).
func (f *FileCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	versions, err := f.versions()
	if err == nil && versions != f.read {
		err = f.load(versions)
	}
	if err != nil {
		f.log.Warn("a serving certificate cannot be read again; keeping the last", "certificate", f.what, "err", err)
	}
	return f.current, nil
}

func (f *FileCertificate) versions() (v [2]fileVersion, err error) {
	for i, name := range []string{f.certFile, f.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return v, err
		}
		v[i] = fileVersion{info.ModTime(), info.Size()}
	}
	return v, nil
}

func (f *FileCertificate) load(v [2]fileVersion) error {
	pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return err
	}
	f.current, f.read = &pair, v
	return nil
}

// Where the API server publishes the authority of client certificates, its own among
// them.
const (
	clientCANamespace = metav1.NamespaceSystem
	clientCAConfigMap = "extension-apiserver-authentication"
	clientCAKey       = "client-ca-file"
)

// ClientCA is the authority whose client certificates the kubelet port accepts: that
// of file if it is given, else the one that the API server publishes for this, if
// client may read it. No other will do: the bundle by which Kip knows the API server
// says who serves, and may sign for anybody. It is nil where client may not read what
// is published: then only tokens are accepted. A file or ConfigMap is followed while
// the port serves, also if it is not there yet.
func ClientCA(
	ctx context.Context, file string, client kubernetes.Interface, log *slog.Logger,
) (dynamiccertificates.CAContentProvider, error) {
	if file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("kubelet-client-ca", file)
		if err != nil {
			return nil, fmt.Errorf("client CA file: %w", err)
		}
		return followed(ca), nil
	}
	asking, cancel := context.WithTimeout(ctx, clientCATimeout)
	_, err := client.CoreV1().ConfigMaps(clientCANamespace).Get(asking, clientCAConfigMap, metav1.GetOptions{})
	cancel()
	switch {
	case apierrors.IsForbidden(err):
		log.Warn("Kip may not read the client CA: the kubelet port accepts bearer tokens only, until Kip is started with that right",
			"right", "RoleBinding kip-client-ca.NODE in kube-system, of the Helm chart and deploy/manifests/rights/rbac.yaml", "err", err)
		return nil, nil
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("client CA from ConfigMap %s/%s: %w", clientCANamespace, clientCAConfigMap, err)
	case err != nil && !apierrors.IsNotFound(err):
		log.Warn("the API server does not answer: client certificates are refused until it does", "err", err)
	}
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("kubelet-client-ca", clientCANamespace, clientCAConfigMap, clientCAKey,
		client)
	if err != nil {
		return nil, fmt.Errorf("client CA from ConfigMap %s/%s: %w", clientCANamespace, clientCAConfigMap, err)
	}
	return followed(ca), nil
}
