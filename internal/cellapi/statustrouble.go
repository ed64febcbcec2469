package cellapi

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/sanitize"
)

// statusTrouble knows what is wrong with the last status of the pod.
type statusTrouble struct {
	mu       sync.Mutex
	unstored string
}

// StatusTrouble is what is wrong with the last status of the pod that its kubelet sent: it was
// refused, or cut. It is "" when that is stored as it was sent.
func (c *statusTrouble) StatusTrouble() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unstored
}

// noteUnstored notes why Kip did not pass a status of the pod on; nil where it did.
func (c *statusTrouble) noteUnstored(err error) {
	if err == nil {
		return
	}
	// Another's pod, one that is gone, and a request that the kubelet gave up say nothing of the status.
	status := statusOf(err)
	if slices.Contains([]int32{http.StatusForbidden, http.StatusNotFound, http.StatusGatewayTimeout}, status.Code) {
		return
	}
	c.setUnstored("Kip refuses the pod's status: " + status.Message)
}

// noteStored notes how the API server answered a status of the pod, of which messages were cut.
func (c *statusTrouble) noteStored(answer *answered, cuts []string) {
	switch {
	case answer.code == http.StatusNotFound: // the pod is gone
	case answer.code >= http.StatusBadRequest:
		why := http.StatusText(answer.code)
		if status, err := decode[*metav1.Status](answer.body); err == nil {
			why = status.Message
		}
		c.setUnstored("the API server refuses the pod's status: " + why)
	case len(cuts) > 0:
		c.setUnstored("the pod's status is stored with messages cut: " + strings.Join(cuts, ", "))
	default:
		c.setUnstored("")
	}
}

func (c *statusTrouble) setUnstored(why string) {
	why = sanitize.Printable(cut(why, maxTrouble))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unstored = why
}
