package cellapi

import (
	"context"
	"net/http"
	"runtime"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// All cells share what the API server lets one user ask at the same time, and Kip's
// processors. Who waits is served in the order of coming. Since a cell has only so
// many turns of its own at the same time, that is fair between cells.
const (
	passedAtOnce, passedOfOne = 64, 4
	workedOfOne               = 1
)

// workedAtOnce leaves half of the processors to the rest of Kip.
func workedAtOnce() int64 { return int64(max(1, runtime.GOMAXPROCS(0)/2)) }

// work waits for the cell's turn to have something computed, which rest ends.
func (c *limits) work(ctx context.Context) (rest func(), err error) {
	done, err := c.server.working.Take(ctx, c)
	if err != nil {
		return func() {}, apierrors.NewTimeoutError("the client went away", 1)
	}
	began := c.server.clock.Now()
	return sync.OnceFunc(func() {
		done()
		now := c.server.clock.Now()
		c.budget.workedFor(now, now.Sub(began))
	}), nil
}

// worksAgain has a request that has waited for others take its turn again, if it had one.
func (c *limits) worksAgain(ctx context.Context, w http.ResponseWriter) error {
	out, ok := w.(*counted)
	if !ok || !out.works {
		return nil
	}
	var err error
	out.rest, err = c.work(ctx)
	return err
}

// rests ends the work on a request that is going to wait for others.
func rests(w http.ResponseWriter) {
	if c, ok := w.(*counted); ok {
		c.rest()
	}
}
