//go:build e2e

package pods

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/elotl/kip/test/namespace"
)

func TestExecReturnsTheExitCodeAndPassesStreams(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	if out, code, errs := s.Try("exec", "a", "--", "sh", "-c", "echo out; echo err >&2; exit 7"); code != 7 || out != "out\n" ||
		!strings.HasPrefix(errs, "err\n") {
		t.Errorf("exit %d, out %q, err %q; want 7, out, err", code, out, errs)
	}
	cmd := s.Command(t.Context(), "exec", "-i", "a", "--", "md5sum")
	cmd.Stdin = bytes.NewReader(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)) // 1 MiB
	out, errs, err := namespace.Run(cmd)
	if err != nil || out != "14d785daab3823736c981ca82a750c98  -\n" {
		t.Errorf("1 MiB through stdin: %q %q %v", out, errs, err)
	}
}

func TestLogsTakeTheirOptions(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'for i in 1 2 3 4 5; do echo line $i; done; trap "exit 0" TERM; while [ ! -e /go ]; do sleep 0.1; done; echo line 6; while :; do sleep 0.1; done']
`))
	s.WaitReady("a")
	if got := s.Kubectl("logs", "a", "--tail=2"); got != "line 4\nline 5\n" {
		t.Errorf("--tail=2: %q", got)
	}
	if got := s.Kubectl("logs", "a", "--limit-bytes=6"); got != "line 1" {
		t.Errorf("--limit-bytes=6: %q", got)
	}
	stamped := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\S+ line \d$`)
	if got := s.Kubectl("logs", "a", "--timestamps"); len(stamped.FindAllString(got, -1)) != 5 {
		t.Errorf("--timestamps: %q", got)
	}
	if got := s.Kubectl("logs", "a", "--since-time=2100-01-01T00:00:00Z"); got != "" {
		t.Errorf("--since-time in the future: %q", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := s.Command(ctx, "logs", "-f", "a")
	pipe, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for i := 1; i <= 6; i++ {
		if i == 6 {
			s.Kubectl("exec", "a", "--", "touch", "/go")
		}
		if !lines.Scan() || lines.Text() != fmt.Sprintf("line %d", i) {
			t.Fatalf("followed %q, want line %d", lines.Text(), i)
		}
	}
	s.Kubectl("delete", "pod", "a", "--wait=false")
	for lines.Scan() {
		t.Errorf("one line too many: %q", lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f did not end with the container: %v", err)
	}
}

// On a node the log stays as long as the pod, and so does who reads it.
func TestWhoFollowsALogAndLagsGetsItWhole(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	const lines = 30_000 // 9 MB, more than all buffers on the way hold, and less than what a kubelet rotates
	s.Apply(namespace.Bare("a", fmt.Sprintf(`  restartPolicy: Never
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'while [ ! -e /go ]; do sleep 0.1; done; yes %s | head -n %d']
`, strings.Repeat("x", 300), lines)))
	s.WaitReady("a")
	follow := s.Command(t.Context(), "logs", "-f", "a")
	pipe, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	s.Kubectl("exec", "a", "--", "touch", "/go")
	s.Eventually("the cell has ended", s.NoCells)
	all, err := io.ReadAll(pipe)
	if n := bytes.Count(all, []byte("\n")); err != nil || n != lines {
		t.Errorf("%d lines of %d, %v; the end is %q", n, lines, err, all[max(0, len(all)-300):])
	}
	if err := follow.Wait(); err != nil {
		t.Error(err)
	}
	if got := strings.Count(s.Kubectl("logs", "a"), "\n"); got != lines {
		t.Errorf("of the log that is kept there are %d lines of %d", got, lines)
	}
}

func TestExecTakesAScriptAsLongAsANodeTakes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	if out := s.Kubectl("exec", "a", "--", "sh", "-c", strings.Repeat("\n", 120_000)+"echo done"); out != "done\n" {
		t.Errorf("%.200q", out)
	}
}

// The port is forwarded to Kip's pod, which the test reaches by the API server.
func TestKipctlComesOntoTheMachineOfACellByKipsPod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	ctx, cancel := context.WithTimeout(s.Context(), namespace.Patience)
	defer cancel()
	out, errs, err := namespace.Run(exec.CommandContext(ctx, world.Tool("kipctl"), "--kubeconfig", world.Kubeconfig, "exec",
		s.CellOf("a").Name, "--", "sh", "-c", "ls /var/lib/kubelet/config.yaml; exit 5"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 || out != "/var/lib/kubelet/config.yaml\n" {
		t.Errorf("%v: %s%s", err, out, errs)
	}
}

func TestAttachReachesTheContainersStdin(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'read x; echo got $x'], stdin: true, stdinOnce: true}
`))
	s.WaitReady("a")
	cmd := s.Command(t.Context(), "attach", "-i", "a")
	cmd.Stdin = strings.NewReader("apples\n")
	if out, errs, err := namespace.Run(cmd); err != nil || !strings.Contains(out, "got apples") {
		t.Fatalf("attach: %q %q %v", out, errs, err)
	}
}

func TestPortForwardReachesThePod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.WebServer("a", "", "forwarded"))
	s.WaitReady("a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := s.Command(ctx, "port-forward", "a", ":8080")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // killed by the cancel
	}()
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	for range 3 {
		resp, err := http.Get("http://" + m + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "forwarded\n" {
			t.Fatalf("body %q, %v", body, err)
		}
	}
}

func TestCopyGoesBothWays(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := bytes.Repeat([]byte("kip\n"), 1<<16)
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Kubectl("cp", from, "a:/copied")
	s.Kubectl("cp", "a:/copied", to)
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came back, %v; want %d", len(got), err, len(data))
	}
}
