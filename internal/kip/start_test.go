package kip

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/test/loopback"
)

var silent = slog.New(slog.DiscardHandler)

func TestTheLastAnswerOfAnAPIServerThatIsAwayHolds(t *testing.T) {
	away := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "kube-system", errors.New("no"))
	for name, tc := range map[string]struct {
		stored, answer string
		fails          error
		want           string
		wantErr        error
	}{
		"the first start":                    {answer: "a", want: "a"},
		"the first start, while it is away":  {fails: away, wantErr: away},
		"a later start":                      {stored: "a", answer: "a", want: "a"},
		"a later start, while it is away":    {stored: "a", fails: away, want: "a"},
		"another answer than before":         {stored: "a", answer: "b", want: "b"},
		"a refusal, which is an answer":      {stored: "a", fails: forbidden, wantErr: forbidden},
		"an overloaded one, which is as one": {stored: "a", fails: apierrors.NewServiceUnavailable("later"), want: "a"},
	} {
		st := store.Memory(nil)
		if tc.stored != "" {
			if _, err := st.Put(t.Context(), "key", tc.stored, 0); err != nil {
				t.Fatal(err)
			}
		}
		ask := func(context.Context) (string, error) { return tc.answer, tc.fails }
		got, err := remembered(t.Context(), st, "key", silent, ask)
		if !errors.Is(err, tc.wantErr) || err == nil && got != tc.want {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, tc.want, tc.wantErr)
		}
		if err != nil {
			continue
		}
		later, err := remembered(t.Context(), st, "key", silent, func(context.Context) (string, error) { return "", away })
		if err != nil || later != got {
			t.Errorf("%s: the next start, while it is away, goes by %q, %v; want %q", name, later, err, got)
		}
	}
}

// freePort is a port of this process's own address on which nobody listens.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: loopback.Own().AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

const kubeconfigText = `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "SERVER"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
`

// dialSim opens the cloud that is served on the socket of cloud.sim.
func dialSim(_ context.Context, cfg *config.Config, _ clouds.By, _ *slog.Logger) (cloud.Cloud, func() error, error) {
	c := remote.Dial("sim", cfg.Cloud.Sim.Socket)
	return c, c.Close, nil
}

// newProcess returns a process whose API server and cloud are away.
func newProcess(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"provider.yaml": fmt.Sprintf(`apiVersion: v1
kind: serverConfig
cloud: {sim: {socket: %s/away}}
cells: {defaultInstanceType: small}
etcd: {internal: {dataDir: %s}}
`, dir, dir),
		"kubeconfig": strings.ReplaceAll(kubeconfigText, "SERVER", "http://"+loopback.Refused(t).String()),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, _, err := config.Load(filepath.Join(dir, "provider.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	k := &process{
		Options: Options{
			Clouds:        append(clouds.Shipped(), clouds.Driver{Name: "sim", Open: dialSim}),
			Kubeconfig:    filepath.Join(dir, "kubeconfig"),
			NodeName:      "kip-0",
			ClusterDomain: "cluster.local",
			NodeIPs:       []netip.Addr{loopback.Own()},
			KubeletPort:   freePort(t),
			Log:           silent,
		},
		cfg:   cfg,
		clock: clock.RealClock{},
		role:  &role{},
	}
	k.watchdog = watchdog.New(k.clock, silent)
	k.metrics = metrics.New(metrics.Config{Clock: k.clock, Log: silent})
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	if k.api, err = connect(k.Options, unmeasured); err != nil {
		t.Fatal(err)
	}
	return k
}

// gzipped is a text as the store has a catalogue.
func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestKipTakesUpItsCellsWithoutTheAPIServerAndTheCloud(t *testing.T) {
	k, st := newProcess(t), store.Memory(nil)
	k.store = st
	if _, err := identify(t.Context(), k.cfg, k.Options, k.api, st); err == nil {
		t.Fatal("a Kip that has never seen its cluster knows which it is")
	}
	// What a Kip leaves that has run with both.
	agent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	machine := netip.MustParseAddr("127.77.0.1")
	k.dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		if addr != netip.AddrPortFrom(machine, agentapi.Port) {
			t.Errorf("Kip dials %s", addr)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", agent.Addr().String())
	}
	pod := apiv1.PodReference{Namespace: "default", Name: "pod", UID: "uid"}
	for key, record := range map[string]any{
		dnsKey: []netip.Addr{netip.MustParseAddr("10.0.0.10")},
		"catalogue": map[string]any{"cloud": "sim", "packed": gzipped(t, `[{"Name": "small", "MilliCPU": 1000, "MemoryBytes": 1073741824,
			"Arch": "amd64", "Offerings": [{"Zone": "a", "PricePerHour": 1}]}]`)},
		"cells/cell-a": cells.Cell{
			ID: "cell-a", Pod: pod, Phase: apiv1.Bound, Credentials: cells.Credentials{KeyHash: "spent"},
			Offerings: []offering.Offering{{InstanceType: "small", Zone: "a"}},
			Instance:  &cloud.Instance{ID: "i-a", Zone: "a", State: cloud.Running, ManagementIP: machine, PodIP: machine},
		},
	} {
		if _, err := st.Put(t.Context(), key, record, 0); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.lead(ctx, st) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the work ended with: %v", err)
		}
	}()
	dialled := make(chan error, 1)
	go func() {
		conn, err := agent.Accept()
		if err == nil {
			err = conn.Close()
		}
		dialled <- err
	}()
	select {
	case err := <-ended:
		ended <- err
		t.Fatalf("Kip does not start: %v", err)
	case err := <-dialled:
		if err != nil {
			t.Fatal(err)
		}
	}
	l := k.role.leading.Load()
	if cell, has := l.cells.controller.ForPod(pod.UID); !has || cell.Phase != apiv1.Bound {
		t.Errorf("the pod's cell is %+v", cell)
	}
	if err := l.podsListed(); err == nil {
		t.Error("Kip says that it knows its pods")
	}
	if got := l.cluster.logs.SaveLogs(deadlineGone(t), cells.Cell{Pod: pod}, nil); !errors.Is(got, nodes.ErrNotListed) {
		t.Errorf("the logs of a pod that may exist: %v", got)
	}
	fetch := func(context.Context, string, bool) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("a line")), nil
	}
	if err := l.cluster.logs.saver.Save(t.Context(), "default", "pod", pod.UID, []string{"main"}, fetch); err != nil {
		t.Fatal(err)
	}
	if err := l.cluster.logs.sweep(deadlineGone(t), k.clock); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(k.cfg.Etcd.Internal.DataDir, "podlogs", string(pod.UID))); err != nil {
		t.Errorf("the saved logs of a pod that may exist: %v", err)
	}
	if chosen, err := l.nodes.all.Choose(t.Context(), &corev1.Pod{}, ""); err != nil || len(chosen.Offerings) == 0 {
		t.Errorf("by the stored catalogue a pod can have %v, %v", chosen.Offerings, err)
	}
}

// deadlineGone is a context that has ended.
func deadlineGone(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
