//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/store/storetest"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// secureEtcd is an etcd that serves and asks for certificates.
type secureEtcd struct {
	*storetest.Etcd
	dir string
}

func serveEtcd(t *testing.T) secureEtcd {
	t.Helper()
	dir := t.TempDir()
	now := time.Now()
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	for i, c := range []*x509.Certificate{
		{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
		{
			Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		},
		{Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(int64(i+1)), now.Add(-time.Hour), now.Add(time.Hour)
		if ca == nil {
			ca, caKey = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), caKey)
		if err != nil {
			t.Fatal(err)
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
			if err := os.WriteFile(filepath.Join(dir, c.Subject.CommonName+ext), pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	return secureEtcd{dir: dir, Etcd: storetest.Serve(t, &transport.TLSInfo{
		CertFile: file("server.crt"), KeyFile: file("server.key"), TrustedCAFile: file("ca.crt"), ClientCertAuth: true,
	})}
}

// use makes a Kip keep its state there.
func (e secureEtcd) use(t *testing.T, provider map[string]any) {
	t.Helper()
	provider["etcd"] = map[string]any{
		"internal": map[string]any{"dataDir": filepath.Join(shortDir(t), "data")}, // for the logs of pods, and the socket
		"client": map[string]any{
			"endpoints": []string{"https://" + e.Endpoint},
			"certFile":  filepath.Join(e.dir, "client.crt"), "keyFile": filepath.Join(e.dir, "client.key"), "caFile": filepath.Join(e.dir, "ca.crt"),
		},
	}
}

// replica is one of the Kips of a node.
type replica struct {
	*harness.Kip
	cloud *watchedCloud
}

// Not parallel: other Kips than the world's serve the node. They are processes of
// their own with one etcd and one cloud, as two replicas on two machines.
func TestAStandbyKipTakesOverAndNoPodNotices(t *testing.T) {
	s := newSpace(t)
	killKip(t)
	etcd, machines := serveEtcd(t), openCloud(t)
	start := func() replica {
		t.Helper()
		w, socket := serveTo(t, machines)
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		return replica{cloud: w, Kip: runKip(t, func(provider map[string]any) {
			provider["cloud"] = map[string]any{"sim": map[string]any{"socket": socket}}
			etcd.use(t, provider)
		}, fmt.Sprint("--kubelet-port=", port))}
	}
	leader := start()
	s.waitLeads(leader.Kip)
	standby := start()
	s.waitLogs(standby.Kip, "waiting to lead")
	s.waitReadyz(standby.Kip, 200, "[+]store ok")
	s.waitReadyz(leader.Kip, 200)

	s.Apply(counting("a"))
	before := map[string]*corev1.Pod{"a": s.WaitReady("a")}
	s.Eventually("exec", s.ExecTrue("a"))
	// turn ends the leader's turn, has a pod created meanwhile, and returns when
	// the standby has made up for all.
	counted := 0
	turn := func(how, pod string, end func()) {
		t.Helper()
		counted = s.counts("a", counted)
		began := time.Now()
		end()
		s.Apply(namespace.Sleeper(pod))
		s.waitLeads(standby.Kip)
		led := time.Since(began)
		s.Eventually("exec", s.ExecTrue("a"))
		t.Logf("%s: the standby led after %.1f s, exec worked after %.1f s", how, led.Seconds(), time.Since(began).Seconds())
		s.WaitReady(pod)
		s.allUnmoved(before)
		counted = s.counts("a", counted)
		s.waitReadyz(standby.Kip, 200)
	}

	turn("SIGTERM", "b", func() { signal(t, leader.Kip, syscall.SIGTERM) })
	if err := s.waitEnd(leader.Kip); err != nil {
		t.Errorf("a Kip that was told to end ended with %v", err)
	}
	leader, standby = standby, start()
	s.waitLogs(standby.Kip, "waiting to lead")

	turn("SIGKILL", "c", func() { signal(t, leader.Kip, syscall.SIGKILL) })
	leader, standby = standby, start()
	s.waitLogs(standby.Kip, "waiting to lead")

	// A leader that is paused does not know that another leads, and goes on
	// where it was. By then there is much that it could get wrong: pods and
	// instances that it has never heard of, and others that it misses.
	s.Apply(namespace.Sleeper("gone"))
	s.WaitReady("gone")
	turn("SIGSTOP", "d", func() {
		signal(t, leader.Kip, syscall.SIGSTOP)
		s.Kubectl("delete", "pod", "gone", "--wait=false")
	})
	s.WaitGone("gone")
	s.Apply(namespace.Sleeper("e"))
	before["e"] = s.WaitReady("e")
	s.Apply(namespace.Sleeper("f"))
	did := leader.cloud.made()
	if len(standby.cloud.made()) == 0 {
		t.Error("the leader is not seen to launch")
	}
	leader.Forgive("exit status 1")
	signal(t, leader.Kip, syscall.SIGCONT)
	if err := s.waitEnd(leader.Kip); err == nil {
		t.Error("a Kip that leads no more ended without an error")
	} else {
		t.Log("the Kip that was paused ended with", err)
	}
	if said, err := leader.Logs("this process no longer leads"); err != nil || !said {
		t.Errorf("the Kip that was paused did not end because it leads no more (%v): see %s", err, leader.Log)
	}
	if all := leader.cloud.made(); len(all) != len(did) {
		t.Errorf("a Kip that leads no more did this to the cloud: %v", slices.Clone(all[len(did):]))
	}
	s.WaitReady("f")
	s.allUnmoved(before)
	s.counts("a", counted)

	s.deleteAll("a", "b", "c", "d", "e", "f")
	signal(t, standby.Kip, syscall.SIGTERM)
	if err := s.waitEnd(standby.Kip); err != nil {
		t.Errorf("the last Kip ended with %v", err)
	}
}
