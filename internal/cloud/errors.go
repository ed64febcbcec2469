package cloud

import (
	"errors"
	"time"
)

// Cause is why a cloud did not do what it was asked, as far as a caller decides
// on it. Each is an error itself: match with errors.Is.
type Cause string

// Causes. The zero Cause is an unknown one.
const (
	ErrCapacity     Cause = "no capacity"
	ErrQuota        Cause = "quota exceeded"
	ErrThrottled    Cause = "throttled by the cloud"
	ErrUnauthorised Cause = "not authorised by the cloud"
	// ErrMismatch: the token was used for another request, whose instances may run.
	ErrMismatch Cause = "the token was used for another request"
	// ErrNotFound: there is no such disk or instance, or it does not run.
	ErrNotFound Cause = "not found in the cloud"
	// ErrTogether: there is no room for the machines of one call together. Each by itself
	// may be launched all the same.
	ErrTogether Cause = "no room for several in one call"
	// ErrStale: what the launch was resolved to is not there any more, or the cloud does not take it.
	// It is to be resolved and launched anew, with another token.
	ErrStale Cause = "what the launch was resolved to does not hold"
	// ErrNotYet: what the launch needs is there, and not known to all of the cloud yet. The
	// same call succeeds later.
	ErrNotYet Cause = "not known to all of the cloud yet"
	// ErrUnfit: what the operator has configured does not go together with what is to be launched.
	// No offer and no pod is at fault; the same call succeeds once the configuration is fixed. Where
	// Launch returns it, the next Resolve of the same does, too.
	ErrUnfit Cause = "the configuration does not fit"
	// ErrUnexplained: the cloud did not do it, for a reason that Kip does not know: a code that is
	// newer than Kip. It may be in what the cloud has, or in what was asked for. The error may have
	// had an effect, unless it says NothingDone.
	ErrUnexplained Cause = "for a reason that Kip does not know"
	// ErrRefused is for every other definite no: the cloud understood the request
	// and did nothing.
	ErrRefused Cause = "refused by the cloud"
)

// Error makes each cause an error.
func (c Cause) Error() string { return string(c) }

// Scope says what an error is about. Empty fields stand for all: a subnet without
// free addresses can take no type. A Scope that is all empty says nothing.
type Scope struct {
	InstanceType string
	// Family is the one of catalog.InstanceType by which quotas are counted.
	Family string
	// ByCPU says that what is short is counted in vCPU, so that types with fewer may fit yet.
	ByCPU  bool
	Zone   string
	Subnet string
	// Spot is nil where it does not matter.
	Spot *bool
	// Pool is the one of LaunchSpec of which InstanceType is meant.
	Pool string
	// Account says that all of the account is meant, in this region.
	Account bool
	// Disks says that the account is short of room for disks. All types need the same room. A
	// smaller disk may still fit.
	Disks bool
}

// Says reports whether anything is said.
func (s Scope) Says() bool { return s != Scope{} }

func (s Scope) String() string {
	what := s.InstanceType
	if what == "" && s.Family != "" {
		what = "instances of family " + s.Family
	}
	if what == "" && s.Disks {
		what = "disks"
	}
	if what == "" {
		what = "instances"
	}
	if s.Spot != nil {
		what = map[bool]string{false: "on-demand ", true: "spot "}[*s.Spot] + what
	}
	switch s.Pool {
	case "":
	case string(Dedicated):
		what += " as dedicated instances"
	default:
		what += " of reservation " + s.Pool
	}
	for _, place := range []string{s.Zone, s.Subnet} {
		if place != "" {
			what += " in " + place
		}
	}
	if s.Account {
		what += " of the account"
	}
	return what
}

// Error is what a cloud says when it does not do what it was asked.
type Error struct {
	Cause Cause
	Scope Scope
	// RetryAfter is how long the cloud says that it goes on; 0 if it does not.
	RetryAfter time.Duration
	// NothingDone says that the call surely had no effect. A driver sets it only
	// where the cloud says so: a throttled call may have started machines.
	NothingDone bool
	// Catalogue says that the cloud's catalogue has changed with this answer: it is worth reading now.
	Catalogue bool
	// Err is the cloud's own; may be nil.
	Err error
}

// No is a definite no, of which nothing came.
func No(cause Cause, scope Scope, err error) *Error {
	return &Error{
		Cause:       cause,
		Scope:       scope,
		NothingDone: true,
		Err:         err,
	}
}

func (e *Error) Error() string {
	text := string(e.Cause)
	if e.Scope.Says() {
		if text == "" {
			text = "failed"
		}
		text += " for " + e.Scope.String()
	}
	if e.Err != nil {
		if text != "" {
			text += ": "
		}
		text += e.Err.Error()
	}
	return text
}

// Unwrap lets errors.Is match the cause and the cloud's own error.
func (e *Error) Unwrap() []error {
	var all []error
	if e.Cause != "" {
		all = append(all, e.Cause)
	}
	if e.Err != nil {
		all = append(all, e.Err)
	}
	return all
}

// CauseOf is the cause of an error; "" for an unknown one.
func CauseOf(err error) Cause {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Cause
	}
	cause, _ := errors.AsType[Cause](err)
	return cause
}

// ScopeOf is what an error is about; empty where it does not say.
func ScopeOf(err error) Scope {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Scope
	}
	return Scope{}
}

// NothingDone says that a call that ended with err surely had no effect: an *Error
// says it, and a bare ErrCapacity, ErrQuota, ErrUnauthorised, ErrNotFound, ErrTogether, ErrStale,
// ErrNotYet, ErrUnfit or ErrRefused is short for one that does. An error that nobody classified does not, since an
// answer may have been lost after its effect.
func NothingDone(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.NothingDone
	}
	switch CauseOf(err) {
	case ErrCapacity, ErrQuota, ErrUnauthorised, ErrNotFound, ErrTogether, ErrStale, ErrNotYet, ErrUnfit, ErrRefused:
		return true
	}
	return false
}

// Refused says that err is a cloud's definite no, which the same call will get
// again: nothing was done, and it was neither only throttled nor too early, nor is it the
// configuration that is to be mended.
func Refused(err error) bool {
	return NothingDone(err) && !errors.Is(err, ErrThrottled) && !errors.Is(err, ErrNotYet) && !errors.Is(err, ErrUnfit)
}
