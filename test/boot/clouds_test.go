//go:build e2e

package boot

import (
	"encoding/base64"
	"encoding/xml"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/willscott/go-nfs"
	nfshelper "github.com/willscott/go-nfs/helpers"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/test/tier"
)

// services answers as the metadata services of Google Cloud and Azure do.
type services struct {
	userData string
	ready    chan string // what Azure is told
	// early counts down the questions to Azure that come before its services are ready.
	early *atomic.Int32
}

func (s services) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	google, azure, wire := r.Header.Get("Metadata-Flavor") == "Google", r.Header.Get("Metadata") == "true", r.Header.Get("X-Ms-Version") != ""
	at := r.Method + " " + r.Host + r.URL.Path
	switch {
	// As cloud-init's list of answers has it (retry_codes in cloudinit/sources/azure/imds.py).
	case azure && s.early.Add(-1) >= 0:
		w.WriteHeader(http.StatusGone)
	case google && at == "GET 169.254.169.254/computeMetadata/v1/instance/attributes/user-data":
		_, _ = io.WriteString(w, s.userData)
	case google && at == "GET 169.254.169.254/computeMetadata/v1/instance/hostname":
		_, _ = io.WriteString(w, "cell.c.project.internal")
	case azure && at == "GET 169.254.169.254/metadata/instance/compute/userData":
		_, _ = io.WriteString(w, base64.StdEncoding.EncodeToString([]byte(s.userData)))
	case azure && at == "GET 169.254.169.254/metadata/instance/compute/name":
		_, _ = io.WriteString(w, "cell")
	case wire && at == "GET 168.63.129.16/machine/" && r.URL.Query().Get("comp") == "goalstate":
		_, _ = io.WriteString(w, `<GoalState><Incarnation>1</Incarnation><Container><ContainerId>c</ContainerId>
			<RoleInstanceList><RoleInstance><InstanceId>i</InstanceId></RoleInstance></RoleInstanceList></Container></GoalState>`)
	case wire && at == "POST 168.63.129.16/machine/" && r.URL.Query().Get("comp") == "health":
		var health struct {
			State string `xml:"Container>RoleInstanceList>Role>Health>State"`
		}
		_ = xml.NewDecoder(r.Body).Decode(&health) // what it is not is no Ready
		select {
		case s.ready <- health.State:
		default:
		}
	default:
		http.NotFound(w, r)
	}
}

// inside are commands on the machine that tell the console of it, and then end it as a hypervisor's
// order to the kernel does (Xen's, Hyper-V's).
const inside = `runcmd:
- |
  exec >/dev/console 2>&1
  for n in 1 2 3 4 5 6 7 8 9 10; do [ ! -b /dev/sr0 ] || break; sleep 1; done
  [ ! -b /dev/sr0 ] || echo "its late drive is there"
  cd /var/lib
  echo "its name is $(hostname)"
  cd /proc/sys
  echo "its limits are $(ulimit -Sn) $(ulimit -Hn) $(cat vm/max_map_count net/ipv4/neigh/default/gc_thresh3 | tr '\n' ' ')"
  cd /var/lib
  truncate -s 320M disk && mkfs.xfs -q disk && mkdir xfs && mount -t xfs -o loop disk xfs
  grep " /var/lib/xfs " /proc/mounts
  mkdir nfs && mount -t nfs -o nfsvers=3,nolock,port=2049,mountport=2049,mountproto=tcp 168.0.0.4:/ nfs
  cat nfs/here && echo "from the machine" >nfs/there
  /sbin/poweroff
`

// serveNFS serves a folder by NFS 3 until the test ends, at a port of loopback.
func serveNFS(t *testing.T) (export, port string) {
	t.Helper()
	export = t.TempDir()
	if err := os.WriteFile(filepath.Join(export, "here"), []byte("from the server\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const handles = 64
	served := make(chan error, 1)
	go func() {
		served <- nfs.Serve(l, nfshelper.NewCachingHandler(nfshelper.NewNullAuthHandler(osfs.New(export)), handles))
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return export, port
}

// TestAMachineIsToldByTheCloudThatItsFirmwareNames boots on the root disks of clouds and of other
// hypervisors, at addresses of the clouds. Each machine ends in a way of its own.
func TestAMachineIsToldByTheCloudThatItsFirmwareNames(t *testing.T) {
	tier.All(t)
	for _, tc := range []struct {
		name, firmware, root string
		says                 []string
		reports, mounts      bool
		end                  func(k *kip, m machine)
	}{
		{
			name:     "Google Cloud",
			firmware: "type=1,manufacturer=Google,product=Google Compute Engine",
			root:     vm.SCSI,
			says:     []string{"user data of Google Cloud's metadata service (", "the agent begins"},
			mounts:   true,
			end: func(k *kip, m machine) {
				// A device of which nothing had been there when the drivers were loaded.
				m.do("device_add", map[string]any{"driver": "scsi-cd", "id": "late", "bus": vm.DisksBus})
				k.runs(m, inside)
				for _, want := range []string{
					"its late drive is there", "its name is cell.c.project.internal", "its limits are 65536 1048576 524288 16384",
					" /var/lib/xfs xfs rw", "from the server", "this machine ends: terminated signal received",
				} {
					m.says(want)
				}
			},
		},
		{
			name:     "Azure",
			firmware: "type=3,asset=7783-7084-3265-9085-8832-2578-42",
			root:     vm.SATA,
			says:     []string{"user data of Azure's metadata service (", "the agent begins"},
			reports:  true,
			end: func(_ *kip, m machine) {
				key := func(name string) map[string]any { return map[string]any{"type": "qcode", "data": name} }
				m.do("send-key", map[string]any{"keys": []any{key("ctrl"), key("alt"), key("delete")}})
				m.says("this machine ends: interrupt signal received")
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			k := newKip(t)
			s := services{userData: k.userData(), ready: make(chan string, 1), early: &atomic.Int32{}}
			s.early.Store(2)
			server := httptest.NewServer(s)
			t.Cleanup(server.Close)
			_, port, err := net.SplitHostPort(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			what := describe(t, newDisk(t), "", false)
			// A network that has the services of both; each connection there is a process that leads to the test.
			lead := "-cmd:busybox nc 127.0.0.1 " + port
			export, nfsPort := serveNFS(t)
			what.Card = &vm.Card{User: strings.Join([]string{
				"restrict=on", "net=168.0.0.0/7", "host=168.0.0.2", "dns=168.0.0.3", "dhcpstart=168.0.0.15",
				"guestfwd=tcp:169.254.169.254:80" + lead, "guestfwd=tcp:168.63.129.16:80" + lead,
				"guestfwd=tcp:168.0.0.4:2049-cmd:busybox nc 127.0.0.1 " + nfsPort,
			}, ",")}
			what.Root, what.More = tc.root, []string{"-smbios", tc.firmware}
			m := run(t, what)
			for _, want := range tc.says {
				m.says(want)
			}
			if tc.reports {
				select {
				case state := <-s.ready:
					if state != "Ready" {
						t.Errorf("Azure is told %q", state)
					}
				case <-within(t).Done():
					t.Fatalf("Azure is not told that the machine works:\n%s", m.Console())
				}
			}
			tc.end(k, m)
			m.ends()
			m.says("power off")
			if tc.mounts {
				if got, err := os.ReadFile(filepath.Join(export, "there")); err != nil || string(got) != "from the machine\n" {
					t.Errorf("the machine wrote %q (%v) by NFS", got, err)
				}
			}
		})
	}
}
