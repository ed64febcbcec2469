package podlogs

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/elotl/kip/internal/agent/agentapi"
)

// FromCell fetches logs of a pod from its cell's kubelet; way leads to the
// agent. What the kubelet refuses as a bad request is a *NoLogError: it has no
// such log. (Not found is an ordinary error: a kubelet that has just restarted
// does not know its pod yet.)
func FromCell(way http.RoundTripper, namespace, name string) Fetch {
	return func(ctx context.Context, container string, previous bool) (io.ReadCloser, error) {
		u := &url.URL{Scheme: "http", Host: "cell", Path: agentapi.PathKubelet}
		u = u.JoinPath("containerLogs", namespace, name, container)
		query := url.Values{"timestamps": {"true"}}
		if previous {
			query.Set("previous", "true")
		}
		u.RawQuery = query.Encode()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return nil, err
		}
		resp, err := way.RoundTrip(r)
		if err != nil {
			return nil, fmt.Errorf("ask the cell's kubelet: %w", err)
		}
		if resp.StatusCode == http.StatusOK {
			return resp.Body, nil
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil {
			return nil, fmt.Errorf("the cell's kubelet answered %s; read why: %w", resp.Status, err)
		}
		why := strings.TrimSpace(string(text))
		if resp.StatusCode == http.StatusBadRequest {
			return nil, &NoLogError{Answer: why}
		}
		return nil, fmt.Errorf("the cell's kubelet answered %s: %s", resp.Status, why)
	}
}
