package harness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/child"
)

// Kip is a process that a test runs itself, beside the world's own Kip or while
// that is dead.
type Kip struct {
	*child.Process
	Log     string // the file with its standard output and error
	Metrics string // host:port of /metrics, /healthz and /readyz

	world *World
	done  chan struct{}
	amiss []string // once it has ended

	mu       sync.Mutex
	forgiven [][]string
}

// kipCommand is how the Kip that runs was started.
func (w *World) kipCommand() (exec.Cmd, error) {
	pid, err := w.KipPID()
	if err != nil {
		return exec.Cmd{}, err
	}
	list := func(name string) ([]string, error) {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
		return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), err
	}
	args, err := list("cmdline")
	env, envErr := list("environ")
	if err := errors.Join(err, envErr); err != nil {
		return exec.Cmd{}, fmt.Errorf("see how Kip is run: %w", err)
	}
	return exec.Cmd{Path: args[0], Args: args, Env: env}, nil
}

// RunKip starts a Kip as the world runs its own, with more arguments, which win
// over the world's. Its metrics have a port of their own, and the API server does not
// ask it about pods. It is killed when the test's process ends.
func (w *World) RunKip(log string, args ...string) (*Kip, error) {
	return w.RunKipOf(w.kipRun.Path, log, append([]string{"--webhook-port=0"}, args...)...)
}

// RunKipOf is RunKip with another build of Kip.
func (w *World) RunKipOf(program, log string, args ...string) (*Kip, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	k := &Kip{
		world:   w,
		Log:     log,
		Metrics: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		done:    make(chan struct{}),
	}
	if k.Process, err = child.Start(child.Spec{
		Path:    program,
		Args:    slices.Concat(w.kipRun.Args[1:], []string{"--metrics-addr=" + k.Metrics}, args),
		Env:     w.kipRun.Env,
		LogFile: log,
	}); err != nil {
		return nil, fmt.Errorf("start a Kip of the test's own: %w", err)
	}
	w.mu.Lock()
	w.kips = append(w.kips, k)
	w.mu.Unlock()
	go func() {
		defer close(k.done)
		<-k.Process.Done()
		k.amiss = k.look()
	}()
	return k, nil
}

// look says what is amiss with a Kip that has ended: how it ended, and what it logged.
func (k *Kip) look() (amiss []string) {
	if err := k.Unasked(); err != nil {
		amiss = append(amiss, err.Error())
	}
	text, err := os.ReadFile(k.Log)
	if err != nil {
		amiss = append(amiss, err.Error())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(append(amiss, Amiss(text)...), func(what string) bool {
		return slices.ContainsFunc(k.forgiven, func(texts []string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(what, text) })
		})
	})
}

// Forgive lets the Kip end, or log, what would be amiss and has this text in it, and
// each of the others: what its test is about. It is for before the Kip ends.
func (k *Kip) Forgive(text string, others ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgiven = append(k.forgiven, append([]string{text}, others...))
}

// Amiss is an error if the Kip, which has ended, did not end as it was told to, or
// logged a crash or an instance that it did not know.
func (k *Kip) Amiss() error {
	if len(k.amiss) == 0 {
		return nil
	}
	return fmt.Errorf("Kip, process %d: %s", k.PID(), strings.Join(k.amiss, "; "))
}

// crash is what a Go program prints, or logs where it recovers.
var crash = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: )|DATA RACE|panic serving|Observed a panic`)

// Stray is what Kip logs when it ends an instance that it has launched and does not
// know: a leak, or a pod's second cell, which it mends.
const Stray = "terminate an instance that has our tags and no cell"

// Amiss are the lines of a Kip's log that tell of a crash or of a stray instance.
func Amiss(log []byte) (lines []string) {
	for line := range strings.Lines(string(log)) {
		if crash.MatchString(line) || strings.Contains(line, Stray) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// Done is closed when the process has ended and has been looked at.
func (k *Kip) Done() <-chan struct{} { return k.done }

// Logs says that its log contains a text.
func (k *Kip) Logs(text string) (bool, error) {
	data, err := os.ReadFile(k.Log)
	return strings.Contains(string(data), text), err
}

// Get asks its metrics port for a path, as /readyz.
func (k *Kip) Get(ctx context.Context, path string) (code int, body string, err error) {
	return k.world.ask(ctx, "https://"+k.Metrics+path, "")
}

// ask asks a Kip's metrics port. Its certificate is of Kip's own CA, which Kip keeps to itself.
func (w *World) ask(ctx context.Context, url, token string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// scraper is the service account that scrapes Kip, with the rights of deploy/ for that.
const scraper = "kip-scraper"

// Scrape returns the metrics of the Kip at host:port.
func (w *World) Scrape(ctx context.Context, address string) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: scraper}}
	if _, err := w.Admin.CoreV1().ServiceAccounts(kipNamespace).Create(ctx, account, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return "", err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: scraper},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kip-metrics-reader.kip-0"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: kipNamespace, Name: scraper}},
	}
	if _, err := w.Admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return "", err
	}
	token, err := w.Admin.CoreV1().ServiceAccounts(kipNamespace).CreateToken(ctx, scraper,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token to scrape Kip with: %w", err)
	}
	code, text, err := w.ask(ctx, "https://"+address+"/metrics", token.Status.Token)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("Kip at %s answers %d to a scrape: %s", address, code, text)
	}
	return text, err
}
