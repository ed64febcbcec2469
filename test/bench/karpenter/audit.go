package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// written is long enough for the API server to write what it has answered.
const written = 10 * time.Second

// errNoMark says that an audit log does not reach to the end of the window.
var errNoMark = errors.New("this program's requests are not in it: want the log of this API server")

// requests are those that the API server answered in the window.
type requests struct {
	// Total leaves out those of this program.
	Total  int     `json:"total"`
	PerPod float64 `json:"per_pod"`
	// Clients make them, the busiest first.
	Clients []client `json:"clients"`
}

type client struct {
	// User is whom the request is made as: the impersonated one, if there is one.
	User string `json:"user"`
	// Agent is the user agent up to its first slash or space.
	Agent     string         `json:"agent"`
	Requests  int            `json:"requests"`
	PerPod    float64        `json:"per_pod"`
	Conflicts int            `json:"conflicts"` // answered 409
	Kinds     map[string]int `json:"kinds"`     // by verb and resource
}

// event is what is used of an audit event (audit.k8s.io/v1).
type event struct {
	Stage, Verb, UserAgent string
	User, ImpersonatedUser struct{ Username string }
	ObjectRef              struct{ Resource, Subresource, Name string }
	ResponseStatus         struct{ Code int }
}

// answered says whether this stage of a request is the one that counts it: a
// watch has two.
func (e event) answered() bool {
	if e.Verb == "watch" {
		return e.Stage == "ResponseStarted"
	}
	return e.Stage == "ResponseComplete" || e.Stage == "Panic"
}

func (e event) agent() string {
	if i := strings.IndexAny(e.UserAgent, "/ "); i >= 0 {
		return e.UserAgent[:i]
	}
	return e.UserAgent
}

// readRequests counts the requests between two marks in an audit log.
func readRequests(ctx context.Context, path, from, to string, pods int) (requests, error) {
	var r requests
	var last error
	// The API server answers before it writes that it did.
	err := wait.PollUntilContextTimeout(ctx, poll, written, true, func(context.Context) (bool, error) {
		f, err := os.Open(path)
		if err != nil {
			return false, err
		}
		defer f.Close()
		r, last = countRequests(f, from, to, pods)
		if errors.Is(last, errNoMark) {
			return false, nil
		}
		return last == nil, last
	})
	if err != nil {
		return r, fmt.Errorf("read audit log %s: %w", path, cmp.Or(last, err))
	}
	return r, nil
}

func countRequests(in io.Reader, from, to string, pods int) (requests, error) {
	clients := map[[2]string]*client{}
	var r requests
	inside, ended := false, false
	lines := bufio.NewReader(in)
	for !ended {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // what is left has no end yet
		}
		if err != nil {
			return r, err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return r, fmt.Errorf("event %q: %w", line, err)
		}
		if e.agent() == agent {
			switch e.ObjectRef.Name {
			case from:
				inside = true
			case to:
				ended = inside
			}
			continue
		}
		if !inside || !e.answered() {
			continue
		}
		user := cmp.Or(e.ImpersonatedUser.Username, e.User.Username)
		key := [2]string{user, e.agent()}
		c := clients[key]
		if c == nil {
			c = &client{User: user, Agent: e.agent(), Kinds: map[string]int{}}
			clients[key] = c
		}
		c.Requests++
		r.Total++
		if e.ResponseStatus.Code == http.StatusConflict {
			c.Conflicts++
		}
		kind := e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			kind += "/" + e.ObjectRef.Subresource
		}
		c.Kinds[strings.TrimSpace(kind)]++
	}
	if !ended {
		return r, errNoMark
	}
	r.PerPod = float64(r.Total) / float64(pods)
	for c := range maps.Values(clients) {
		c.PerPod = float64(c.Requests) / float64(pods)
		r.Clients = append(r.Clients, *c)
	}
	slices.SortFunc(r.Clients, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.User, b.User), cmp.Compare(a.Agent, b.Agent))
	})
	return r, nil
}
