package pipe

import (
	"context"
	"fmt"

	"github.com/elotl/kip/internal/cloud"
)

// unfenced are the kinds of calls that a Kip may make that does not lead any more. A kind that is not listed is fenced.
var unfenced = map[cloud.Call]bool{
	// They read.
	cloud.CallCatalogue:     true,
	cloud.CallList:          true,
	cloud.CallDescribe:      true,
	cloud.CallListDisks:     true,
	cloud.CallCheckDisk:     true,
	cloud.CallListOwned:     true,
	cloud.CallConsole:       true,
	cloud.CallInterruptions: true,
	cloud.CallEgress:        true,
	cloud.CallBounds:        true,

	cloud.CallLaunch:          true, // it was stored before, which only the leader can
	cloud.CallStart:           true, // takes nothing away
	cloud.CallCreateDisk:      true, // takes nothing away, and is idempotent
	cloud.CallGrowDisk:        true, // takes nothing away; a second call for the same size does nothing
	cloud.CallTag:             true, // writes tags for people
	cloud.CallResolve:         true, // looks up what all launches share
	cloud.CallPullCredentials: true, // lends a right to read
	cloud.CallEndBoost:        true, // takes what no cell is to have for good; a second call does nothing
}

// fence sends a call that destroys, or that takes what another Kip may have given elsewhere since, only if this process surely
// leads: leads returns an error unless it does. It asks after every wait of the call, and again each time that the call is
// repeated: nobody can know what has happened since.
func fence(leads func(context.Context) error) Interceptor {
	return func(ctx context.Context, call Call, next Send) []Answer {
		if unfenced[call.Kind] {
			return next(ctx, call)
		}
		if err := leads(ctx); err != nil {
			return call.Fail(fmt.Errorf("it is not certain that this Kip leads still, so nothing ends, and no disk or route moves: %w", err))
		}
		return next(ctx, call)
	}
}
