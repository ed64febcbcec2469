//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// tokenRegistry is a registry that wants tokens. Its first tokens expire as soon as they have fetched a manifest, before the blobs
// that it names.
type tokenRegistry struct {
	host, image string
	all         http.Handler
	// says is whether it tells clients that their token is not valid any more, as Docker Hub does: others only ask for one.
	says bool

	mu      sync.Mutex
	valid   map[string]bool
	issued  int
	expired int // how many may still do that
	refused int // requests with a token that has expired
}

// serveTokens serves one on the bridge of the cells. So many of its tokens expire early.
func serveTokens(t *testing.T, says bool, expired int) *tokenRegistry {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ownNetwork.Host().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	r := &tokenRegistry{host: l.Addr().String(), says: says, expired: expired, valid: map[string]bool{},
		all: ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)))}
	r.image = r.host + "/team/busybox:1"
	serveOn(t, l, r)
	pushBusybox(t, r.image, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.issued, r.refused = 0, 0
	r.expired = expired
	return r
}

func (r *tokenRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	user, word, _ := req.BasicAuth()
	known := user == registryUser && word == registryPassword
	if req.URL.Path == "/token" {
		r.issue(w, req, known)
		return
	}
	if token, is := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); !known && !(is && r.takes(w, req, token)) {
		if w.Header().Get("WWW-Authenticate") == "" {
			w.Header().Set("WWW-Authenticate", r.challenge())
		}
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	r.all.ServeHTTP(w, req)
}

func (r *tokenRegistry) challenge() string {
	return fmt.Sprintf(`Bearer realm="http://%s/token",service="private",scope="repository:team/busybox:pull"`, r.host)
}

// issue gives a token to who has the password.
func (r *tokenRegistry) issue(w http.ResponseWriter, req *http.Request, known bool) {
	switch {
	case req.Method != http.MethodGet:
		http.Error(w, "GET it", http.StatusMethodNotAllowed)
		return
	case !known:
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	r.issued++
	token := fmt.Sprintf("token-%d", r.issued)
	r.valid[token] = true
	r.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 300})
}

// takes reports whether a token is valid for a request. It says in its answer if it is not any more.
func (r *tokenRegistry) takes(w http.ResponseWriter, req *http.Request, token string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	valid, was := r.valid[token]
	if was && !valid {
		r.refused++
		if r.says {
			w.Header().Set("WWW-Authenticate", r.challenge()+`,error="invalid_token"`)
		}
	}
	if valid && r.expired > 0 && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/manifests/") {
		r.expired--
		r.valid[token] = false // for the next request
	}
	return valid
}

// imageHolder is a DaemonSet that has a private image on each cell.
const imageHolder = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: holder}
spec:
  selector: {matchLabels: {app: holder}}
  template:
    metadata: {labels: {app: holder}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      imagePullSecrets: [{name: pull}]
      containers:
      - {name: main, image: 'IMAGE', command: [sleep, '100000'], resources: {requests: {cpu: 10m, memory: 16Mi}}}
`

// waiting waits until the first container of a pod does not start for a reason.
func (s *space) waiting(pod, reason string) {
	s.Helper()
	s.WaitPod(pod, "waits for "+reason, func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && (w.Reason == reason || w.Reason == "ImagePullBackOff" && reason == "ErrImagePull") {
				return true
			}
		}
		return false
	})
}

// Not parallel: Kip starts with other settings.
func TestPrivateImagesAreForWhoHasTheSecretAndTokensMayExpire(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	said, silent, held := serveTokens(t, true, 1), serveTokens(t, false, 1), serveTokens(t, true, 0)
	var hosts []any
	auths := map[string]any{}
	auth := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	for _, r := range []*tokenRegistry{said, silent, held} {
		hosts = append(hosts, map[string]any{"host": r.host, "plainHTTP": true})
		auths[r.host] = map[string]any{"auth": auth}
	}
	reconfigure(t, map[string]any{"registries": hosts,
		"daemonSets": []any{map[string]any{"namespace": s.NS, "name": "holder", "pods": "held=true", "maxDelay": 120}}})
	config, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name, content string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/dockerconfigjson\n"+
			"stringData: {.dockerconfigjson: '%s'}\n---\n", name, content)
	}
	wrong := strings.ReplaceAll(string(config), auth, base64.StdEncoding.EncodeToString([]byte(registryUser+":wrong")))
	s.Apply(secret("pull", string(config)) + secret("late", wrong) + strings.Replace(imageHolder, "IMAGE", held.image, 1))
	pod := func(name, secret, image, policy string) string {
		if secret != "" {
			secret = "  imagePullSecrets: [{name: " + secret + "}]\n"
		}
		const main = "  containers:\n  - {name: main, image: %q, imagePullPolicy: %s, command: [sleep, '100000']}\n"
		return namespace.Bare(name, secret+fmt.Sprintf(main, image, policy))
	}
	withHolder := func(manifest string) string {
		return strings.Replace(manifest, "}\nspec:", ", labels: {held: \"true\"}}\nspec:", 1)
	}

	// A token that expires between the manifest and its blobs.
	s.Apply(pod("said", "pull", said.image, "Always"))
	s.Apply(pod("silent", "pull", silent.image, "IfNotPresent"))
	// A Secret that is put right while the pod waits.
	s.Apply(pod("late", "late", held.image, "IfNotPresent"))
	// An image that is on the cell already, since a pod of a DaemonSet has pulled it with a Secret.
	s.Apply(withHolder(pod("stranger", "", held.image, "IfNotPresent")))
	s.Apply(withHolder(pod("never", "", held.image, "Never")))
	s.Apply(withHolder(pod("friend", "pull", held.image, "Never")))

	for _, r := range map[string]*tokenRegistry{"said": said, "silent": silent} {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.expired != 0 || r.refused == 0 || r.issued < 2 {
				t.Errorf("registry %s issued %d tokens and refused %d that had expired", r.host, r.issued, r.refused)
			}
		}()
	}
	s.waiting("late", "ErrImagePull")
	if _, err := world.Admin.CoreV1().Secrets(s.NS).Update(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "late"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"said", "silent", "late", "friend"} {
		s.WaitReady(name)
	}
	p, err := s.Pod(t.Context(), "said")
	if err != nil {
		t.Fatal(err)
	}
	// Where it is told that the token has expired, the pull itself goes on.
	selector := "involvedObject.uid=" + string(p.UID) + ",reason=Failed"
	if events := s.Kubectl("get", "events", "--field-selector", selector, "-o", "name"); events != "" {
		t.Errorf("the pull of said failed: %s", events)
	}
	s.waiting("stranger", "ErrImagePull")
	s.WaitEvent("stranger", "Failed", "failed to authorize")
	s.waiting("never", "ErrImageNeverPull")
	for _, name := range []string{"stranger", "never", "friend"} {
		set := s.setPod("holder", "")
		if got := s.beside(name, set.Name); got != "ready true, 0 restarts, " {
			t.Errorf("beside %s the DaemonSet's pod is: %s", name, got)
		}
	}
}
