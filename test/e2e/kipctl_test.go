//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// kipctl runs kipctl against a Kip's socket, in the test's namespace.
func (s *space) kipctl(socket string, args ...string) (stdout, stderr string, err error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	return namespace.Run(exec.CommandContext(ctx, world.Tool("kipctl"),
		append([]string{"--kubeconfig", world.Kubeconfig, "--socket", socket, "--namespace", s.NS}, args...)...))
}

// tells runs kipctl and returns what it prints.
func (s *space) tells(socket string, args ...string) string {
	s.Helper()
	out, errs, err := s.kipctl(socket, args...)
	if err != nil {
		s.Fatalf("kipctl %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
	}
	return out
}

// row returns the words of a table's row that begins with one.
func row(text, first string) []string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == first {
			return f
		}
	}
	return nil
}

func TestKipctlShowsCellsAndPods(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a") + "---\n" + namespace.Sleeper("b"))
	s.WaitReady("a")
	s.WaitReady("b")
	cell := s.CellOf("a")
	// The mirror of a cell may be a moment late.
	s.Eventually("kipctl get cells shows that pod a runs", func(context.Context) error {
		out := s.tells(world.Socket, "get", "cells")
		if f := row(out, cell.Name); !slices.Contains(f, "Bound") || !slices.Contains(f, s.NS+"/a") || !slices.Contains(f, "small") {
			return fmt.Errorf("the row of cell %s is %q in\n%s", cell.Name, f, out)
		}
		return nil
	})
	if out := s.tells(world.Socket, "get", "cells", cell.Name); row(out, cell.Name) == nil || row(out, s.CellOf("b").Name) != nil {
		t.Errorf("kipctl get cells %s prints\n%s", cell.Name, out)
	}
	if out := s.tells(world.Socket, "get", "pods"); !slices.Contains(row(out, "a"), cell.Name) || row(out, "b") == nil {
		t.Errorf("kipctl get pods prints\n%s", out)
	}
	var pods struct{ Items []corev1.Pod }
	if out := s.tells(world.Socket, "get", "pods", "-o", "json"); json.Unmarshal([]byte(out), &pods) != nil || len(pods.Items) != 2 {
		t.Errorf("kipctl get pods -o json prints\n%s", out)
	}
	if out := s.tells(world.Socket, "why", "a"); !strings.Contains(out, cell.Name) || !strings.Contains(out, "small") {
		t.Errorf("kipctl why a prints\n%s", out)
	}
	for _, wrong := range [][]string{{"get", "cells", "none"}, {"get", "nothing"}, {"why", "nobody"}} {
		if out, errs, err := s.kipctl(world.Socket, wrong...); err == nil || errs == "" {
			t.Errorf("kipctl %s is well: %q, %q", strings.Join(wrong, " "), out, errs)
		}
	}
}

// kubeconfigOf writes a kubeconfig of a service account of the namespace, which a ClusterRole with these rules is bound to.
func (s *space) kubeconfigOf(account string, rules ...rbacv1.PolicyRule) string {
	s.Helper()
	ctx, name := s.Context(), s.NS+"-"+account
	if _, err := world.Admin.CoreV1().ServiceAccounts(s.NS).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}},
		metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	rbac := world.Admin.RbacV1()
	if _, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = rbac.ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	if _, err := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.NS, Name: account}}}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = rbac.ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	token, err := world.Admin.CoreV1().ServiceAccounts(s.NS).CreateToken(ctx, account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	file := filepath.Join(s.TempDir(), account+".kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: world.Config.Host, CertificateAuthorityData: world.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file); err != nil {
		s.Fatal(err)
	}
	return file
}

