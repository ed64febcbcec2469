package imageplugin

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/sanitize"
)

const (
	// version is the only one of the kubelet's words that is spoken here.
	version = "credentialprovider.kubelet.k8s.io/v1"
	// patience bounds one run. The kubelet ends it after a minute.
	patience = 50 * time.Second
	// maxRequest bounds what the kubelet sends, maxAnswer what Kip answers, in bytes: a token
	// of ECR's is some three thousand.
	maxRequest, maxAnswer = 64 << 10, 64 << 10
	// longestKept bounds for how long the kubelet keeps what it is answered.
	longestKept = 12 * time.Hour
	// maxMessage bounds what is shown of an answer that is no credentials, in bytes.
	maxMessage = 512
)

// request is a CredentialProviderRequest, and response a CredentialProviderResponse. The
// types themselves would bring a good part of the API machinery into a process that is
// started for each image; a test compares.
type (
	request struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Image      string `json:"image"`
	}
	response struct {
		APIVersion    string          `json:"apiVersion"`
		Kind          string          `json:"kind"`
		CacheKeyType  string          `json:"cacheKeyType"`
		CacheDuration string          `json:"cacheDuration"`
		Auth          map[string]auth `json:"auth"`
	}
	auth struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
)

// Run is the program.
func Run() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err) // which the kubelet logs
		return 1
	}
	return 0
}

// local is how the agent's local API endpoint is reached.
type local struct{ server, ca, cert, key string }

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var l local
	flags := flag.NewFlagSet(configs.ImagePlugin, flag.ContinueOnError)
	flags.StringVar(&l.server, configs.ImagePluginServer, "", "`URL` of the agent's API endpoint")
	flags.StringVar(&l.ca, configs.ImagePluginCA, "", "`file` with the certificate that signs the endpoint's")
	flags.StringVar(&l.cert, configs.ImagePluginCert, "", "`file` with the kubelet's certificate")
	flags.StringVar(&l.key, configs.ImagePluginKey, "", "`file` with its key")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxRequest+1))
	if err != nil {
		return fmt.Errorf("read the kubelet's request: %w", err)
	}
	if len(text) > maxRequest {
		return fmt.Errorf("the kubelet's request is longer than %d bytes", maxRequest)
	}
	var asked request
	if err := json.Unmarshal(text, &asked); err != nil {
		return fmt.Errorf("the kubelet's request is not JSON: %w", err)
	}
	if asked.APIVersion != version || asked.Kind != "CredentialProviderRequest" || asked.Image == "" {
		return fmt.Errorf("the kubelet sends a %.64q of %.64q: want a CredentialProviderRequest of %s with an image", asked.Kind, asked.APIVersion,
			version)
	}
	got, err := l.ask(ctx, asked.Image)
	if err != nil {
		return fmt.Errorf("ask Kip for what pulls %.256s: %w", sanitize.Printable(asked.Image), err)
	}
	answer, err := json.Marshal(response{
		APIVersion: version,
		Kind:       "CredentialProviderResponse",
		// They are for this repository, and perhaps no other.
		CacheKeyType:  "Image",
		CacheDuration: min(max(0, got.KeepFor), longestKept).Truncate(time.Second).String(),
		Auth:          map[string]auth{asked.Image: {Username: got.Username, Password: got.Password}},
	})
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	if _, err := out.Write(answer); err != nil {
		return fmt.Errorf("answer the kubelet: %w", err)
	}
	return nil
}

// client is one with the kubelet's certificate, on loopback without any proxy.
func (l local) client() (*http.Client, error) {
	cert, err := tls.LoadX509KeyPair(l.cert, l.key)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's certificate: %w", err)
	}
	ca, err := os.ReadFile(l.ca)
	if err != nil {
		return nil, fmt.Errorf("read the machine's CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read the machine's CA: there is no certificate in %s", l.ca)
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			RootCAs:      roots,
			Certificates: []tls.Certificate{cert},
		},
		DisableKeepAlives: true,
	}}, nil
}

// ask asks Kip.
func (l local) ask(ctx context.Context, image string) (got agentapi.ImageCredentials, err error) {
	client, err := l.client()
	if err != nil {
		return got, err
	}
	body, err := json.Marshal(agentapi.ImageRequest{Image: image})
	if err != nil {
		return got, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.server+agentapi.PathImageCredentials, bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return got, fmt.Errorf("read the answer: %w", err)
	case len(answer) > maxAnswer:
		return got, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return got, fmt.Errorf("%s: %s", resp.Status, messageOf(answer))
	}
	// Nothing of the answer is quoted: it may be the password.
	if json.Unmarshal(answer, &got) != nil || got.Username == "" || got.Password == "" {
		return got, errNoCredentials
	}
	return got, nil
}

var errNoCredentials = errors.New("the answer is not a name and a password")

// messageOf is what an API server's Status says.
func messageOf(answer []byte) string {
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(answer, &status) != nil {
		return "no Status"
	}
	return sanitize.Printable(status.Message[:min(len(status.Message), maxMessage)])
}
