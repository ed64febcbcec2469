package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// clusterWithPort is testCluster, whose node kip-0 has a kubelet port that serves with a certificate of the cluster's CA.
func clusterWithPort(t *testing.T, handler http.HandlerFunc) *cluster {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.StartTLS()
	t.Cleanup(s.Close)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	c := testCluster(t)
	node, err := c.kube.CoreV1().Nodes().Get(t.Context(), "kip-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels[apiv1.LabelController] = "id"
	if node, err = c.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "kip-0"}, {Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(n)
	if _, err := c.kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c.config = &rest.Config{Host: "https://api.example", BearerToken: "mine", TLSClientConfig: rest.TLSClientConfig{
		CAData:     ca,
		ServerName: "api.example",
	}}
	return c
}

// runWith is run with an input.
func runWith(t *testing.T, c *cluster, in io.Reader, args ...string) (out, errs string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	k := &kipctl{in: in, out: &stdout, err: &stderr, connect: func(clientcmd.ClientConfig) (*cluster, error) { return c, nil }}
	root := newRoot(k, "kipctl")
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// machine is a port that runs the command "upper", which prints its input in capitals, and nothing else.
func machine(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Authorization") != "Bearer mine":
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	case r.Method+r.URL.Path == "GET/cells/c-web/logs/kubelet":
		fmt.Fprintf(w, "kubelet %s\nclear\x1b[2J\n", r.URL.Query().Get("tail"))
	case r.Method+r.URL.Path == "GET/cells/c-web/logs/agent":
		http.Error(w, "this machine has no log of agent", http.StatusNotFound)
	case r.Method+r.URL.Path != "POST/cells/c-web/exec" || r.URL.Query()["command"][0] != "upper":
		http.Error(w, `user "me" may not do that`, http.StatusForbidden)
	default:
		conn, in, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", agentapi.ExecProtocol)
		upper(agentapi.NewFrames(conn), in.Reader)
	}
}

func upper(frames *agentapi.Frames, in *bufio.Reader) {
	buf := make([]byte, agentapi.MaxFrame)
	for n := 0; ; {
		kind, p, err := agentapi.ReadFrame(in, buf)
		if err != nil {
			return
		}
		n += len(p)
		if kind == agentapi.FrameStdin && len(p) > 0 {
			_ = frames.Send(agentapi.FrameStdout, bytes.ToUpper(p))
			continue
		}
		_ = frames.Send(agentapi.FrameStderr, fmt.Appendf(nil, "%d bytes\n", n))
		_ = frames.SendExit(7)
	}
}

func TestACommandOnAMachineIsRunWithTheUsersCredentials(t *testing.T) {
	c := clusterWithPort(t, machine)
	long := strings.Repeat("word ", 20_000)
	out, errs, err := runWith(t, c, strings.NewReader(long), "exec", "c-web", "--", "upper", "-x")
	var exit *exitError
	if !asExit(err, &exit) || exit.status != 7 || out != strings.ToUpper(long) || errs != fmt.Sprintf("%d bytes\n", len(long)) {
		t.Errorf("%v, %d bytes, %q", err, len(out), errs)
	}
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"what may not be": {[]string{"exec", "c-web", "--", "lower"}, `403 Forbidden: user "me" may not do that`},
		"no cell":         {[]string{"exec", "none"}, `cell "none" not found`},
		"no name":         {[]string{"exec"}, "name one cell"},
		"as JSON":         {[]string{"exec", "c-web", "-o", "json", "--", "upper"}, "not for it"},
	} {
		out, _, err := runWith(t, c, strings.NewReader(""), tc.args...)
		if err == nil || !strings.Contains(err.Error(), tc.says) || out != "" {
			t.Errorf("%s: %q, %v; want %q", name, out, err, tc.says)
		}
	}
	// Nobody else is given them.
	c.config.CAData = nil
	if _, _, err := runWith(t, c, strings.NewReader(""), "exec", "c-web", "--", "upper"); err == nil || !strings.Contains(err.Error(),
		"--kip-ca") {
		t.Errorf("a port that the cluster's CA does not know: %v", err)
	}
	if out, _, err := runWith(t, c, strings.NewReader("x"), "exec", "c-web", "--insecure-skip-tls-verify", "--", "upper"); out != "X" {
		t.Errorf("the same where the user wants that: %q, %v", out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k := &kipctl{in: strings.NewReader(""), out: io.Discard, err: io.Discard,
		connect: func(clientcmd.ClientConfig) (*cluster, error) { return c, nil }}
	root := newRoot(k, "kipctl")
	root.SetArgs([]string{"exec", "c-web"})
	if err := root.ExecuteContext(ctx); err == nil {
		t.Error("it runs on though its user has gone")
	}
}

// Whoever may write a Cell, or is root on a machine, would have them else.
func TestOnlyAVirtualNodeOfTheCellsKipIsGivenCredentials(t *testing.T) {
	for name, label := range map[string]string{"a machine": "", "the node of another Kip": "other"} {
		asked := false
		c := clusterWithPort(t, func(http.ResponseWriter, *http.Request) { asked = true })
		node, err := c.kube.CoreV1().Nodes().Get(t.Context(), "kip-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if node.Labels[apiv1.LabelController] = label; label == "" {
			delete(node.Labels, apiv1.LabelController)
		}
		if _, err := c.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"exec", "logs"} {
			if _, _, err := runWith(t, c, strings.NewReader(""), command, "c-web"); err == nil || asked || !strings.Contains(err.Error(),
				"is no virtual node of the Kip that has the cell") {
				t.Errorf("%s, %s: asked %t, %v", command, name, asked, err)
			}
		}
	}
}

func asExit(err error, exit **exitError) bool {
	e, is := err.(*exitError)
	*exit = e
	return is
}

func TestLogsOfAMachineAreShownAsText(t *testing.T) {
	c := clusterWithPort(t, machine)
	out, errs, err := runWith(t, c, nil, "logs", "c-web", "--tail", "5")
	if err == nil || !strings.Contains(errs, "this machine has no log of agent") || out != "==> kubelet <==\nkubelet 5\nclear?[2J\n" {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	if out, _, err := runWith(t, c, nil, "logs", "cell/c-web", "-l", "kubelet", "-o", "json"); err != nil ||
		!strings.Contains(out, `"clear\u001b[2J"`) {
		t.Errorf("%s, %v", out, err)
	}
	_, _, err = runWith(t, c, nil, "logs", "c-web", "-l", "other")
	if err == nil || !strings.Contains(err.Error(), "must be one of agent") {
		t.Errorf("a log that there is not: %v", err)
	}
}

func TestACellIsDescribed(t *testing.T) {
	r := run(t, testCluster(t), "describe", "c-boots-2")
	for _, want := range []string{"Cell:", "c-boots-2", "Booting", "default/boots", "c5.large, us-east-1a, $0.085/h, i-2", "Attempt:",
		"Steps:",
		"launched", "Boot, since", "Events:", "no capacity for t3.nano"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("it lacks %q:\n%s", want, r.out)
		}
	}
	if r.failed != nil || r.err != "" {
		t.Errorf("%v, %q", r.failed, r.err)
	}
	if r := run(t, testCluster(t), "describe", "pod/web"); r.failed != nil || !strings.Contains(r.out, "c-web") {
		t.Errorf("a pod: %v\n%s", r.failed, r.out)
	}
	if r := run(t, testCluster(t), "describe", "none"); r.failed == nil {
		t.Error("a cell that there is not")
	}
}
