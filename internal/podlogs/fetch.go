package podlogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/elotl/kip/internal/agentapi"
)

// FromCell fetches logs of a pod from its cell's kubelet, by way of the agent. What
// the kubelet refuses as a bad request is a *NoLogError: it has no such log. (Not
// found is an ordinary error: a kubelet that has just restarted does not know its
// pod yet.)
func FromCell(conn agentapi.Conn, namespace, name string) Fetch {
	return func(ctx context.Context, container string, previous bool) (io.ReadCloser, error) {
		log, err := agentapi.Client{Conn: conn}.Logs(ctx, namespace, name, container, previous)
		var refused *agentapi.StatusError
		switch {
		case err == nil:
			return log, nil
		case errors.As(err, &refused) && refused.Code == http.StatusBadRequest:
			return nil, &NoLogError{Answer: refused.Text}
		}
		return nil, fmt.Errorf("ask the cell's kubelet: %w", err)
	}
}
