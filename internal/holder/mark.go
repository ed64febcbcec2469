package holder

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/sanitize"
)

// Annotation holds the mark, on the lease of Kip's node. What else there is in a lease is
// the node's own: the API server lets a node write it, and others read it.
const Annotation = "kip.elotl.co/holder"

const (
	// maxMark bounds what is read of a mark, in bytes, and maxWho of it what is shown.
	maxMark, maxWho = 4 << 10, 200
	// leaseSeconds is how long a node's lease holds, as a kubelet has it.
	leaseSeconds = 40
)

// mark says who has the node.
type mark struct {
	// ID is new each time that a Kip begins to hold the node.
	ID string `json:"id"`
	// After is the ID of the mark that was replaced by right of its store; "" where that
	// was another store's, or there was none.
	After string `json:"after,omitempty"`
	// Renewed counts how often it was written since it was new, on whichever lease.
	Renewed uint64 `json:"renewed"`
	// Term is the one by which cells know the holder.
	Term uint64 `json:"term,omitempty"`
	// Who is the holder, for people.
	Who string `json:"who,omitempty"`
}

// markOf returns the mark of a lease; nil where there is none, or nothing that a Kip
// wrote.
func markOf(l *coordinationv1.Lease) *mark {
	if l == nil {
		return nil
	}
	text := l.Annotations[Annotation]
	m := &mark{}
	if text == "" || len(text) > maxMark || json.Unmarshal([]byte(text), m) != nil || m.ID == "" {
		return nil
	}
	m.Who = sanitize.Printable(m.Who[:min(len(m.Who), maxWho)])
	return m
}

// look reads the lease, nil where there is none, and its mark.
func (h *Hold) look(ctx context.Context) (*coordinationv1.Lease, *mark, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	l, err := h.c.Leases.Get(ctx, h.c.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the lease of node %s: %w", h.c.Node, err)
	}
	return l, markOf(l), nil
}

// write puts a mark on a lease as it was read, or makes that. An error that crossed
// accepts says that the lease is another since.
func (h *Hold) write(ctx context.Context, read *coordinationv1.Lease, m mark) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if read == nil {
		_, err = h.c.Leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name:        h.c.Node,
				Namespace:   corev1.NamespaceNodeLease,
				Annotations: map[string]string{Annotation: string(text)},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       ptr.To(h.c.Node),
				LeaseDurationSeconds: ptr.To[int32](leaseSeconds),
				RenewTime:            &metav1.MicroTime{Time: h.c.Clock.Now()},
			},
		}, metav1.CreateOptions{})
	} else {
		l := read.DeepCopy()
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, Annotation, string(text))
		_, err = h.c.Leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("mark the lease of node %s: %w", h.c.Node, err)
	}
	h.last = m
	return nil
}

// crossed says that somebody else has written the lease since it was read. What is not
// found when the lease is made is its namespace: nobody has written that.
func crossed(err error, read *coordinationv1.Lease) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && read != nil
}

func newID() string { return rand.Text() }
