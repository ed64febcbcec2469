package nodes

import (
	"context"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/node"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// access finds out which nodes Kip may serve.
type access struct {
	c        Config
	nodes    *registry
	failures failures
	again    time.Duration // the wait before a question that was not answered is asked again
}

// leaveOut notes that a node is not Kip's now: it knows nothing of its pods.
func (a *access) leaveOut(s *served, now rights) {
	a.nodes.setRights(s, now)
	a.nodes.pods.Remove(s.name)
	s.settle()
	a.nodes.LookSoon()
}

// rightsRetry is how often it is looked whether missing rights are there.
const rightsRetry = time.Minute

// await waits until Kip may serve a node, or ctx ends.
func (a *access) await(ctx context.Context, s *served) {
	for said := ""; ctx.Err() == nil; {
		retry := rightsRetry
		state, why, err := a.barred(ctx, s)
		if err == nil && state == rightsHeld {
			break
		}
		if err != nil {
			why, retry = err.Error(), a.again
		}
		switch {
		case ctx.Err() != nil:
			return
		case why == said:
		case err != nil:
			a.c.Log.Warn("whether Kip may serve a virtual node is not known, asking again", "node", s.name, "err", err)
		default:
			a.c.Log.Error("a virtual node cannot be served", "node", s.name, "why", why)
			a.leaveOut(s, state)
		}
		said = why
		select {
		case <-ctx.Done():
			return
		case <-a.c.Clock.After(retry):
		}
	}
	if ctx.Err() != nil {
		return
	}
	if a.nodes.setRights(s, rightsHeld) != rightsUnknown {
		a.c.Log.Info("a virtual node can be served now", "node", s.name)
		if err := a.nodes.pods.Add(s.name, s.informer); err != nil {
			a.failures.unless(ctx, err)
			return
		}
	}
}

// barred says whether Kip may serve a node, and why not: it lacks a right, or a machine
// or another Kip has the name, whose pods are its own. The error is that there was no
// answer.
func (a *access) barred(ctx context.Context, s *served) (state rights, why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if e, _ := a.nodes.entryOf(s.name); s.number == 0 && !e.Removed {
		return rightsHeld, "", nil // Kip is of no use without: what fails ends it
	}
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "impersonate", Resource: "users", Name: "system:node:" + s.name},
		{Verb: "patch", Resource: "nodes", Name: s.name},
		{Verb: "delete", Resource: "nodes", Name: s.name},
	} {
		answer, err := a.c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right},
		}, metav1.CreateOptions{})
		if err != nil {
			return rightsUnknown, "", fmt.Errorf("ask whether Kip may %s %s %s: %w", right.Verb, right.Resource, right.Name, err)
		}
		if !answer.Status.Allowed {
			return rightsMissing, fmt.Sprintf("Kip has no right to %s %s %s: raise nodeCount of the Helm chart, or name the node in its ClusterRole",
				right.Verb, right.Resource, right.Name), nil
		}
	}
	there, err := a.c.Client.CoreV1().Nodes().Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return rightsHeld, "", nil
	case err != nil:
		return rightsUnknown, "", fmt.Errorf("look whose node %s is: %w", s.name, err)
	}
	if err := node.Foreign(there, a.c.ControllerID); err != nil {
		return rightsForeign, err.Error(), nil
	}
	return rightsHeld, "", nil
}
