package ec2

import (
	"encoding/json"
	"net/http"
	"strings"
)

// serveJSON answers a call of a service that speaks JSON 1.1: a header names the action after the service's target. message is the key of
// an error's text, which services spell differently.
func (m *Model) serveJSON(w http.ResponseWriter, r *http.Request, target, message string,
	call func(r *http.Request, action string) (any, error),
) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), target)
	m.count(action)
	answer, err := call(r, action)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if err != nil {
		e := apiErrorOf(err)
		if e == nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(e.status)
		answer = map[string]string{"__type": e.code, message: e.message}
	}
	_ = json.NewEncoder(w).Encode(answer) // or the caller is gone
}
