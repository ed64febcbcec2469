package localapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"sync"
)

// statusPath is where a kubelet writes how a pod is.
var statusPath = regexp.MustCompile(`^/api/v1/namespaces/[^/]+/pods/[^/]+/status$`)

// maxReports bounds the pods of which it is kept how they are: a cell has one, and the node plugins of
// its volumes.
const maxReports = 64

// reports are what Kip has taken of what the kubelet wrote of its pods.
type reports struct {
	mu      sync.Mutex
	pods    map[string]report // by the path to which it is written
	changed chan struct{}     // by the next report; made by who waits for it
}

// report is how a pod is.
type report struct{ ended, runs bool }

// take keeps what a request says that Kip has taken. A patch leaves out what has not changed, but for
// lists, which it replaces.
func (r *reports) take(method, path string, body []byte) {
	if method != http.MethodPatch || !statusPath.MatchString(path) {
		return
	}
	var patch struct {
		Status struct {
			Phase      *string         `json:"phase"`
			Containers *[]containerNow `json:"containerStatuses"`
		} `json:"status"`
	}
	if json.Unmarshal(body, &patch) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, known := r.pods[path]
	if !known && len(r.pods) >= maxReports {
		return
	}
	if p := patch.Status.Phase; p != nil {
		now.ended = *p == "Failed" || *p == "Succeeded"
	}
	if list := patch.Status.Containers; list != nil {
		now.runs = false
		for _, c := range *list {
			now.runs = now.runs || c.State.Running != nil
		}
	}
	if r.pods == nil {
		r.pods = map[string]report{}
	}
	r.pods[path] = now
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// containerNow is what is read of a container's status.
type containerNow struct {
	State struct {
		Running *struct{} `json:"running"`
	} `json:"state"`
}

// missing is the path of a pod of which the kubelet has not written yet that it and its containers have
// ended, and what tells of the next report; "" if there is none.
func (r *reports) missing() (string, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, now := range r.pods {
		if !now.ended || now.runs {
			if r.changed == nil {
				r.changed = make(chan struct{})
			}
			return path, r.changed
		}
	}
	return "", nil
}

// Told waits until Kip has taken of each pod of which the kubelet has ever written that it has ended,
// with all its containers; or until ctx ends.
func (p *PKI) Told(ctx context.Context) error {
	for {
		path, changed := p.reports.missing()
		if path == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet to write to %s that its pod has ended: %w", path, ctx.Err())
		}
	}
}
