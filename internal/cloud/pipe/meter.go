package pipe

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// Meter counts and times calls. Its methods must not block.
type Meter interface {
	// Intercept is an Interceptor. It gets each call that is sent to the cloud.
	Intercept(ctx context.Context, call Call, next Send) []Answer
	// CallWaits and CallWaited count a call that waits for its turn, until it gets the turn or its caller gives up.
	CallWaits(kind cloud.Call)
	CallWaited(kind cloud.Call, d time.Duration)
	// InstanceInterrupted counts a notice that the cloud takes an instance back.
	InstanceInterrupted()
}
