package node

import (
	"context"
	"crypto/tls"
	"errors"
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

// NewFileCertificate reads the pair; it is an error if that fails now.
func NewFileCertificate(certFile, keyFile string, log *slog.Logger) (*FileCertificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, fmt.Errorf("the kubelet port's certificate and key come together: %s is %q, %s is %q",
			CertFileEnv, certFile, KeyFileEnv, keyFile)
	}
	f := &FileCertificate{certFile: certFile, keyFile: keyFile, log: log}
	versions, err := f.versions()
	if err == nil {
		err = f.load(versions)
	}
	if err != nil {
		return nil, fmt.Errorf("the kubelet port's certificate: %w", err)
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
		f.log.Warn("the kubelet port's certificate cannot be read again; keeping the last", "err", err)
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

// ClientCA is the authority whose client certificates the kubelet port accepts:
// that of file if it is given; else the one that the API server publishes for
// this (ConfigMap extension-apiserver-authentication in kube-system), if client
// may read it; else clusterCA, the authority that signed the API server's own
// certificate, which in most clusters signs its clients too. It is nil if none
// of them is there: then only tokens are accepted. A file or ConfigMap is
// followed while the port serves.
func ClientCA(ctx context.Context, file string, client kubernetes.Interface, clusterCA []byte,
	log *slog.Logger) (dynamiccertificates.CAContentProvider, error) {
	if file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("kubelet-client-ca", file)
		if err != nil {
			return nil, fmt.Errorf("client CA file: %w", err)
		}
		return ca, nil
	}
	const namespace, name, key = metav1.NamespaceSystem, "extension-apiserver-authentication", "client-ca-file"
	asking, cancel := context.WithTimeout(ctx, clientCATimeout)
	published, err := client.CoreV1().ConfigMaps(namespace).Get(asking, name, metav1.GetOptions{})
	cancel()
	refused := apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
	switch {
	case err == nil && published.Data[key] != "", err != nil && !refused && ctx.Err() == nil:
		if err != nil {
			log.Warn("the API server does not answer: client certificates are refused until it does", "err", err)
		}
		ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("kubelet-client-ca", namespace, name, key, client)
		if err != nil {
			return nil, fmt.Errorf("client CA from ConfigMap %s/%s: %w", namespace, name, err)
		}
		return ca, nil
	case err != nil && !refused:
		return nil, fmt.Errorf("client CA from ConfigMap %s/%s: %w", namespace, name, err)
	}
	if len(clusterCA) == 0 {
		log.Warn("no client CA: the kubelet port accepts bearer tokens only", "err", errors.Join(err))
		return nil, nil
	}
	ca, err := dynamiccertificates.NewStaticCAContent("cluster-ca", clusterCA)
	if err != nil {
		return nil, fmt.Errorf("client CA from the cluster's CA: %w", err)
	}
	return ca, nil
}
