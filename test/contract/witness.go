package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// witness sees what an endpoint answers. What it throttles, which has done nothing, is sent again.
type witness struct {
	next          http.RoundTripper
	again, within time.Duration // between two tries, and for how long

	mu         sync.Mutex
	calls      map[string]int    // by action
	unanswered map[string]string // what was said to an action that the endpoint does not have
}

func newWitness(again, within time.Duration) *witness {
	return &witness{
		next:       http.DefaultTransport,
		again:      again,
		within:     within,
		calls:      map[string]int{},
		unanswered: map[string]string{},
	}
}

// Bounds in bytes of what is looked at: a call has 16 KiB of user data, an error is short.
const (
	maxCall  = 1 << 20
	maxError = 64 << 10
)

// RoundTrip implements http.RoundTripper.
func (w *witness) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(io.LimitReader(r.Body, maxCall))
		r.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("read the call: %w", err)
		}
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fmt.Errorf("read the call: %w", err)
	}
	action := values.Get("Action")
	w.mu.Lock()
	w.calls[action]++
	w.mu.Unlock()
	for until := time.Now().Add(w.within); ; {
		answer, said, err := w.send(r, body)
		if err != nil || answer.StatusCode < http.StatusBadRequest {
			return answer, err
		}
		if throttled(said) && time.Now().Before(until) {
			select {
			case <-time.After(w.again):
				continue
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		if no := notAnswered(answer.StatusCode, said); no != "" {
			w.mu.Lock()
			w.unanswered[action] = no
			w.mu.Unlock()
		}
		return answer, nil
	}
}

// send sends a call once, and reads what is said where that is an error.
func (w *witness) send(r *http.Request, body []byte) (answer *http.Response, said []byte, err error) {
	sent := r.Clone(r.Context())
	sent.Body, sent.GetBody = io.NopCloser(bytes.NewReader(body)), nil
	answer, err = w.next.RoundTrip(sent)
	if err != nil || answer.StatusCode < http.StatusBadRequest {
		return answer, nil, err
	}
	said, err = io.ReadAll(io.LimitReader(answer.Body, maxError))
	answer.Body.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("read an answer of %s: %w", r.URL.Host, err)
	}
	answer.Body = io.NopCloser(bytes.NewReader(said))
	return answer, said, nil
}

// throttled says that a call came too soon: EC2 lets more in each second.
func throttled(body []byte) bool {
	var said ec2Error
	return xml.Unmarshal(body, &said) == nil && said.Code == "RequestLimitExceeded"
}

// ec2Error is an error in EC2's words.
type ec2Error struct {
	Code    string `xml:"Errors>Error>Code"`
	Message string `xml:"Errors>Error>Message"`
}

// unknownActions are the codes by which AWS' services and those that speak like them say that
// they do not have an action. Source: EC2 API reference, "Error codes for the Amazon EC2 API".
var unknownActions = []string{"InvalidAction", "UnknownOperationException", "NotImplemented", "NotImplementedException"}

// notAnswered says by what an endpoint told that it cannot answer a call; "" where it did not.
// One that fails with no error of EC2's does not have what was asked, or falls over it: neither
// is an answer. What stands before an endpoint says 502, 503 and 504, and nothing of it.
func notAnswered(status int, body []byte) string {
	var said ec2Error
	if err := xml.Unmarshal(body, &said); err == nil && said.Code != "" {
		if status == http.StatusNotImplemented || slices.Contains(unknownActions, said.Code) {
			return said.Code + ": " + said.Message
		}
		return ""
	}
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusInternalServerError, http.StatusNotImplemented:
		return fmt.Sprintf("HTTP %d, and no answer of EC2's", status)
	}
	return ""
}

// forget begins anew.
func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.calls)
	clear(w.unanswered)
}

// count is how many calls of an action there were.
func (w *witness) count(action string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[action]
}

// cannot is what the endpoint cannot answer; "" where it answered everything.
func (w *witness) cannot() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, action := range slices.Sorted(maps.Keys(w.unanswered)) {
		all = append(all, action+": "+w.unanswered[action])
	}
	return strings.Join(all, "; ")
}
