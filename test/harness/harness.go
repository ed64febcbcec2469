// Package harness starts Kip with its control plane on this machine, for tests
// and benchmarks, and removes it all at the end. It runs what `make build` built,
// as processes; it links nothing of them.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/test/network"
)

// Node is the virtual node's name.
const Node = "kip-0"

// patience bounds each step; a step that needs longer has failed.
const patience = 5 * time.Minute

// World is a cluster with one Kip on local cells.
type World struct {
	State         string // the state folder
	Bin           string
	Kubeconfig    string // of the administrator
	KipKubeconfig string // of Kip's service account
	Socket        string // Kip's local socket
	Bridge        string

	// Patience is that of Options.
	Patience time.Duration

	// Ready is what kip-dev said when it was ready, by name.
	Ready map[string]string

	Config, KipConfig *rest.Config
	Admin             kubernetes.Interface
	Dynamic           dynamic.Interface

	dev    *child.Process
	log    string
	cidr   netip.Prefix
	races  string   // what the names of the files begin with that tell of data races
	kipRun exec.Cmd // how its Kip is run: path, arguments and environment
	before []string // what was on the machine when no pod was

	mu   sync.Mutex
	kips []*Kip // those that RunKip ran

	hadMachine, hadDisk atomic.Bool // see SawMachine

	auditLog string
	rights   Rights
	audited  atomic.Bool // see WithinItsRights
}

// Options of a world. Worlds with different names, bridges and networks can run
// side by side, also beside `make run`.
type Options struct {
	Name string // of the bridge, and of the state folder
	CIDR string
	// Network is one that Claim claimed, in place of Name and CIDR.
	Network *network.Network
	Stderr  io.Writer
	// DevArgs are further arguments of kip-dev.
	DevArgs []string
	// KipArgs are further arguments of Kip.
	KipArgs []string
	// AuditLog is a file for who asked the API server for what. Optional. Main fails if Kip was refused anything, and removes
	// the file else.
	AuditLog string
	// Rights are those of the Kip in AuditLog; of deploy/manifests/rights when unset.
	Rights Rights
	// Nodes is how many ordinary nodes there are beside the virtual one: node-1…
	Nodes int
	// ClusterOnly starts no Kip.
	ClusterOnly bool
	// EKS is ClusterOnly with an ordinary node, and with a model of EC2 in which the cluster is one of Amazon EKS and the account has
	// nothing else. World.Ready has its URLs. A test installs Kip, from the image that was built, and before it removes Kip it asks for
	// WithinItsRights: the rights may go before Kip does.
	EKS bool
	// Installed has Kip installed by its chart, as a pod of node-1, with a model of EC2. Its pod is no process that the world
	// kills, starts or looks at.
	Installed bool
	// Fsync lets the cluster's etcd wait for the disk, as outside tests.
	Fsync bool
	// Patience is how long a step of a test may take, where that is longer than usual:
	// emulated machines boot slowly.
	Patience time.Duration
	// Race runs bin/race/kip, a Kip that tells of data races and can open cloud.sim. See Races.
	Race bool
	// Sim runs bin/sim/kip, a Kip that can open cloud.sim.
	Sim bool
}

// Sleep waits for so long, or returns ctx's error when that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Start brings a world up. Its state is under .kip/ in the repository's folder.
func Start(ctx context.Context, o Options) (_ *World, err error) {
	root, err := Repository()
	if err != nil {
		return nil, err
	}
	w := &World{
		State:    filepath.Join(root, ".kip", o.Name),
		Bin:      filepath.Join(root, "bin"),
		Bridge:   o.Name,
		Patience: o.Patience,
		auditLog: o.AuditLog,
		rights:   o.Rights,
	}
	if n := o.Network; n != nil {
		w.State, w.Bridge, w.cidr = n.State, n.Bridge, n.CIDR
	} else if w.cidr, err = netip.ParsePrefix(o.CIDR); err != nil {
		return nil, err
	}
	w.Kubeconfig, w.KipKubeconfig = filepath.Join(w.State, "kubeconfig"), filepath.Join(w.State, "kip.kubeconfig")
	w.Socket = filepath.Join(w.State, "kip", "kip.sock")
	ready := w.State + ".ready"
	w.log, w.races = w.State+".log", w.State+".race"
	if err := w.forget(ready); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Stderr, "starting a control plane and Kip on bridge %s; log: %s\n", w.Bridge, w.log)
	if w.dev, err = child.Start(w.devSpec(root, ready, o)); err != nil {
		return nil, fmt.Errorf("start kip-dev (is everything built? `make build`): %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Stop())
		}
	}()
	if err := w.wait(ctx, "kip-dev is ready", func(context.Context) (bool, error) {
		_, err := os.Stat(ready)
		return err == nil, nil
	}); err != nil {
		return nil, err
	}
	if err := w.connect(o); err != nil {
		return nil, err
	}
	if w.Ready, err = readReady(ready); err != nil {
		return nil, err
	}
	if o.ClusterOnly || o.EKS {
		w.before, err = w.onMachine(ctx)
		return w, err
	}
	if !o.Installed {
		if w.kipRun, err = w.kipCommand(); err != nil {
			return nil, err
		}
	}
	if err := w.NodeReady(ctx); err != nil {
		return nil, err
	}
	w.before, err = w.onMachine(ctx)
	return w, err
}