func TestKipctlTakesWhoMayOntoTheMachineOfACell(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	cell := s.CellOf("a").Name
	kipctl := func(kubeconfig, in string, args ...string) (string, string, error) {
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		defer cancel()
		args = append([]string{"--kubeconfig", kubeconfig, "--socket", world.Socket}, args...)
		cmd := exec.CommandContext(ctx, world.Tool("kipctl"), args...)
		cmd.Stdin = strings.NewReader(in)
		return namespace.Run(cmd)
	}
	// The machine has the kubelet, which no pod sees.
	out, errs, err := kipctl(world.Kubeconfig, "some input", "exec", cell, "--", "sh", "-c",
		"cat; echo; grep -l kubelet /proc/[0-9]*/cmdline 2>/dev/null | wc -l; echo a word >&2; exit 7")
	var exit *exec.ExitError
	if f := strings.Fields(out); len(f) != 3 || f[1] != "input" || f[2] == "0" || errs != "a word\n" || !errors.As(err, &exit) ||
		exit.ExitCode() != 7 {
		t.Errorf("a command on the machine: %q, %q, %v", out, errs, err)
	}
	out, errs, err = kipctl(world.Kubeconfig, "", "logs", cell, "--tail", "2000", "-l", "agent,kubelet,containerd,console")
	for _, want := range []string{"==> agent <==", "itzo starts", "==> kubelet <==", "Started kubelet", "==> containerd <==",
		"==> console <=="} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("the machine's logs have no %q (%v): %s%.2000s", want, err, errs, out)
		}
	}
	if out, errs, err := kipctl(world.Kubeconfig, "", "describe", cell); err != nil || !strings.Contains(out, s.NS+"/a") ||
		!strings.Contains(out, "Steps:") {
		t.Errorf("kipctl describe: %v: %s%s", err, out, errs)
	}

	// Who may do all with the node and read its logs may run nothing there, nor come by the API server's proxy.
	looks := []rbacv1.PolicyRule{
		{APIGroups: []string{"kip.elotl.co"}, Resources: []string{"cells"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/proxy", "nodes/log"}, Verbs: []string{"get", "create"}},
	}
	none := s.kubeconfigOf("none", looks...)
	looker := s.kubeconfigOf("looker", append(looks, rbacv1.PolicyRule{APIGroups: []string{"kip.elotl.co"}, Resources: []string{"cells/log"},
		Verbs: []string{"get"}, ResourceNames: []string{cell}})...)
	if out, errs, err := kipctl(looker, "", "logs", cell, "-l", "agent"); err != nil || !strings.Contains(out, "itzo starts") {
		t.Errorf("who may read the logs: %v: %s%s", err, out, errs)
	}
	for says, c := range map[string]struct {
		kubeconfig string
		args       []string
		want       string
	}{
		"a command of who may read logs": {looker, []string{"exec", cell, "--", "id"}, "may not create cells/exec"},
		"logs of who may not":            {none, []string{"logs", cell, "-l", "agent"}, "may not get cells/log"},
		"a command of who may nothing":   {none, []string{"exec", cell, "--", "id"}, "may not create cells/exec"},
	} {
		if out, errs, err := kipctl(c.kubeconfig, "", c.args...); err == nil || !strings.Contains(errs, c.want) || strings.Contains(out, "uid=") {
			t.Errorf("%s: %v: %s%s", says, err, out, errs)
		}
	}
	path := "/api/v1/nodes/" + harness.Node + "/proxy/cells/" + cell + "/logs/agent"
	if out, _, errs := s.Try("get", "--raw", path); !strings.Contains(errs, "not known behind a proxy") || out != "" {
		t.Errorf("by the API server's proxy: %s%s", out, errs)
	}
	path = "/api/v1/nodes/" + harness.Node + "/proxy/logs/?query=kubelet"
	if out, _, errs := s.Try("get", "--raw", path); !strings.Contains(errs, "kipctl logs CELL") {
		t.Errorf("a query of the node's logs: %s%s", out, errs)
	}
}

// Not parallel: another Kip than the world's serves the node, with a cloud that runs
// out of a type.
func TestKipctlShowsWhatTheCloudIsOutOf(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	killKip(t)
	w, at := serveTo(t, openCloud(t))
	data := filepath.Join(shortDir(t), "data")
	socket := filepath.Join(data, "kip.sock")
	k := runKip(t, func(provider map[string]any) {
		provider["cloud"] = map[string]any{"sim": map[string]any{"socket": at}}
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	})
	s.waitWorks(k, socket)
	asks := func(name string) string {
		return namespace.Bare(name, `  containers:
  - {name: main, image: "busybox:1.36", command: [sleep, "1000"], resources: {requests: {cpu: 400m, memory: 300Mi}}}
`)
	}
	s.Apply(asks("before"))
	s.WaitReady("before")
	first := s.CellOf("before").Status.InstanceType
	if out, errs, err := s.kipctl(socket, "get", "capacity"); err != nil || out != "" || !strings.Contains(errs, "Nothing is known") {
		t.Errorf("before, kipctl get capacity prints %q, %q (%v)", out, errs, err)
	}
	w.runOut(first)
	s.Apply(asks("after"))
	s.WaitEvent("after", "NoCapacity", first)
	s.WaitReady("after")
	if got := s.CellOf("after").Status.InstanceType; got == first {
		t.Errorf("the second pod is on a %s too, of which there is none", got)
	}
	out := s.tells(socket, "get", "capacity")
	if f := row(out, first); len(f) < 6 || f[1] == "all" || !strings.Contains(out, "it is rehearsed") {
		t.Errorf("kipctl get capacity prints\n%s", out)
	}
	s.deleteAll("before", "after")
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Error(err)
	}
}

