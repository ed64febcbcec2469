package kip

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/events"
)

func TestKipWorksWithoutTheDefinitionOfCells(t *testing.T) {
	definition := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	missing := apierrors.NewNotFound(definition, "cells.kip.elotl.co")
	for what, tc := range map[string]struct {
		answers []error // of one check after the other; the last one stays
		// After the first answer:
		held bool // the parts after the mirror wait
		// In the end:
		mirrors bool
		said    []string
	}{
		"there":                     {answers: []error{nil}, mirrors: true},
		"the API server is away":    {answers: []error{errors.New("connection refused"), nil}, held: true, mirrors: true},
		"not served yet":            {answers: []error{crd.ErrNotServed, nil}, mirrors: true},
		"missing":                   {answers: []error{missing}, said: []string{"not found"}},
		"missing, and comes":        {answers: []error{missing, missing, nil}, mirrors: true, said: []string{"not found"}},
		"older":                     {answers: []error{&crd.OlderError{Has: 1, Wants: 2}}, mirrors: true, said: []string{"1, older than 2"}},
		"Kip may not read it":       {answers: []error{apierrors.NewForbidden(definition, "", nil)}, mirrors: true, said: []string{"forbidden"}},
		"away, and then is missing": {answers: []error{errors.New("EOF"), missing}, held: true, said: []string{"not found"}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				asked := 0
				var answered atomic.Bool
				var said []string
				mirrors := make(chan bool, 1)
				go func() {
					mirrors <- awaitCRD(ctx, crdWait{
						check: func(context.Context) error {
							asked++
							return tc.answers[min(asked, len(tc.answers))-1]
						},
						clock:    clock.RealClock{},
						answered: func() { answered.Store(true) },
						say: func(e events.Event) {
							if e.Reason != events.CellDefinitionUnfit || !strings.Contains(e.Message, "kipctl crd update") {
								t.Errorf("it says %+v", e)
							}
							said = append(said, e.Message)
						},
						log: slog.New(slog.DiscardHandler),
					})
				}()
				synctest.Wait()
				if answered.Load() == tc.held {
					t.Errorf("what comes after the mirror may start: %v", answered.Load())
				}
				time.Sleep(time.Hour)
				cancel()
				if got := <-mirrors; got != tc.mirrors {
					t.Errorf("cells are mirrored: %v, want %v", got, tc.mirrors)
				}
				if !slices.EqualFunc(said, tc.said, strings.Contains) || !answered.Load() {
					t.Errorf("it says %q, want %q; answered: %v", said, tc.said, answered.Load())
				}
			})
		})
	}
}
