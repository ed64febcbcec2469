package cellapi

import (
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// base is what all parts of a cell's API share: whose it is, and what that may ask.
type base struct {
	*limits
	as *identity // of the virtual node that its kubelet believes to be
}

// forbidden refuses what was asked; why, when not empty, says what is allowed.
func (c *base) forbidden(a *ask, why string) error {
	message := fmt.Sprintf("cell %s may not %s", c.id, a)
	if why != "" {
		message += ": " + why
	}
	return c.refused(a.resource.GroupResource(), a.Name, message)
}

func (c *base) refused(resource schema.GroupResource, name, message string) error {
	c.noteRefusal(Forbidden, "", message)
	return apierrors.NewForbidden(resource, name, fmt.Errorf("%s", message))
}

// served says why nothing is answered; nil when it is.
func (c *base) served() error {
	switch {
	case c.server.tasks.Lifetime().Err() != nil:
		return apierrors.NewTooManyRequests("Kip is stopping", 1)
	case c.lifetime.Err() != nil:
		return c.refused(schema.GroupResource{}, "", fmt.Sprintf("cell %s has been removed", c.id))
	}
	return nil
}

// read answers get, list and watch with rd.
func (c *base) read(w http.ResponseWriter, r *http.Request, rd *reader, a *ask) error {
	rd.worked = func(began time.Time) {
		now := c.server.clock.Now()
		c.budget.workedFor(now, now.Sub(began))
	}
	switch a.Verb {
	case "get":
		return rd.get(w, r, a.Name)
	case "list":
		return rd.list(w, r)
	default:
		return rd.watch(w, r)
	}
}
