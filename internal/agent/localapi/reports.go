package localapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// podPath is a pod's, or that to which a kubelet writes how it is.
var podPath = regexp.MustCompile(`^/api/v1/namespaces/[^/]+/pods/[^/]+(/status)?$`)

// containerLists are where the status of a pod has those of its containers.
var containerLists = [...]string{"initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"}

// reports are what Kip has taken of what the kubelet wrote of the cell's pod. Kip takes nothing of
// others, of static pods neither.
type reports struct {
	mu      sync.Mutex
	pod     string // the path, "" if nothing was written
	ended   bool
	runs    [len(containerLists)]bool // whether one of the list does
	changed chan struct{}             // by the next report; made by who waits for it
}

// take keeps what a request says of a pod, or Kip's answer to it. A patch leaves out what has not
// changed, but for lists, which it replaces.
func (r *reports) take(method, path string, code int, body []byte) {
	if !podPath.MatchString(path) {
		return
	}
	pod, isStatus := strings.CutSuffix(path, "/status")
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case code == http.StatusNotFound, code == http.StatusOK && method == http.MethodDelete:
		if pod != r.pod {
			return
		}
		r.pod = "" // nobody takes a word of it any more
	case code == http.StatusOK && method == http.MethodPatch && isStatus:
		if !r.patch(pod, body) {
			return
		}
	default:
		return
	}
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *reports) patch(pod string, body []byte) bool {
	var patch struct {
		Status map[string]json.RawMessage `json:"status"`
	}
	if json.Unmarshal(body, &patch) != nil {
		return false
	}
	if pod != r.pod {
		r.pod, r.ended, r.runs = pod, false, [len(containerLists)]bool{}
	}
	var phase string
	if raw, is := patch.Status["phase"]; is && json.Unmarshal(raw, &phase) == nil {
		r.ended = phase == "Failed" || phase == "Succeeded"
	}
	for i, name := range containerLists {
		var list []struct {
			State struct {
				Running *struct{} `json:"running"`
			} `json:"state"`
		}
		raw, is := patch.Status[name]
		if !is || json.Unmarshal(raw, &list) != nil {
			continue
		}
		r.runs[i] = false
		for _, c := range list {
			r.runs[i] = r.runs[i] || c.State.Running != nil
		}
	}
	return true
}

// missing is the pod's path if the kubelet has not written yet that it and its containers have ended,
// and what tells of the next report; else "".
func (r *reports) missing() (string, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pod == "" || r.ended && r.runs == [len(containerLists)]bool{} {
		return "", nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.pod, r.changed
}

// Told waits until Kip has taken that the pod of which the kubelet has written has ended, with all its
// containers, or is no more; or until ctx ends.
func (p *PKI) Told(ctx context.Context) error {
	for {
		pod, changed := p.reports.missing()
		if pod == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet to write that %s has ended: %w", pod, context.Cause(ctx))
		}
	}
}
