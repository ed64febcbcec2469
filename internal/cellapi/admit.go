package cellapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/elotl/kip/internal/agentapi"
)

// admission lets requests in, each with its body.
type admission struct {
	*base
	pod *boundPod
}

// bodyLimit is the largest body that is read for a resource; 0 for what is only read.
// A larger one is no kubelet's: messages are long before they are cut.
func (c *admission) bodyLimit(a *ask) int64 {
	switch a.resource {
	case podKind.Resource:
		switch {
		case a.isPodStatus():
			return int64(c.budget.allowed().status)
		case a.Verb == "create":
			return 256 << 10 // a mirror pod
		}
		return 8 << 10 // options of a deletion
	case nodeKind.Resource:
		// 50 images of 5 names (k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1/defaults.go,
		// NodeStatusMaxImages; pkg/kubelet/nodestatus/setters.go, MaxNamesPerImageInNodeStatus), each of
		// a host, a repository of 255 bytes, a tag of 128 and a digest.
		return 256 << 10
	case csiNodeKind.Resource:
		return 16 << 10
	case coreEvents, groupEvents, claims:
		return 256 << 10
	case leaseKind.Resource:
		return leaseBody
	case serviceAccounts:
		return 8 << 10
	case imageCredentials:
		return agentapi.MaxImage + 1<<10 // with what is around the name
	}
	return 0
}

// admit charges a request that was understood, and limits its body.
func (c *admission) admit(w http.ResponseWriter, r *http.Request, a *ask) (done func(), err error) {
	most := c.bodyLimit(a)
	bytes := r.ContentLength
	switch {
	case bytes > most && most > 0:
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the limit is %d bytes", most))
	case bytes < 0 || bytes > most:
		bytes = most
	}
	watches := openWatches + c.pod.references()
	if done, err = c.budget.take(a.Verb == "watch", bytes, watches); err != nil {
		return nil, err
	}
	if err := c.pays(r.Context(), a, int(bytes)); err != nil {
		done()
		return nil, err
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	return done, nil
}

// pays waits until the cell has paid for its earlier requests, and charges the bytes of a body.
func (c *admission) pays(ctx context.Context, a *ask, bytes int) error {
	b := c.budget
	// A lease says that the cell lives, whatever else it does.
	if a.resource != leaseKind.Resource {
		if err := c.paced(ctx, nil, b.answered, 0, limitAnswered, "a cell is answered %d bytes a second", int(b.answered.Limit())); err != nil {
			return err
		}
		work := time.Duration(b.worked.Limit()) * time.Microsecond
		if err := c.paced(ctx, nil, b.worked, 0, limitWork, "Kip works %v a second for a cell", work); err != nil {
			return err
		}
	}
	if bytes == 0 {
		return nil
	}
	return c.paced(ctx, nil, b.sent, bytes, limitSent, "a cell may send %d bytes a second", int(b.sent.Limit()))
}

// receive reads the body of a request that was admitted, all of it and in time, and
// then waits for a turn to work on it.
func (c *admission) receive(w *counted, r *http.Request) error {
	if err := c.await(w, r); err != nil {
		return err
	}
	var err error
	w.rest, err = c.work(r.Context())
	w.works = true
	return err
}

// await reads all of a body, in time.
func (c *admission) await(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	// The network's time is the real one. A reader that knows no deadline leaves it
	// to the transport's own limits.
	_ = control.SetReadDeadline(time.Now().Add(readWithin))
	b, err := readBody(r)
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return nil
}
