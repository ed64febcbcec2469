package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	karpenterapis "sigs.k8s.io/karpenter/pkg/apis"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodeheartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/yaml"
)

var (
	//go:embed instance-types.json
	instanceTypes []byte
	//go:embed nodepool.yaml
	nodePool []byte
	//go:embed kwok.yaml
	kwokConfiguration string
)

// patience bounds the start and the end of a program.
const patience = time.Minute

var (
	nodeClaims  = schema.GroupVersionResource{Group: karpenterapis.Group, Version: "v1", Resource: "nodeclaims"}
	nodePools   = schema.GroupVersionResource{Group: karpenterapis.Group, Version: "v1", Resource: "nodepools"}
	nodeClasses = schema.GroupVersionResource{Group: kwokapis.Group, Version: "v1alpha1", Resource: "kwoknodeclasses"}
)

// registered selects the nodes that Karpenter made and has seen join.
var registered = metav1.ListOptions{LabelSelector: karpenterv1.NodeRegisteredLabelKey + "=true"}

// karpenter is Karpenter with its kwok provider, which makes nodes instead of
// machines, and kwok, which is their kubelets.
type karpenter struct {
	*cluster
	options
	fail context.CancelCauseFunc // ends the measurement

	dir      string // for files and logs
	programs []*program
	crds     []string // that this made
	mayClean bool     // the cluster was empty: all nodes in it are Karpenter's
}

// program is one that runs.
type program struct {
	name, log string
	cmd       *exec.Cmd
	stopping  chan struct{} // closed when it is asked to end
	done      chan struct{} // closed when it has ended
}

func (k *karpenter) start(ctx context.Context) error {
	if !k.beside {
		list, err := k.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("the cluster has %d nodes, such as %s: want one without any", len(list.Items), list.Items[0].Name)
		}
		k.mayClean = true
	}
	var err error
	if k.dir, err = os.MkdirTemp("", "kip-bench-karpenter-"); err != nil {
		return err
	}
	if err := k.install(ctx); err != nil {
		return err
	}
	kwok := []string{kwokConfiguration, nodefast.DefaultNodeInit, nodeheartbeat.DefaultNodeHeartbeatWithLease}
	if k.untilRunning {
		kwok = append(kwok, podfast.DefaultPodReady)
	}
	for file, content := range map[string][]byte{
		"instance-types.json": instanceTypes,
		"kwok.yaml":           []byte(strings.Join(kwok, "\n---\n")),
	} {
		if err := os.WriteFile(filepath.Join(k.dir, file), content, 0o600); err != nil {
			return err
		}
	}
	kwokPort, err := freePort(ctx)
	if err != nil {
		return err
	}
	healthPort, err := freePort(ctx)
	if err != nil {
		return err
	}
	if err := k.run("kwok", k.kwok, nil,
		"--kubeconfig="+k.kubeconfig, "--config="+filepath.Join(k.dir, "kwok.yaml"), fmt.Sprintf("--server-address=127.0.0.1:%d", kwokPort),
	); err != nil {
		return err
	}
	if err := k.run("karpenter", k.options.karpenter, []string{
		"KUBECONFIG=" + k.kubeconfig,
		"INSTANCE_TYPES_FILE_PATH=" + filepath.Join(k.dir, "instance-types.json"),
		"DISABLE_LEADER_ELECTION=true",
		"METRICS_PORT=0", // any; it cannot be bound to an address
		fmt.Sprintf("HEALTH_PROBE_PORT=%d", healthPort),
		fmt.Sprintf("KUBE_CLIENT_QPS=%d", k.clientQPS),
		fmt.Sprintf("KUBE_CLIENT_BURST=%d", k.clientBurst),
		"LOG_LEVEL=error",
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, url := range []string{fmt.Sprintf("http://127.0.0.1:%d/healthz", kwokPort), fmt.Sprintf("http://127.0.0.1:%d/readyz", healthPort)} {
		if err := healthy(ctx, url); err != nil {
			return err
		}
	}
	return k.poolReady(ctx)
}

// install makes Karpenter's kinds and its pool of machines.
func (k *karpenter) install(ctx context.Context) error {
	client, err := apiextensions.NewForConfig(k.config)
	if err != nil {
		return err
	}
	for _, crd := range append(append([]*apiextensionsv1.CustomResourceDefinition{}, karpenterapis.CRDs...), kwokapis.CRDs...) {
		if _, err := client.CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make CustomResourceDefinition %s: %w", crd.Name, err)
		}
		k.crds = append(k.crds, crd.Name)
	}
	if err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		for _, name := range k.crds {
			crd, err := client.CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			established := false
			for _, c := range crd.Status.Conditions {
				established = established || c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			}
			if !established {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		return fmt.Errorf("wait for the CustomResourceDefinitions: %w", err)
	}
	for doc := range bytes.SplitSeq(nodePool, []byte("\n---\n")) {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &u.Object); err != nil {
			return fmt.Errorf("nodepool.yaml: %w", err)
		}
		resource := nodePools
		if u.GetKind() == "KWOKNodeClass" {
			resource = nodeClasses
		}
		// A moment can pass until a new kind is served.
		if err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
			_, err := k.dynamic.Resource(resource).Create(ctx, &u, metav1.CreateOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		}); err != nil {
			return fmt.Errorf("make %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// run starts a program, which must not end by itself.
func (k *karpenter) run(name, path string, env []string, args ...string) error {
	p := &program{
		name:     name,
		log:      filepath.Join(k.dir, name+".log"),
		stopping: make(chan struct{}),
		done:     make(chan struct{}),
	}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Env = append([]string{"HOME=" + k.dir, "PATH=" + os.Getenv("PATH")}, env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Ctrl-C is for this program, which stops them; without it they end too.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	k.programs = append(k.programs, p)
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		select {
		case <-p.stopping:
		default:
			k.fail(fmt.Errorf("%s ended: %w; the end of its log:\n%s", name, errors.Join(err), tail(p.log)))
		}
	}()
	return nil
}

func tail(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return data[max(0, len(data)-4000):]
}

// freePort is a port that is free on loopback, for a program that cannot be
// given one that is open.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func healthy(ctx context.Context, url string) error {
	last := errors.New("never asked")
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			last = err
			return false, nil
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			body, err := io.ReadAll(resp.Body)
			last = errors.Join(fmt.Errorf("%s: %s", resp.Status, body), err)
		}
		return resp.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w (%w)", url, err, last)
	}
	return nil
}

