package ec2

import (
	"encoding/json"
	"net/http"
	"strings"
)

// jsonService is a service whose calls and answers are JSON: EKS, EFS, and those of JSON 1.1, of which the model has one action each.
// They differ in their words.
type jsonService struct {
	name string // in policies
	// target and action are of JSON 1.1, where a header has one after the other; malformed is the code of a body that cannot be read.
	target, action, malformed string
	message                   string // the key of an error's text
}

// serveTarget answers a call of JSON 1.1.
func serveTarget[In any](m *callers, w http.ResponseWriter, r *http.Request, s jsonService, do func(*request, In) (any, error)) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), s.target)
	m.serveJSON(w, r, s, action, "*", func(call *request) (any, error) {
		if action != s.action {
			return nil, bad("UnknownOperationException", "%s", action)
		}
		var in In
		read := json.NewDecoder(r.Body)
		read.DisallowUnknownFields()
		if err := read.Decode(&in); err != nil {
			return nil, bad(s.malformed, "%v", err)
		}
		return do(call, in)
	})
}

// serveJSON answers a call of an action on a resource, if its caller may make it.
func (m *callers) serveJSON(w http.ResponseWriter, r *http.Request, s jsonService, action, resource string,
	do func(*request) (any, error)) {
	kind, forbidden := "application/json", http.StatusForbidden
	if s.target != "" {
		kind, forbidden = "application/x-amz-json-1.1", http.StatusBadRequest
	}
	body, err := m.model.Call(r.Context(), action, func() (_ any, err error) {
		call := &request{ctx: r.Context(), action: action}
		if call.caller, err = m.callerOf(r); err != nil {
			return nil, &apiError{forbidden, "UnrecognizedClientException", "The security token included in the request is invalid."}
		}
		if m.may(call, s.name+":"+action, resource, nil) != nil {
			return nil, &apiError{forbidden, "AccessDeniedException",
				"User: " + m.callerARN() + " is not authorized to perform: " + s.name + ":" + action + " on resource: " + resource}
		}
		return do(call)
	})
	w.Header().Set("Content-Type", kind)
	answer, is := body.(answered)
	if !is {
		answer = answered{http.StatusOK, body}
	}
	if err == nil && answer.body == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if err != nil {
		e := apiErrorOf(err)
		if e == nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Amzn-Errortype", e.code)
		answer = answered{e.status, map[string]string{"__type": e.code, s.message: e.message}}
	}
	w.WriteHeader(answer.status)
	_ = json.NewEncoder(w).Encode(answer.body) // or the caller is gone
}

// answered is an answer with a status of its own.
type answered struct {
	status int
	body   any
}
