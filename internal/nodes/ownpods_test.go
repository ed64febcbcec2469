package nodes

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/test/loopback"
)

// kubeletOf is a cell's kubelet, which says that its pod uses something.
type kubeletOf string

func (pod kubeletOf) RoundTrip(r *http.Request) (*http.Response, error) {
	text := fmt.Sprintf(`{"node":{},"pods":[{"podRef":{"name":%q,"namespace":"ns","uid":"uid-1"}}]}`, string(pod))
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{},
		Body:       io.NopCloser(strings.NewReader(text)),
		Request:    r,
	}, nil
}

// known leads to the cells of the pods that a node knows of, on which nothing listens.
type known struct{ pods cache.Store }

func (k known) Conn(namespace, name string, _ types.UID) (agentapi.Conn, error) {
	if _, is, err := k.pods.GetByKey(namespace + "/" + name); err != nil || !is {
		return nil, node.ErrPodNotFound
	}
	return nil, &node.WaitingError{Why: "its cell is not here"}
}

func (k known) Machine(string) (agentapi.Conn, error) { return nil, node.ErrCellNotFound }

// reviewed is a cluster where another server says who asks, and what they may.
type reviewed struct {
	kubernetes.Interface

	reviews kubernetes.Interface
}

func (r reviewed) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return r.reviews.AuthenticationV1()
}

func (r reviewed) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return admits{r.Interface.AuthorizationV1(), r.reviews.AuthorizationV1()}
}

// admits reviews the access of others by one server, and Kip's own by another.
type admits struct {
	authorizationv1.AuthorizationV1Interface

	others authorizationv1.AuthorizationV1Interface
}

func (a admits) RESTClient() rest.Interface { return a.others.RESTClient() }

func (a admits) SubjectAccessReviews() authorizationv1.SubjectAccessReviewInterface {
	return a.others.SubjectAccessReviews()
}

// admitsAll is an API server that knows every token, and allows everything.
func admitsAll(t *testing.T) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review["status"] = map[string]any{"authenticated": true, "user": map[string]any{"username": "apiserver"}, "allowed": true}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	api, err := kubernetes.NewForConfig(&rest.Config{
		Host:          server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func TestTheKubeletPortOfANodeHasItsOwnPodsOnly(t *testing.T) {
	w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
	w.base, w.ports = freePorts(t, 2), nil
	w.asKip = reviewed{w.cluster, admitsAll(t)}
	pods := map[string]string{"kip-0-1": "web-a", "kip-0-2": "web-b"}
	w.ways = func(pods cache.Store) node.Cells { return known{pods} }
	w.running = func(node string) []stats.Cell {
		pod := pods[node]
		return []stats.Cell{{
			ID:        "of-" + pod,
			Namespace: "ns",
			Pod:       pod,
			UID:       "uid-1",
			Conn:      kubeletOf(pod),
			Machine:   stats.Machine{Since: time.Now()},
		}}
	}
	w.start()
	for node, pod := range pods {
		w.addPod(node, pod, "ReplicaSet")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	ask := func(number int, method, path string) (int, string) {
		t.Helper()
		url := fmt.Sprintf("https://%s:%d%s", loopback.Own(), portOf(w.base, number), path)
		r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer token")
		resp, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if closeErr := resp.Body.Close(); err != nil || closeErr != nil {
			t.Fatal(err, closeErr)
		}
		return resp.StatusCode, string(body)
	}
	for number, own := range map[int]string{1: "web-a", 2: "web-b"} {
		code, body := ask(number, http.MethodGet, "/stats/summary")
		var summary statsapi.Summary
		if err := json.Unmarshal([]byte(body), &summary); err != nil || code != http.StatusOK {
			t.Fatalf("the summary of node %d is %d %s: %v", number, code, body, err)
		}
		if len(summary.Pods) != 1 || summary.Pods[0].PodRef.Name != own || summary.Node.NodeName != fmt.Sprint("kip-0-", number) {
			t.Errorf("the summary of node %d is %s", number, body)
		}
		if code, body := ask(number, http.MethodGet, "/pods"); code != http.StatusOK || strings.Count(body, `"uid-1"`) != 1 ||
			!strings.Contains(body, own) {
			t.Errorf("the pods of node %d are %d %s", number, code, body)
		}
		for _, pod := range pods {
			for path, method := range map[string]string{
				"/containerLogs/ns/" + pod + "/main":           http.MethodGet,
				"/exec/ns/" + pod + "/main?command=true":       http.MethodPost,
				"/exec/ns/" + pod + "/uid-1/main?command=true": http.MethodPost,
				"/attach/ns/" + pod + "/main?output=1":         http.MethodPost,
				"/portForward/ns/" + pod:                       http.MethodPost,
			} {
				code, body := ask(number, method, path)
				if other := pod != own; (code == http.StatusNotFound) != other || strings.Contains(body, "does not exist") != other {
					t.Errorf("node %d answers %s of pod %s with %d %s", number, path, pod, code, body)
				}
			}
		}
	}
}