// Not parallel: it ends the world's Kip, and another loses its store and removes the
// node.
func TestABackupIsRestoredAndACleanupLeavesNothing(t *testing.T) {
	s := newSpace(t)
	killKip(t)
	dir := shortDir(t)
	data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "kip.backup")
	socket := filepath.Join(data, "kip.sock")
	own := func(provider map[string]any) {
		provider["etcd"] = map[string]any{"internal": map[string]any{"dataDir": data}}
	}
	file := providerFile(t, own)
	k := runKip(t, own)
	s.waitWorks(k, socket)
	s.Apply(counting("kept"))
	before := map[string]*corev1.Pod{"kept": s.WaitReady("kept")}
	counted := s.counts("kept", 0)
	s.tells(socket, "backup", "-f", backup)
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup is %v, %v; want a file that nobody else reads", info, err)
	}
	s.Apply(namespace.Sleeper("later"))
	later, stray := s.WaitReady("later"), s.CellOf("later").Status.InstanceID

	restore := func(args ...string) (string, error) {
		out, errs, err := s.kipctl(socket, append([]string{"restore", backup, "--provider-config", file, "--node", harness.Node}, args...)...)
		return out + errs, err
	}
	if text, err := restore(); err == nil {
		t.Fatalf("a backup was restored into the store of a Kip that runs: %s", text)
	}
	signal(t, k, syscall.SIGKILL)
	<-k.Done()
	if text, err := restore(); err == nil || !strings.Contains(text, "--overwrite") {
		t.Fatalf("a store with records was replaced (%v): %s", err, text)
	}
	// The volume is lost.
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backup, whole[:len(whole)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := restore(); err == nil {
		t.Fatalf("a backup that was cut off is restored: %s", text)
	}
	if err := os.WriteFile(backup, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := restore(); err != nil {
		t.Fatalf("restore: %v: %s", err, text)
	}
	k = runKip(t, own)
	k.Forgive(harness.Stray, stray) // the cell of which the backup knows nothing
	// Nothing is swept before a person decides.
	s.Within(namespace.LossPatience, "Kip says that its store is older than an instance", func(context.Context) error {
		if out, errs, err := s.kipctl(socket, "generation"); err != nil || !strings.Contains(out, stray) {
			return fmt.Errorf("kipctl generation: %v: %s%s", err, out, errs)
		}
		return nil
	})
	var shown string
	s.Within(namespace.LossPatience, "a take-over without --yes says what it is to have", func(context.Context) error {
		out, errs, err := s.kipctl(socket, "generation", "take-over")
		_, said, found := strings.Cut(errs, "--yes ")
		shown, _, _ = strings.Cut(said, " ")
		if err == nil || !found {
			return fmt.Errorf("kipctl generation take-over: %v: %s%s", err, out, errs)
		}
		return nil
	})
	s.allUnmoved(before)
	if out, errs, err := s.kipctl(socket, "generation", "take-over", "--yes", shown); err != nil {
		t.Fatalf("take-over: %v: %s%s", err, out, errs)
	}
	s.waitWorks(k, socket)
	s.Within(namespace.LossPatience, "the pod of which the backup knows nothing runs again", func(ctx context.Context) error {
		pod, err := s.Pod(ctx, "later")
		if err == nil && (!namespace.IsReady(pod) || firstContainer(pod).ContainerID == firstContainer(later).ContainerID) {
			err = fmt.Errorf("it is %s", namespace.States(pod))
		}
		return err
	})
	s.Eventually("exec in the pod that the backup has", s.ExecTrue("kept"))
	s.allUnmoved(before)
	s.counts("kept", counted)

	out, errs, err := s.kipctl(socket, "cleanup")
	if err == nil || !strings.Contains(errs, "--yes") {
		t.Errorf("cleanup without --yes: %v: %s", err, errs)
	}
	for _, name := range []string{s.NS + "/kept", s.NS + "/later", s.CellOf("kept").Name, harness.Node} {
		if !strings.Contains(out, name) {
			t.Errorf("cleanup does not name %s:\n%s", name, out)
		}
	}
	s.allUnmoved(before)
	if _, errs, err := s.kipctl(socket, "cleanup", "--yes"); err != nil || !strings.Contains(errs, "Clean") {
		t.Fatalf("cleanup --yes: %v: %s", err, errs)
	}
	for _, name := range []string{"kept", "later"} {
		if _, err := s.Pod(t.Context(), name); !apierrors.IsNotFound(err) {
			t.Errorf("after the cleanup pod %s: %v", name, err)
		}
	}
	if err := s.NoCells(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := machinesOnDisk(); err != nil || len(left) > 0 {
		t.Errorf("after the cleanup instances are left: %v, %v", left, err)
	}
	if _, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the cleanup the node: %v", err)
	}
	if _, errs, err := s.kipctl(socket, "cleanup"); err != nil || !strings.Contains(errs, "nothing to clean up") {
		t.Errorf("a second cleanup: %v: %s", err, errs)
	}
	signal(t, k, syscall.SIGTERM)
	if err := s.waitEnd(k); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a Kip that has ended: %v", err)
	}
	startKip(t)
	if err := world.NodeReady(t.Context()); err != nil {
		t.Error(err)
	}
}
