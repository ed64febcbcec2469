package podlogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/agentapi"
)

// FromCell fetches logs of a pod from its cell's kubelet, by way of the agent. What
// the kubelet refuses as a bad request is a *NoLogError: it has no such log. One that has
// just restarted does not know its pod yet, and is asked again.
func FromCell(conn agentapi.Conn, namespace, name string) Fetch {
	return func(ctx context.Context, container string, previous bool) (io.ReadCloser, error) {
		for {
			log, err := agentapi.Client{Conn: conn}.Logs(ctx, namespace, name, container, previous)
			var refused *agentapi.StatusError
			switch {
			case err == nil:
				return log, nil
			case errors.As(err, &refused) && refused.Code == http.StatusBadRequest:
				return nil, &NoLogError{Answer: refused.Text}
			}
			err = fmt.Errorf("ask the cell's kubelet: %w", err)
			if refused == nil || !agentapi.IsUnknownPod(refused.Code, refused.Text) {
				return nil, err
			}
			select {
			case <-time.After(askAgain):
			case <-ctx.Done():
				return nil, err
			}
		}
	}
}

// askAgain is when a kubelet is asked again that does not know its pod.
const askAgain = 500 * time.Millisecond
