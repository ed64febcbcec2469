package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"

	"github.com/elotl/kip/internal/version"
)

// aboutNode routes the paths at which a kubelet tells of itself and of its machine. The virtual
// node has no machine: where a kubelet serves the machine's own logs or its process' inside,
// this answers as a kubelet whose handler is off (k8s.io/kubernetes/pkg/kubelet/server/server.go,
// getHandlerForDisabledEndpoint).
func (p *Port) aboutNode() {
	for _, path := range []string{"/healthz", "/healthz/{$}", "/healthz/syncloop"} {
		p.mux.HandleFunc("GET "+path, p.healthz)
	}
	for _, path := range []string{"/healthz/ping", "/healthz/log"} { // that it answers is what these ask
		p.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	}
	p.mux.HandleFunc("GET /configz", p.configz)
	p.mux.HandleFunc("GET /statusz", p.statusz)
	for path, why := range map[string]struct{ what, instead string }{
		"/logs/":         {"logs endpoint is disabled.", " For the logs of a cell's machine: kipctl logs CELL."},
		"/debug/pprof/":  {what: "profiling endpoint is disabled."},
		"/debug/flags/v": {what: "flags endpoint is disabled."},
	} {
		p.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			notHere(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
				why.what+" The virtual node "+p.c.NodeName+" is no machine."+why.instead)
		})
	}
	p.mux.HandleFunc("GET /flagz", func(w http.ResponseWriter, _ *http.Request) {
		notHere(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the virtual node "+p.c.NodeName+" is no kubelet's, and has no flags of one")
	})
}

// notHere says why a path of a kubelet's has no answer. It is a Status: of another text kubectl get --raw shows the code alone.
func notHere(w http.ResponseWriter, code int, reason metav1.StatusReason, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // a caller who has gone is no error of ours
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  why,
		Reason:   reason,
		Code:     int32(code),
	})
}

func (p *Port) healthz(w http.ResponseWriter, r *http.Request) {
	if err := p.c.Healthy(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "ok")
}

// configz tells of the configuration what holds of this port and this node, by the names of
// kubelet.config.k8s.io/v1beta1. What is each cell's own is left out.
func (p *Port) configz(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(map[string]any{"kubeletconfig": map[string]any{
		"kind":         "KubeletConfiguration",
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"enableServer": true,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true, "cacheTTL": tokenTTL.String()},
		},
		"authorization": map[string]any{"mode": "Webhook", "webhook": map[string]any{
			"cacheAuthorizedTTL":   allowedTTL.String(),
			"cacheUnauthorizedTTL": deniedTTL.String(),
		}},
		"enableDebuggingHandlers":  true,
		"enableSystemLogHandler":   false,
		"enableProfilingHandler":   false,
		"enableDebugFlagsHandler":  false,
		"maxPods":                  p.c.MaxPods(),
		"nodeLeaseDurationSeconds": vknode.DefaultLeaseDuration,
	}})
	if err != nil {
		http.Error(w, "encode the configuration: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // a caller who has gone is no error of ours
}

// statuszPaths are the roots of what the port answers, as a kubelet lists them.
var statuszPaths = []string{
	"/attach", "/cells", "/checkpoint", "/configz", "/containerLogs", "/exec", "/healthz", "/metrics", "/pods", "/portForward", "/run",
	"/runningpods", "/stats", "/statusz",
}

// statusz tells what answers here, in the form of k8s.io/apiserver/pkg/server/statusz.
func (p *Port) statusz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, `
kubelet statusz
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.

Go version: %s
Binary version: %s, with the kubelet %s on cells
Paths: %s
`, runtime.Version(), p.c.Version, version.Kubernetes, strings.Join(statuszPaths, " "))
}
