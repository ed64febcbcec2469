package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"github.com/elotl/kip/internal/credentialproviders"
)

// Conn carries requests to the agent of one cell, whatever host their URLs name.
// A tunnel.Session has one.
type Conn = http.RoundTripper

// Client asks the agent at the other end of Conn. The agent is not believed: of
// what it answers no more is read than the limits below. How long an answer may
// take says the context.
type Client struct{ Conn Conn }

const (
	// maxAnswer bounds an answer that is read as a whole, in bytes.
	maxAnswer = 64 << 10
	// maxText bounds what a refusal may say, in bytes.
	maxText = 1 << 10
)

// ErrNotYet is a refusal that says: the agent has understood, and is not done. The
// same request is to be sent again.
var ErrNotYet = errors.New("the agent is not done yet")

// ErrTooLarge is an answer longer than any that an agent of ours gives.
var ErrTooLarge = fmt.Errorf("it has more than %d bytes", maxAnswer)

// StatusError is an answer with another status than 200.
type StatusError struct {
	Method, Path string
	Code         int    // of HTTP
	Text         string // what the agent says, cut, valid UTF-8
}

func (e *StatusError) Error() string {
	who := "the agent"
	if below(e.Path, PathKubelet) {
		who = "the cell's kubelet"
	}
	text := strings.TrimSpace(fmt.Sprintf("%s answered %s %s with %d %s", who, e.Method, e.Path, e.Code, http.StatusText(e.Code)))
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Is makes a StatusError with 503 an ErrNotYet.
func (e *StatusError) Is(target error) bool {
	return target == ErrNotYet && e.Code == http.StatusServiceUnavailable
}

// IsUnknownPod reports whether a kubelet's answer says that it does not know the pod. It answers 404 for a container as well.
func IsUnknownPod(code int, text string) bool {
	// getContainerLogs and others in pkg/kubelet/server/server.go: pod "NAME" does not exist
	return code == http.StatusNotFound && strings.Contains(text, "does not exist")
}

// AnswerError is an answer with status 200 that is not what was asked for.
type AnswerError struct {
	Method, Path string
	Err          error
}

func (e *AnswerError) Error() string {
	return fmt.Sprintf("read the agent's answer to %s %s: %v", e.Method, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *AnswerError) Unwrap() error { return e.Err }

// PutConfig hands the agent its configuration. It returns what the agent says of the machine's
// start and of itself: the zero of each where it says nothing, or nothing that can be. With huge pages the error is an *AnswerError if
// the answer cannot be read: Kip ends a cell whose agent says nothing of them.
func (c Client) PutConfig(ctx context.Context, config Config) (Configured, error) {
	body, err := json.Marshal(config)
	if err != nil {
		return Configured{}, err
	}
	answer, err := c.do(ctx, http.MethodPut, PathConfig, body)
	if err != nil {
		return Configured{}, err
	}
	defer answer.Close()
	var told Configured
	text, err := readAll(answer)
	if err == nil && len(text) > 0 { // the first agents say nothing at all
		err = json.Unmarshal(text, &told)
	}
	switch {
	case err != nil && (len(config.HugePages) > 0 || config.SwapBytes > 0):
		return Configured{}, &AnswerError{Method: http.MethodPut, Path: PathConfig, Err: err}
	case err != nil:
		return Configured{}, nil // the rest is for people only: what cannot be read is as if it were not said
	}
	if !told.Boot.Plausible() {
		told.Boot = Boot{}
	}
	told.Agent = told.Agent.shown()
	told.NoHugePages = printable(told.NoHugePages[:min(len(told.NoHugePages), maxFailure)])
	told.CredentialProviders = saidOf(config.CredentialProviders, told.CredentialProviders)
	told.NoSwap = printable(told.NoSwap[:min(len(told.NoSwap), maxFailure)])
	return told, nil
}

// saidOf returns what an agent says of the credential providers that it was given, and of no others.
func saidOf(asked []credentialproviders.Provider, said map[string]string) map[string]string {
	if len(asked) == 0 {
		return nil
	}
	of := make(map[string]string, len(asked))
	for _, p := range asked {
		why, is := said[p.Name]
		if !is {
			why = "the cell's agent is older than this Kip and has no credential providers"
		}
		of[p.Name] = printable(why[:min(len(why), maxFailure)])
	}
	return of
}

const (
	// maxFailures and maxFailure bound what is read of a CloudInitDone and the like: lines, and bytes of each.
	maxFailures = 20
	maxFailure  = 300
)

// PutCloudInit has the agent carry out a cloud-init file, and returns what of it could not be
// done. The error is ErrNotYet as long as that goes on.
func (c Client) PutCloudInit(ctx context.Context, document []byte) (failures []string, err error) {
	body, err := json.Marshal(CloudInit{Document: document})
	if err != nil {
		return nil, err
	}
	return c.cloudInit(ctx, http.MethodPut, PathCloudInit, body)
}

// CloudInitDone asks for the same of a file that the agent was given, by its digest.
func (c Client) CloudInitDone(ctx context.Context, digest string) (failures []string, err error) {
	return c.cloudInit(ctx, http.MethodGet, PathCloudInit+"?"+url.Values{ParamDigest: {digest}}.Encode(), nil)
}

func (c Client) cloudInit(ctx context.Context, method, path string, body []byte) (failures []string, err error) {
	answer, err := c.do(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	var done CloudInitDone
	if err := decode(answer, &done); err != nil {
		return nil, &AnswerError{Method: method, Path: PathCloudInit, Err: err}
	}
	for _, f := range done.Failures[:min(len(done.Failures), maxFailures)] {
		failures = append(failures, printable(f[:min(len(f), maxFailure)]))
	}
	return failures, nil
}

// PutAgent tells the agent which agent is to run. The error is ErrNotYet as long as it is being
// fetched.
func (c Client) PutAgent(ctx context.Context, a Agent) error {
	return c.put(ctx, PathAgent, a)
}

// PutDisks tells the agent which disks its cell is to have: none but those with
// these IDs. The error is ErrNotYet as long as that is not so.
func (c Client) PutDisks(ctx context.Context, ids []string) error {
	return c.put(ctx, PathDisks, Disks{Disks: ids})
}

// PutPlugins tells the agent which plugins its cell is to run, and no others. The
// error is ErrNotYet as long as a volume of another is there.
func (c Client) PutPlugins(ctx context.Context, plugins []Plugin) error {
	if plugins == nil {
		plugins = []Plugin{}
	}
	return c.put(ctx, PathPlugins, Plugins{Plugins: plugins})
}

// PutKernel has the agent set what a pod asks of its machine's kernel.
func (c Client) PutKernel(ctx context.Context, k KernelSettings) error {
	return c.put(ctx, PathKernel, k)
}

// PutAuthorities tells the agent by which authorities Kip is to be known.
func (c Client) PutAuthorities(ctx context.Context, a Authorities) error {
	return c.put(ctx, PathAuthorities, a)
}

// PutFirewall hands the agent an encoded Firewall. Its Digest is what Firewall
// tells from then on.
func (c Client) PutFirewall(ctx context.Context, encoded []byte) error {
	return c.send(ctx, PathFirewall, encoded)
}

// Firewall returns what is in force.
func (c Client) Firewall(ctx context.Context) (FirewallStatus, error) {
	var s FirewallStatus
	err := c.get(ctx, PathFirewall, &s)
	return s, err
}

// Status returns how the cell's parts fare.
func (c Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.get(ctx, PathStatus, &s)
	return s, err
}

// Logs returns the log of a container, a time before each line, from the cell's
// kubelet; previous is that of the container before the last restart. The answer
// has no bound but the caller's.
func (c Client) Logs(ctx context.Context, namespace, pod, container string, previous bool) (io.ReadCloser, error) {
	query := url.Values{"timestamps": {"true"}}
	if previous {
		query.Set("previous", "true")
	}
	u := root.JoinPath("containerLogs", namespace, pod, container)
	return c.Kubelet(ctx, u.EscapedPath()+"?"+query.Encode())
}

// Kubelet asks the cell's kubelet for what is at a path, which begins with / and
// may have a query. The answer has no bound but the caller's.
func (c Client) Kubelet(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.do(ctx, http.MethodGet, PathKubelet+path, nil)
}

// KubeletURL leads to what is below these segments of a path in the cell's kubelet,
// and nowhere else.
func KubeletURL(segments ...string) *url.URL {
	return &url.URL{Scheme: scheme, Host: host, Path: PathKubelet + root.JoinPath(segments...).Path}
}

// There is one host on a Conn, and what is encrypted is the Conn's business.
const scheme, host = "http", "cell"

var root = &url.URL{Path: "/"}

func below(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func (c Client) put(ctx context.Context, path string, what any) error {
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return c.send(ctx, path, body)
}

// send puts a body. What the agent says beside its yes is not read.
func (c Client) send(ctx context.Context, path string, body []byte) error {
	answer, err := c.do(ctx, http.MethodPut, path, body)
	if err != nil {
		return err
	}
	return answer.Close()
}

func (c Client) get(ctx context.Context, path string, into any) error {
	answer, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	if err := decode(answer, into); err != nil {
		return &AnswerError{Method: http.MethodGet, Path: path, Err: err}
	}
	return nil
}

// decode reads an answer as a whole.
func decode(answer io.Reader, into any) error {
	text, err := readAll(answer)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

// readAll returns the text of an answer as a whole.
func readAll(answer io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(answer, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = ErrTooLarge
	}
	return text, err
}

// do sends one request. The answer is one with status 200, and must be closed.
func (c Client) do(ctx context.Context, method, path string, body []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Conn.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	// A refusal whose text does not come is still that refusal.
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxText))
	return nil, &StatusError{
		Method: method,
		Path:   req.URL.Path,
		Code:   resp.StatusCode,
		Text:   printable(strings.TrimSpace(string(text))),
	}
}

// printable is what may be shown of an agent's text, as sanitize.Printable says, which
// the contract does not import.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return '?'
	}, s)
}