func (k *karpenter) poolReady(ctx context.Context) error {
	var status any
	err := wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		pool, err := k.dynamic.Resource(nodePools).Get(ctx, "bench", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		status = pool.Object["status"]
		conditions, _, err := unstructured.NestedSlice(pool.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("wait for NodePool bench, whose status is %v: %w", status, err)
	}
	return nil
}

func (k *karpenter) processes() map[string]int {
	pids := map[string]int{}
	for _, p := range k.programs {
		pids[p.name] = p.cmd.Process.Pid
	}
	return pids
}

func (k *karpenter) settled(ctx context.Context, nodes []string) error {
	own := map[string]bool{}
	for _, n := range nodes {
		if own[n] {
			return fmt.Errorf("node %s has two of the pods: want one on each, or the figures mean something else", n)
		}
		own[n] = true
	}
	// They were registered before pods could be bound to them: this looks once.
	seen := 0
	err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		list, err := k.client.CoreV1().Nodes().List(ctx, registered)
		if err != nil {
			return false, err
		}
		seen = 0
		for _, n := range list.Items {
			if own[n.Name] {
				seen++
			}
		}
		return seen == len(own), nil
	})
	if err != nil {
		return fmt.Errorf("wait until all nodes are registered (%d of %d are): %w", seen, len(own), err)
	}
	return nil
}

func (k *karpenter) stop(ctx context.Context) error {
	var errs []error
	// Karpenter first: it makes nodes.
	for i := len(k.programs) - 1; i >= 0; i-- {
		errs = append(errs, k.programs[i].stop(ctx))
	}
	if k.dir != "" {
		errs = append(errs, os.RemoveAll(k.dir))
	}
	return errors.Join(errs...)
}

func (p *program) stop(ctx context.Context) error {
	close(p.stopping)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end when it was asked to: killed", p.name)
	}
}

// remove removes what Karpenter and kwok left in a cluster that had no nodes.
// Nobody is left who takes the finalizers away.
func (k *karpenter) remove(ctx context.Context) error {
	if !k.mayClean {
		return nil
	}
	var errs []error
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	resources := []schema.GroupVersionResource{nodes}
	if len(k.crds) > 0 {
		resources = append(resources, nodeClaims, nodePools, nodeClasses)
	}
	for _, r := range resources {
		errs = append(errs, k.removeAll(ctx, r))
	}
	errs = append(errs, k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}))
	client, err := apiextensions.NewForConfig(k.config)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	crds := client.CustomResourceDefinitions()
	for _, name := range k.crds {
		if err := crds.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete CustomResourceDefinition %s: %w", name, err))
			continue
		}
		if err := gone(ctx, func(ctx context.Context) (int, error) {
			_, err := crds.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return 0, nil
			}
			return 1, err
		}); err != nil {
			errs = append(errs, fmt.Errorf("wait for the end of CustomResourceDefinition %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (k *karpenter) removeAll(ctx context.Context, r schema.GroupVersionResource) error {
	client := k.dynamic.Resource(r)
	if err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // its kind was not served yet
		}
		return fmt.Errorf("delete all %s: %w", r.Resource, err)
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s: %w", r.Resource, err)
	}
	for _, item := range list.Items {
		if _, err := client.Patch(ctx, item.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take the finalizers of %s %s away: %w", r.Resource, item.GetName(), err)
		}
	}
	if err := gone(ctx, func(ctx context.Context) (int, error) {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		return len(list.Items), nil
	}); err != nil {
		return fmt.Errorf("wait for the end of all %s: %w", r.Resource, err)
	}
	return nil
}
