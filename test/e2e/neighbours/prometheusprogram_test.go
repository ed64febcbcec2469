//go:build e2e

package neighbours

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// prometheusPin is Debian's package of Prometheus.
//
//go:embed testdata/prometheus.lock
var prometheusPin []byte

// kubePrometheus are rules of kube-prometheus.
//
//go:embed testdata/kube-prometheus.yaml
var kubePrometheus []byte

// prometheusRights are those that kube-prometheus gives Prometheus (manifests/prometheus-clusterRole.yaml), and that to find nodes, which
// docs/pod-metrics.md tells users to add.
const prometheusRights = `apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: NAMESPACE}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-prometheus}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {nonResourceURLs: [/metrics, /metrics/slis], verbs: [get]}
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: NAMESPACE}]
`

// prometheus is one that runs as a process of this host.
type prometheus struct {
	*space
	address  string
	patience time.Duration // of check
}

// prometheusBinary unpacks Debian's Prometheus: the pinned one, or where the mirror has it no more the newest.
func prometheusBinary(ctx context.Context, dir string) (string, error) {
	const program = "usr/bin/prometheus"
	root, err := harness.Repository()
	if err != nil {
		return "", err
	}
	lock, err := debian.ParseLock(prometheusPin)
	if err != nil {
		return "", err
	}
	fetch := func() (string, error) {
		p, err := lock.Find(runtime.GOARCH, "prometheus")
		if err != nil {
			return "", err
		}
		return p.Fetch(ctx, debian.DefaultMirrors(), filepath.Join(root, ".kip", "debs"))
	}
	deb, err := fetch()
	if errors.Is(err, debian.ErrGone) {
		if lock, err = debian.Resolve(ctx, debian.DefaultMirrors(), "/usr/share/keyrings/debian-archive-keyring.gpg", []string{"prometheus"},
			runtime.GOARCH); err == nil {
			deb, err = fetch()
		}
	}
	if err != nil {
		return "", err
	}
	files := debian.Files{}
	if err := files.Read(ctx, deb, func(name string) bool { return name == program }); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "prometheus")
	return path, os.WriteFile(path, files[program].Content, 0o755)
}

// scrapesOf returns the additionalScrapeConfigs that docs/pod-metrics.md tells users of kube-prometheus to set.
func scrapesOf(page string) ([]map[string]any, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	for block := range strings.SplitSeq(string(text), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		var values struct {
			Prometheus struct {
				PrometheusSpec struct {
					AdditionalScrapeConfigs []map[string]any `json:"additionalScrapeConfigs"`
				} `json:"prometheusSpec"`
			} `json:"prometheus"`
		}
		if !strings.Contains(block, "additionalScrapeConfigs:") {
			continue
		}
		if err := yaml.Unmarshal([]byte(block), &values); err != nil {
			return nil, fmt.Errorf("read the values in %s: %w", page, err)
		}
		return values.Prometheus.PrometheusSpec.AdditionalScrapeConfigs, nil
	}
	return nil, fmt.Errorf("%s has no additionalScrapeConfigs", page)
}

// scrapeOf is a copy of a scrape configuration for the nodes that a label selects, as one outside of a pod needs it.
func scrapeOf(config map[string]any, name, label, token string) map[string]any {
	c := map[string]any{}
	for k, v := range config {
		c[k] = v
	}
	c["job_name"] = name
	c["authorization"] = map[string]any{"credentials_file": token}
	c["kubernetes_sd_configs"] = []any{map[string]any{
		"role": "node", "selectors": []any{map[string]any{"role": "node", "label": label}},
		"api_server": world.Config.Host, "authorization": c["authorization"],
		"tls_config": map[string]any{"ca_file": filepath.Join(world.State, "pki", "ca.crt")},
	}}
	return c
}

// configure writes prometheus.yml: Kip's node as the page has it, ordinary nodes in the same way, as the Prometheus Operator labels them,
// and others by job and address.
func (s *space) configure(dir, token string, others map[string]string) {
	s.Helper()
	scrapes, err := scrapesOf("docs/pod-metrics.md")
	if err != nil {
		s.Fatal(err)
	}
	// The chart's value kubelet.serviceMonitor.resource adds it.
	resource := scrapeOf(scrapes[0], "", "", "")
	resource["metrics_path"] = "/metrics/resource"
	resource["job_name"] = "kip-resource"
	var jobs []any
	for name, target := range others {
		jobs = append(jobs, map[string]any{"job_name": name, "honor_labels": true,
			"static_configs": []any{map[string]any{"targets": []string{target}}}})
	}
	for _, c := range append(scrapes, resource) {
		name := fmt.Sprint(c["job_name"])
		jobs = append(jobs, scrapeOf(c, name, "type=virtual-kubelet", token),
			scrapeOf(c, "ordinary-"+name, "type!=virtual-kubelet", token))
	}
	text, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "5s"},
		"rule_files":     []string{filepath.Join(dir, "rules.yaml")},
		"scrape_configs": jobs,
	})
	if err != nil {
		s.Fatal(err)
	}
	for name, content := range map[string][]byte{"prometheus.yml": text, "rules.yaml": kubePrometheus} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// runPrometheus runs Prometheus with the rights and the rules of kube-prometheus, until the test ends.
func (s *space) runPrometheus() *prometheus {
	s.Helper()
	dir := s.TempDir()
	path, err := prometheusBinary(s.Context(), dir)
	if err != nil {
		s.Fatal(err)
	}
	s.cluster(strings.ReplaceAll(prometheusRights, "NAMESPACE", s.NS))
	token, err := world.Admin.CoreV1().ServiceAccounts(s.NS).CreateToken(s.Context(), "prometheus", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(token.Status.Token), 0o600); err != nil {
		s.Fatal(err)
	}
	port, err := harness.FreePort()
	if err != nil {
		s.Fatal(err)
	}
	p := &prometheus{space: s, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), patience: namespace.Patience}
	s.configure(dir, tokenFile, map[string]string{"kube-state-metrics": s.serveStates(), "prometheus": p.address})
	s.start(child.Spec{Path: path, Args: []string{"--config.file=" + filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + p.address}})
	s.Eventually("Prometheus is ready", func(ctx context.Context) error { return p.get(ctx, "/-/ready", nil) })
	return p
}

// get asks Prometheus. into gets the answer's text, or what its JSON has as data.
func (p *prometheus) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Data  json.RawMessage `json:"data"`
		Error string          `json:"error"`
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return err
		}
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus answers %s: %s %s", path, resp.Status, answer.Error)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer.Data, into)
}

// sample is a series with its value now.
type sample struct {
	Labels map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

func (s sample) value() (float64, error) { return strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64) }

// query returns what an expression gives now. Series that stand twice on one side of a join are an error.
func (p *prometheus) query(ctx context.Context, expression string) ([]sample, error) {
	var data struct {
		Result []sample `json:"result"`
	}
	err := p.get(ctx, "/api/v1/query?"+url.Values{"query": {expression}}.Encode(), &data)
	return data.Result, err
}
