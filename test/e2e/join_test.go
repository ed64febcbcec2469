//go:build e2e

package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"

	"github.com/elotl/kip/test/namespace"
)

// identityDir is where an agent keeps its key and certificate.
const identityDir = "/var/lib/itzo/identity"

// agentAddress is where the machine's agent listens.
func (m machine) agentAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	ip, err := netip.ParseAddr(m.cell.Status.ManagementIP)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(ip, agentapi.Port)
}

// userData is what the machine was launched with.
func (m machine) userData(t *testing.T) (agentapi.UserData, []byte) {
	t.Helper()
	doc, err := os.ReadFile(m.path(cloudinit.SeedFile))
	if err != nil {
		t.Fatal(err)
	}
	ud, err := cloudinit.Parse(doc, "")
	if err != nil {
		t.Fatal(err)
	}
	return ud, doc
}

// certificate is the one that the agent has from Kip, with its key: what who has
// broken out of a pod could steal.
func (m machine) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(m.path(filepath.Join(identityDir, "cell.crt")), m.path(filepath.Join(identityDir, "cell.key")))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// foreignAuthority is a CA like Kip's, but not Kip's.
func foreignAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestUserDataHoldsNoKey(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	m := s.machine("a")
	ud, doc := m.userData(t)
	if ud.CellID != m.cell.Name {
		t.Errorf("user data is for cell %s, the machine is cell %s", ud.CellID, m.cell.Name)
	}
	var all map[string]map[string]string
	if err := yaml.UnmarshalStrict(doc, &all); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{"kip": {"cellID": ud.CellID, "caHash": ud.CAHash, "token": ud.Token}}
	if len(all) != 1 || len(all["kip"]) != 3 || fmt.Sprint(all) != fmt.Sprint(want) {
		t.Error("user data holds more than kip.cellID, kip.caHash and kip.token")
	}
	if info, err := os.Stat(m.path(cloudinit.SeedFile)); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others than root may read the machine's user data: %v, %v", info, err)
	}

	// The key was made on the machine, and is there only.
	key := read(t, m.path(filepath.Join(identityDir, "cell.key")))
	if info, err := os.Stat(m.path(filepath.Join(identityDir, "cell.key"))); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the cell's key: %v, %v; want mode 0600", info, err)
	}
	cert := m.certificate(t).Leaf
	if uri := pki.CellURI(m.cell.Name).String(); len(cert.URIs) != 1 || cert.URIs[0].String() != uri {
		t.Errorf("the cell's certificate is for %v, want %s", cert.URIs, uri)
	}
	// Neither is in what Kip says and shows.
	for _, secret := range []string{ud.Token, strings.Split(key, "\n")[4]} {
		if len(secret) < 20 {
			t.Fatalf("a secret of %d characters is none", len(secret))
		}
		for name, text := range map[string]string{
			"the Cell resource": s.Kubectl("get", "cells", m.cell.Name, "-o", "json"),
			"the pod":           s.Kubectl("get", "pod", "a", "-o", "json"),
			"its events":        s.Kubectl("get", "events", "-o", "json"),
			"Kip's log":         read(t, filepath.Join(world.State, "kip.log")),
			"the console":       read(t, filepath.Join(world.State, "cloud", "machines", m.cell.Status.InstanceID, "console.log")),
			"an argument":       arguments(t),
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds the token or the key", name)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// arguments are those of every process on this host and its machines.
func arguments(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("list processes: %v", err)
	}
	var all strings.Builder
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil { // or it has ended
			all.Write(append(data, '\n'))
		}
	}
	return all.String()
}

// hears dials a machine's agent as Kip does with an authority, asks for its status,
// and returns how the answer begins.
func (m machine) hears(t *testing.T, authority *pki.Authority) ([]byte, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", m.agentAddress(t).String())
	if err != nil {
		t.Fatalf("the agent cannot be reached, so that it refuses shows nothing: %v", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, // by which Kip asks: see package tunnel
		GetClientCertificate: authority.Client(0).GetClientCertificate, InsecureSkipVerify: true,
	})
	if err := tc.HandshakeContext(t.Context()); err != nil {
		return nil, &handshakeError{err}
	}
	if _, err := tc.Write([]byte("GET " + agentapi.PathStatus + " HTTP/1.1\r\nHost: cell\r\n\r\n")); err != nil {
		return nil, &handshakeError{err}
	}
	answer := make([]byte, 64)
	n, err := tc.Read(answer)
	if err != nil {
		return nil, &handshakeError{err}
	}
	return answer[:n], nil
}

// unmoved proves that a pod still runs, in the container that it had.
func unmoved(s *space, containerID, name string) {
	s.Helper()
	s.Eventually("exec in pod "+name, s.ExecTrue(name))
	after := s.WaitReady(name)
	if c := after.Status.ContainerStatuses[0]; c.ContainerID != containerID || c.RestartCount != 0 {
		s.Errorf("pod %s noticed: it was %s, it is %s", name, containerID, namespace.States(after))
	}
}

// storedAuthorities are the CAs of a Kip that is dead, from a copy of its store.
func storedAuthorities(t *testing.T, controllerID string) pki.Authorities {
	t.Helper()
	dir, err := os.MkdirTemp("", "kip-store-") // short: there will be a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(filepath.Join(world.State, "kip", "etcd"))); err != nil {
		t.Fatal(err)
	}
	st, err := store.OpenEmbedded(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	var stored []byte
	own := st.Within(controllerID + "/")
	if revision, err := own.Get(t.Context(), "ca", &stored); err != nil || revision == 0 {
		t.Fatalf("the store has no CA at revision %d: %v", revision, err)
	}
	// Nor is a token kept that is spent.
	bound := 0
	if err := own.List(t.Context(), "cells/", func(key string, data []byte, _ int64) error {
		var cell struct{ Phase, Token, KeyHash string }
		if err := json.Unmarshal(data, &cell); err != nil {
			return err
		}
		if cell.Phase == string(apiv1.Bound) {
			bound++
			if cell.Token != "" || cell.KeyHash == "" {
				t.Errorf("%s is bound; it has a token: %t, the hash of its key: %t", key, cell.Token != "", cell.KeyHash != "")
			}
		}
		return nil
	}); err != nil || bound == 0 {
		t.Fatalf("the store has %d bound cells: %v", bound, err)
	}
	authorities, err := pki.DecodeAuthorities(stored, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return authorities
}