// readReady reads the line of a file that kip-dev made when it was ready.
func readReady(file string) (map[string]string, error) {
	line, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what kip-dev says when it is ready: %w", err)
	}
	said := map[string]string{}
	for word := range strings.FieldsSeq(string(line)) {
		if name, value, is := strings.Cut(word, "="); is {
			said[name] = value
		}
	}
	return said, nil
}

// forget removes what an earlier world of the name has told: its log, its races, and that it
// was ready.
func (w *World) forget(ready string) error {
	if err := os.MkdirAll(filepath.Dir(w.State), 0o755); err != nil {
		return err
	}
	for _, file := range []string{ready, w.log} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return w.forgetRaces()
}

// devSpec is how kip-dev is run, which makes the file ready when all is up.
func (w *World) devSpec(root, ready string, o Options) child.Spec {
	dev := child.Spec{
		Path:    filepath.Join(w.Bin, "kip-dev"),
		LogFile: w.log,
		// A test that panics or is killed must not leave a control plane behind.
		Death: syscall.SIGTERM,
		Args: []string{"up", "--state", w.State, "--cell-root", filepath.Join(root, ".kip", "cell-root"),
			"--bridge", w.Bridge, "--cidr", w.cidr.String(), "--verbose", "--ready-file", ready,
			"--masquerade=false"}, // what tests send stays on the bridge
	}
	if o.Installed || o.EKS {
		o.Nodes = max(o.Nodes, 1)
		dev.Args = append(dev.Args, "--cloud", "aws", "--images", filepath.Join(w.Bin, "images", "kip"))
	}
	if o.Installed {
		dev.Args = append(dev.Args, "--chart", filepath.Join(root, "deploy", "helm", "kip"))
	}
	if o.EKS {
		o.ClusterOnly = true
		dev.Args = append(dev.Args, "--eks")
	}
	if o.Nodes > 0 {
		dev.Args = append(dev.Args, "--nodes", strconv.Itoa(o.Nodes))
	}
	if o.ClusterOnly {
		dev.Args[0] = "cluster"
	}
	if !o.Fsync {
		dev.Args = append(dev.Args, "--no-fsync")
	}
	if o.Race {
		dev.Args = append(dev.Args, "--kip", filepath.Join(w.Bin, "race", "kip"))
		// Its end is not held up: a race is told of when it is seen.
		dev.Env = []string{"GORACE=atexit_sleep_ms=0 log_path=" + w.races}
	}
	if o.Sim {
		dev.Args = append(dev.Args, "--kip", filepath.Join(w.Bin, "sim", "kip"))
	}
	dev.Args = append(dev.Args, o.DevArgs...)
	for _, arg := range o.KipArgs {
		dev.Args = append(dev.Args, "--kip-arg", arg)
	}
	if o.AuditLog != "" {
		dev.Args = append(dev.Args, "--audit-log", o.AuditLog)
	}
	return dev
}

// connect makes the clients of the cluster.
func (w *World) connect(o Options) (err error) {
	if w.Config, err = clientcmd.BuildConfigFromFlags("", w.Kubeconfig); err != nil {
		return err
	}
	w.Config.QPS, w.Config.Burst = 500, 1000
	if !o.Installed && !o.EKS {
		if w.KipConfig, err = clientcmd.BuildConfigFromFlags("", w.KipKubeconfig); err != nil {
			return err
		}
	}
	if w.Admin, err = kubernetes.NewForConfig(w.Config); err != nil {
		return err
	}
	w.Dynamic, err = dynamic.NewForConfig(w.Config)
	return err
}

