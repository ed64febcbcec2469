package kip

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
)

// using is a cell's kubelet, which says that its pod uses something.
type using apiv1.PodReference

func (u using) RoundTrip(r *http.Request) (*http.Response, error) {
	text := fmt.Sprintf(`{"node":{},"pods":[{"podRef":{"name":%q,"namespace":%q,"uid":%q}}]}`, u.Name, u.Namespace, u.UID)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// reviewed is a cluster where others answer who may what.
type reviewed struct {
	kubernetes.Interface

	reviews kubernetes.Interface
}

func (r reviewed) AuthenticationV1() authenticationv1.AuthenticationV1Interface {
	return r.reviews.AuthenticationV1()
}

func (r reviewed) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return r.reviews.AuthorizationV1()
}

func TestTheKubeletPortOfANodeHasItsOwnPodsOnly(t *testing.T) {
	w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
	w.asKip = reviewed{w.cluster, reviewer(t, func(any) bool { return true })}
	nodes := map[string]string{"kip-0-1": "web-a", "kip-0-2": "web-b"}
	w.ways = func() (all []cells.Way) {
		for node, pod := range nodes {
			ref := apiv1.PodReference{Namespace: "ns", Name: pod, UID: "uid-1"}
			all = append(all, cells.Way{Cell: "of-" + pod, Node: node, Pod: ref, Since: time.Now(), Conn: using(ref)})
		}
		return all
	}
	w.start()
	for node, pod := range nodes {
		w.addPod(node, pod, "ReplicaSet")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	ask := func(number int, method, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("https://127.0.0.1:%d%s", w.l.kubeletPort(number), path), nil)
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
		for _, pod := range nodes {
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
