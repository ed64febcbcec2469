package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// Kind is a kind of call.
type Kind = cloud.Call

const (
	KindCatalogue     = cloud.CallCatalogue
	KindLaunch        = cloud.CallLaunch
	KindList          = cloud.CallList
	KindDescribe      = cloud.CallDescribe
	KindTerminate     = cloud.CallTerminate
	KindStop          = cloud.CallStop
	KindStart         = cloud.CallStart
	KindInterruptions = Kind("interruptions") // the whole stream: who follows one sends no calls
	KindCreateDisk    = cloud.CallCreateDisk
	KindDeleteDisk    = cloud.CallDeleteDisk
	KindListDisks     = cloud.CallListDisks
	KindAttachDisk    = cloud.CallAttachDisk
	KindDetachDisk    = cloud.CallDetachDisk
	KindRoute         = cloud.CallRoute
	KindUnroute       = cloud.CallUnroute
	KindGrowDisk      = cloud.CallGrowDisk
	KindListOwned     = cloud.CallListOwned
	KindDeleteOwned   = cloud.CallDeleteOwned
	KindTag           = cloud.CallTag
	KindResolve       = cloud.CallResolve
	// AnyKind stands for all kinds.
	AnyKind Kind = ""
)

func checkKind(field string, k Kind) error {
	switch k {
	case KindCatalogue, KindLaunch, KindList, KindDescribe, KindTerminate, KindStop, KindStart, KindInterruptions,
		KindCreateDisk, KindDeleteDisk, KindListDisks, KindAttachDisk, KindDetachDisk, KindGrowDisk, KindRoute, KindUnroute,
		KindListOwned, KindDeleteOwned, KindTag, KindResolve, AnyKind:
		return nil
	}
	return fmt.Errorf("%s has the key %q: want a kind of call", field, k)
}

// Call is a call as it arrives. What it holds must not be modified.
type Call struct {
	Kind Kind
	// N counts the calls of this kind from 1, Total all calls.
	N, Total int
	Time     time.Time
	Launch   *cloud.LaunchRequest // of a launch
	IDs      []string             // of a termination, a stop, a start, a description, a tagging
	Owner    string               // of a list, a resolution
}

// Fault is what goes wrong with a call; the zero value is nothing. A call goes
// through its parts in their order.
type Fault struct {
	// Delay is added to the call's latency.
	Delay time.Duration
	// HangBefore lets the call do nothing until its ctx ends.
	HangBefore bool
	// Before is the answer; the call has no effect.
	Before error
	// Then is called when the call has had its effect, and before its answer is
	// under way: the moment to kill the caller at.
	Then func()
	// HangAfter keeps the answer back until the call's ctx ends.
	HangAfter bool
	// After takes the place of the answer.
	After error
}

func (f Fault) none() bool {
	return f.Delay == 0 && !f.HangBefore && f.Before == nil && f.Then == nil && !f.HangAfter && f.After == nil
}

// FaultRates are the shares of calls that meet each fault by chance; their sum
// is at most 1.
type FaultRates struct {
	Failed     float64 // answered with an error of no known cause; nothing done
	LostBefore float64 // the connection breaks before the effect
	LostAfter  float64 // the connection breaks after the effect
	HangBefore float64 // hangs until ctx ends; nothing done
	HangAfter  float64 // has its effect, then hangs until ctx ends
}

func (r FaultRates) validate(field string) error {
	sum := 0.0
	for _, p := range []float64{r.Failed, r.LostBefore, r.LostAfter, r.HangBefore, r.HangAfter} {
		if err := share(field, p); err != nil {
			return err
		}
		sum += p
	}
	return share("the sum of "+field, sum)
}

// Faults that happen by chance answer with these.
var (
	ErrInternal = errors.New("InternalError: an internal error has occurred")
	ErrLost     = errors.New("connection reset by the cloud")
	errClosed   = errors.New("the simulated cloud is closed")
	errAuth     = cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("AuthFailure: the credentials are not valid"))
)

func (r FaultRates) fault(x float64) Fault {
	for _, c := range []struct {
		p float64
		f Fault
	}{
		{r.Failed, Fault{Before: ErrInternal}},
		{r.LostBefore, Fault{Before: ErrLost}},
		{r.LostAfter, Fault{After: ErrLost}},
		{r.HangBefore, Fault{HangBefore: true}},
		{r.HangAfter, Fault{HangAfter: true}},
	} {
		if x < c.p {
			return c.f
		}
		x -= c.p
	}
	return Fault{}
}

// Outcome is how a call ended.
type Outcome string

const (
	OK           Outcome = "ok"
	Partial      Outcome = "partial"   // a launch that started not all
	NoCapacity   Outcome = "capacity"  // the others below started nothing, but for Lost
	OverQuota    Outcome = "quota"     //
	Throttled    Outcome = "throttled" //
	Unauthorised Outcome = "unauthorised"
	Mismatch     Outcome = "mismatch" // the token was used for another request
	Refused      Outcome = "refused"  // any other definite no
	Failed       Outcome = "failed"   // the caller cannot know that nothing was done
	Lost         Outcome = "lost"     // done, but the caller was not told
)

// errPartial marks a launch as Partial within the package; no caller sees it.
var errPartial = errors.New("partial")

func outcome(err error, done bool) Outcome {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, errPartial):
		return Partial
	case done:
		return Lost
	case errors.Is(err, cloud.ErrCapacity):
		return NoCapacity
	case errors.Is(err, cloud.ErrQuota):
		return OverQuota
	case errors.Is(err, cloud.ErrThrottled):
		return Throttled
	case errors.Is(err, cloud.ErrUnauthorised):
		return Unauthorised
	case errors.Is(err, cloud.ErrMismatch):
		return Mismatch
	case errors.Is(err, cloud.ErrRefused), errors.Is(err, cloud.ErrStale), errors.Is(err, cloud.ErrNotYet), errors.Is(err, cloud.ErrUnfit):
		return Refused
	}
	return Failed
}