// Ended is closed when the control plane has ended, for whatever reason. It is nil
// for a World that was not started.
func (w *World) Ended() <-chan struct{} {
	if w.dev == nil {
		return nil
	}
	return w.dev.Done()
}

// ClusterPID is the process of the control plane.
func (w *World) ClusterPID() int { return w.dev.PID() }

// Repository is the folder with go.mod, from the folder that a test runs in.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("there is no go.mod above the working folder")
		}
	}
}

func (w *World) wait(ctx context.Context, what string, check func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, max(patience, w.Patience), true, func(ctx context.Context) (bool, error) {
		select {
		case <-w.dev.Done():
			return false, fmt.Errorf("kip-dev ended: %v", w.dev.Err())
		default:
		}
		return check(ctx)
	})
	if err != nil {
		return fmt.Errorf("wait until %s: %w; the end of %s:\n%s", what, err, w.log, tail(w.log))
	}
	return nil
}

func tail(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return data[max(0, len(data)-4000):]
}

// NodeReady waits until the virtual node is Ready.
func (w *World) NodeReady(ctx context.Context) error {
	return w.wait(ctx, "node "+Node+" is Ready", func(ctx context.Context) (bool, error) {
		node, err := w.Admin.CoreV1().Nodes().Get(ctx, Node, metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue, nil
			}
		}
		return false, nil
	})
}

// KipPID is the process of the Kip that runs; 0 when none does.
func (w *World) KipPID() (int, error) {
	data, err := os.ReadFile(filepath.Join(w.State, "kip.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var record struct{ PID int }
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&record); err != nil {
		return 0, fmt.Errorf("read kip.json: %w", err)
	}
	if syscall.Kill(record.PID, 0) != nil {
		return 0, nil
	}
	return record.PID, nil
}

// KillKip ends Kip with SIGKILL and waits until it is gone.
func (w *World) KillKip(ctx context.Context) error {
	if err := w.dev.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	return w.wait(ctx, "Kip is dead", func(context.Context) (bool, error) {
		pid, err := w.KipPID()
		return pid == 0, err
	})
}

// StartKip starts Kip again and waits until it answers.
func (w *World) StartKip(ctx context.Context) error {
	if err := w.dev.Signal(syscall.SIGUSR2); err != nil {
		return err
	}
	return w.wait(ctx, "Kip answers", func(ctx context.Context) (bool, error) {
		if pid, err := w.KipPID(); pid == 0 {
			return false, err
		}
		return exec.CommandContext(ctx, w.Tool("kipctl"), "version", "--socket", w.Socket).Run() == nil, nil
	})
}

// Reconfigure starts Kip again with a changed provider.yaml, and returns what
// puts the old one back.
func (w *World) Reconfigure(ctx context.Context, change func(provider map[string]any)) (restore func(context.Context) error, err error) {
	path := filepath.Join(w.State, "provider.yaml")
	before, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	provider := map[string]any{}
	if err := yaml.Unmarshal(before, &provider); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	change(provider)
	after, err := yaml.Marshal(provider)
	if err != nil {
		return nil, err
	}
	restart := func(ctx context.Context, config []byte) error {
		if err := w.KillKip(ctx); err != nil {
			return err
		}
		if err := os.WriteFile(path, config, 0o600); err != nil {
			return err
		}
		return w.StartKip(ctx)
	}
	return func(ctx context.Context) error { return restart(ctx, before) }, restart(ctx, after)
}

// Tool is the path of a program that was built.
func (w *World) Tool(name string) string { return filepath.Join(w.Bin, name) }

// Kubectl is a kubectl command of the same release as the control plane.
func (w *World) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, w.Tool("kip-dev"), append([]string{"kubectl", "--kubeconfig", w.Kubeconfig}, args...)...)
}

// Stop ends everything and says what was left behind.
func (w *World) Stop() error {
	if err := w.dev.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-w.dev.Done():
		if err := w.dev.Err(); err != nil {
			return fmt.Errorf("kip-dev ended with %w; the end of %s:\n%s", err, w.log, tail(w.log))
		}
		return nil
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("kip-dev did not end within %s; the end of %s:\n%s", patience, w.log, tail(w.log)), w.dev.Kill())
	}
}
