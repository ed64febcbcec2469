package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// apiError is an answer of EC2's that is no success.
type apiError struct {
	status        int
	code, message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func bad(code, format string, args ...any) error {
	return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// dryRun is the answer to a call that would have succeeded, and was to have no effect.
var dryRun = &apiError{http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set."}

var errStranger = &apiError{http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials"}

// apiErrorOf is what EC2 says of an error of the machines; nil for nothing at all.
func apiErrorOf(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	code, hasCode := errors.AsType[sim.Code](err)
	switch {
	case errors.Is(err, sim.ErrLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil
	case errors.Is(err, cloud.ErrThrottled):
		return &apiError{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}
	case errors.Is(err, cloud.ErrMismatch):
		return &apiError{http.StatusBadRequest, "IdempotentParameterMismatch", "The request uses the same client token as a previous, but non-identical request."}
	case errors.Is(err, cloud.ErrUnauthorised):
		return errStranger
	case code == sim.CodeVCPULimit && cloud.ScopeOf(err).Spot != nil && *cloud.ScopeOf(err).Spot:
		return &apiError{http.StatusBadRequest, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"}
	case code == sim.CodeInsufficientCapacity:
		return &apiError{http.StatusInternalServerError, string(code), err.Error()}
	case hasCode:
		return &apiError{http.StatusBadRequest, string(code), err.Error()}
	case errors.Is(err, cloud.ErrRefused):
		return &apiError{http.StatusBadRequest, "InvalidParameterValue", err.Error()}
	}
	return &apiError{http.StatusInternalServerError, "InternalError", "An internal error has occurred"}
}
