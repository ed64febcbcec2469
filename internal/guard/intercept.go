package guard

import (
	"context"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

// Intercept is a pipe.Interceptor. It sends only what may be destroyed, and answers everything else with a *HeldError. An end for which
// nobody has called Admit is unrequested.
func (g *Guard) Intercept(ctx context.Context, call pipe.Call, next pipe.Send) []pipe.Answer {
	switch call.Kind {
	case cloud.CallTerminate:
		return g.terminate(ctx, call, next)
	case cloud.CallDeleteDisk, cloud.CallDeleteOwned:
		if held := behind(g.whyBehind()); held != nil {
			return call.Fail(held)
		}
	}
	return next(ctx, call)
}

// terminate sends what may end of a CallTerminate.
func (g *Guard) terminate(ctx context.Context, call pipe.Call, next pipe.Send) []pipe.Answer {
	answers, places, ids := make([]pipe.Answer, len(call.IDs)), []int{}, []string{}
	for n, id := range call.IDs {
		if err := g.Admit(ctx, End{Instance: id, Why: "it is to be terminated"}, 0); err != nil {
			answers[n].Err = err
			continue
		}
		places, ids = append(places, n), append(ids, id)
	}
	if len(ids) == 0 {
		return answers
	}
	call.IDs = ids
	for n, answer := range next(ctx, call) {
		answers[places[n]] = answer
	}
	return answers
}
