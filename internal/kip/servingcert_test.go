package kip

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cellca"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
)

// asNodes are the clients of nodes.
type asNodes map[string]kubernetes.Interface

func (a asNodes) As(node string) (kubernetes.Interface, error) { return a[node], nil }

// writePair writes a certificate of an authority, with its key.
// keyFile is a file with a key for the store.
func keyFile(t *testing.T, b byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	text := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) + "\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func writePair(t *testing.T, authority *pki.Authority, name string) (certFile, keyFile string) {
	t.Helper()
	own, err := authority.Server([]string{name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := own.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(
		os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}

func TestKipSaysAtTheStartWhichCertificateTheKubeletPortServes(t *testing.T) {
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := writePair(t, authority, "of-files")
	sealer, err := cellca.OpenSealer(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, says, serves string
		files              bool
		config             config.ServingCertificate
		asks               string // who: kip, node or nobody
	}{
		{name: "by itself", says: "Kip's own certificate", serves: "kip-0"},
		{name: "files", says: "a certificate of files", serves: "of-files", files: true},
		{name: "kubelet-serving", says: "signer=kubernetes.io/kubelet-serving", serves: "kip-0", asks: "node",
			config: config.ServingCertificate{SignerName: "kubernetes.io/kubelet-serving"}},
		{name: "another signer", says: "signer=example.com/serving", serves: "kip-0", asks: "kip",
			config: config.ServingCertificate{SignerName: "example.com/serving"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.files {
				t.Setenv(node.CertFileEnv, certFile)
				t.Setenv(node.KeyFileEnv, keyFile)
			}
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				clients := map[string]*fake.Clientset{"kip": fake.NewClientset(), "node": fake.NewClientset()}
				made, err := certificates{
					Options:   Options{NodeName: "kip-0", Log: slog.New(slog.NewTextHandler(&log, nil))},
					config:    c.config,
					authority: authority,
					store:     store.Memory(nil),
					sealer:    sealer,
					asKip:     clients["kip"],
					clients:   asNodes{"kip-0": clients["node"]},
					event:     func(string, events.Event) {},
					clock:     clock.RealClock{},
				}.Certificate(t.Context(), "kip-0", []netip.Addr{netip.MustParseAddr("10.0.0.1")})
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(log.String(), c.says) {
					t.Errorf("Kip says %q, want %q", &log, c.says)
				}
				if unsealed := strings.Contains(log.String(), "etcd.encryptionKeyFiles"); unsealed != (c.asks != "") {
					t.Errorf("Kip warns of a key in the store: %t: %s", unsealed, &log)
				}
				pair, err := made.GetCertificate(nil)
				if err != nil {
					t.Fatal(err)
				}
				leaf, err := x509.ParseCertificate(pair.Certificate[0])
				if err != nil || !slices.Equal(leaf.DNSNames, []string{c.serves}) {
					t.Errorf("it serves as %v (%v), want %s", leaf.DNSNames, err, c.serves)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := made.Run(ctx); err != nil {
					t.Error(err)
				}
				for who, client := range clients {
					list, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if asked := len(list.Items) > 0; asked != (who == c.asks) {
						t.Errorf("%s has requested a certificate: %t", who, asked)
					}
				}
			})
		})
	}
}

func TestFilesAndASignerAreOneTooMany(t *testing.T) {
	cfg, _, err := config.Parse("provider.yaml", []byte("cloud: {local: {}}\ncells: {defaultInstanceType: small}\n"+
		"servingCertificate: {signerName: kubernetes.io/kubelet-serving}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkServingCertificate(cfg); err != nil {
		t.Errorf("without files: %v", err)
	}
	t.Setenv(node.CertFileEnv, "/etc/kip/tls.crt")
	err = checkServingCertificate(cfg)
	for _, words := range []string{"provider.yaml:3", "servingCertificate.signerName", "kubelet-serving", node.CertFileEnv, "/etc/kip"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("it is refused with %v, want %q in it", err, words)
		}
	}
	cfg.ServingCertificate.SignerName = ""
	if err := checkServingCertificate(cfg); err != nil {
		t.Errorf("without a signer: %v", err)
	}
}

func TestTheKeyOfAServingCertificateIsSealedInTheStoreByTheFirstKey(t *testing.T) {
	st := store.Memory(nil)
	secret := []byte("secret")
	keep := func(files ...string) *keptCertificate {
		t.Helper()
		sealer, err := cellca.OpenSealer(files)
		if err != nil {
			t.Fatal(err)
		}
		return &keptCertificate{store: st, sealer: sealer, key: servingCertKey + "kip-0", log: silent}
	}
	stored := func() (data []byte) {
		t.Helper()
		if _, err := st.Get(t.Context(), servingCertKey+"kip-0", &data); err != nil {
			t.Fatal(err)
		}
		return data
	}
	first, second := keyFile(t, 1), keyFile(t, 2)
	k := keep(first)
	if data, err := k.Load(t.Context()); data != nil || err != nil {
		t.Fatalf("before anything is stored: %q, %v", data, err)
	}
	if err := k.Save(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(stored(), secret) {
		t.Error("it is stored in plain")
	}
	if data, err := keep(second, first).Load(t.Context()); !bytes.Equal(data, secret) || err != nil {
		t.Errorf("with another key before the first: %q, %v", data, err)
	}
	if data, err := keep(second).Load(t.Context()); !bytes.Equal(data, secret) || err != nil {
		t.Errorf("when the old key is dropped: %q, %v", data, err)
	}
	// Another can be requested.
	k = keep(first)
	if data, err := k.Load(t.Context()); data != nil || err != nil {
		t.Errorf("without its key: %q, %v", data, err)
	}
	if err := k.Save(t.Context(), []byte("another")); err != nil {
		t.Error(err)
	}
	if data, err := keep(first).Load(t.Context()); string(data) != "another" || err != nil {
		t.Errorf("what follows is %q, %v", data, err)
	}
}

// A store may have no space.
func TestAServingCertificateThatCannotBeSealedAnewServes(t *testing.T) {
	st := store.Memory(nil)
	first, second := keyFile(t, 1), keyFile(t, 2)
	open := func(st *store.Store, files ...string) *keptCertificate {
		t.Helper()
		sealer, err := cellca.OpenSealer(files)
		if err != nil {
			t.Fatal(err)
		}
		return &keptCertificate{store: st, sealer: sealer, key: servingCertKey + "kip-0", log: silent}
	}
	if err := open(st, first).Save(t.Context(), []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Put(t.Context(), "leader", "another", 0); err != nil {
		t.Fatal(err)
	}
	unwritable := st.Fenced(st.Prefix()+"leader", 1<<40)
	if _, err := unwritable.Put(t.Context(), "x", "y", 0); err == nil {
		t.Fatal("the store can be written")
	}
	if data, err := open(unwritable, second, first).Load(t.Context()); string(data) != "secret" || err != nil {
		t.Errorf("it is %q, %v", data, err)
	}
}

func TestServingCertificatesGoWithTheirNodesAndTheSigner(t *testing.T) {
	st := store.Memory(nil)
	for _, key := range []string{servingCertKey + "kip-0", servingCertKey + "kip-0-2", "other"} {
		if _, err := st.Put(t.Context(), key, []byte("sealed"), 0); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want ...string) {
		t.Helper()
		var is []string
		if err := st.List(t.Context(), "", func(key string, _ []byte, _ int64) error { is = append(is, key); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(is, want) {
			t.Errorf("%s the store has %q, want %q", when, is, want)
		}
	}
	c := certificates{Options: Options{Log: silent}, store: st, config: config.ServingCertificate{SignerName: "example.com/serving"}}
	c.KeepOnly(t.Context(), []string{"kip-0", "kip-0-2"})
	expect("with both nodes", "other", servingCertKey+"kip-0", servingCertKey+"kip-0-2")
	c.KeepOnly(t.Context(), []string{"kip-0"})
	expect("without a node", "other", servingCertKey+"kip-0")
	c.config = config.ServingCertificate{}
	c.KeepOnly(t.Context(), []string{"kip-0"})
	expect("without a signer", "other")
}

// A write whose answer is lost was done all the same.
func TestAServingCertificateIsKeptAfterALostAnswer(t *testing.T) {
	st := store.Memory(nil)
	sealer, err := cellca.OpenSealer(nil)
	if err != nil {
		t.Fatal(err)
	}
	k := &keptCertificate{store: st, sealer: sealer, key: servingCertKey + "kip-0", log: silent}
	if _, err := st.Put(t.Context(), k.key, []byte("of the lost answer"), 0); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"next", "last"} {
		if err := k.Save(t.Context(), []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got, err := k.Load(t.Context()); string(got) != data || err != nil {
			t.Errorf("it is %q, %v; want %q", got, err, data)
		}
	}
}
