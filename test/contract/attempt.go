package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/elotl/kip/internal/cloud/cloudtest"
)

// attempt is one run of a check: a test without go test, whose failure is an answer.
type attempt struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	why      []string // it failed
	skipped  string   // why there was nothing to check
	cleanups []func()
}

var _ cloudtest.T = (*attempt)(nil)

// try runs a check to its end.
func try(ctx context.Context, check func(cloudtest.T)) *attempt {
	a := &attempt{}
	a.ctx, a.cancel = context.WithCancel(ctx)
	defer a.cancel()
	a.do(func() { check(a) })
	a.cancel()
	for n := len(a.cleanups); n > 0; n = len(a.cleanups) {
		cleanup := a.cleanups[n-1]
		a.cleanups = a.cleanups[:n-1]
		a.do(cleanup)
	}
	return a
}

// do runs one part, which may end itself. What a driver panics at is told, and ends not what
// cleans up.
func (a *attempt) do(part func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if said := recover(); said != nil {
				a.Errorf("panicked: %v\n%s", said, debug.Stack())
			}
		}()
		part()
	}()
	<-ended
}

// failure is why the check failed; "" where it did not.
func (a *attempt) failure() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.why, "; ")
}

func (a *attempt) Helper()                  {}
func (a *attempt) Context() context.Context { return a.ctx }

func (a *attempt) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

func (a *attempt) Error(args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.why = append(a.why, strings.TrimSpace(fmt.Sprintln(args...)))
}

func (a *attempt) Errorf(format string, args ...any) { a.Error(fmt.Sprintf(format, args...)) }

func (a *attempt) Fatal(args ...any) {
	a.Error(args...)
	runtime.Goexit()
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	runtime.Goexit()
}

func (a *attempt) Skip(args ...any) {
	a.mu.Lock()
	a.skipped = strings.TrimSpace(fmt.Sprintln(args...))
	a.mu.Unlock()
	runtime.Goexit()
}
