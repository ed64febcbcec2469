//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// ca is what kipctl shows of the CAs.
func (s *space) ca() (is adminapi.CA, err error) {
	s.Helper()
	out, errs, err := s.kipctl(world.Socket, "ca", "-o", "json")
	if err != nil {
		return is, fmt.Errorf("kipctl ca: %w: %s%s", err, out, errs)
	}
	return is, json.Unmarshal([]byte(out), &is)
}

// servesAll proves that pods' logs and exec work.
func (s *space) servesAll(when string, names ...string) {
	s.Helper()
	for _, name := range names {
		s.Eventually(when+": exec in pod "+name, s.ExecTrue(name))
		s.Eventually(when+": the log of pod "+name, func(ctx context.Context) error {
			if log, code, errs := s.Attempt(ctx, "logs", name); code != 0 || log == "" {
				return fmt.Errorf("%q, exit %d, %s", log, code, errs)
			}
			return nil
		})
	}
}

// obeys proves by which of two CAs, whose keys the test has, the pods' cells know a Kip.
func (s *space) obeys(when string, cas pki.Authorities, signing, before bool, names ...string) {
	s.Helper()
	for _, name := range names {
		m := s.machine(name)
		for what, ca := range map[string]struct {
			*pki.Authority
			want bool
		}{"new": {cas.Signing, signing}, "old": {cas.Before, before}} {
			if answer, err := m.hears(s.T, ca.Authority); ca.want && err != nil || !ca.want && !isRefusal(err) {
				s.Errorf("%s, to a Kip by the %s CA the cell of pod %s answers %q, %v; want that it obeys: %t", when, what, name, answer, err, ca.want)
			}
		}
	}
}

// Not parallel: Kip begins its work anew, and is killed in each part of the rotation.
func TestPodsRunOnWhileTheCAIsRotatedAndKipIsKilled(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(counting("counter"))
	s.Apply(namespace.Sleeper("old"))
	before := map[string]*corev1.Pod{"counter": s.WaitReady("counter"), "old": s.WaitReady("old")}
	counted := s.counts("counter", 0)
	s.servesAll("before", "counter", "old")
	was, err := s.ca()
	if err != nil || was.Before != nil {
		t.Fatalf("before there are %+v, %v", was, err)
	}

	// As soon as it is stored.
	s.tells(world.Socket, "ca", "rotate")
	killKip(t)
	s.Apply(namespace.Sleeper("during"))
	startKip(t)
	before["during"] = s.WaitReady("during")
	s.Eventually("all cells know Kip by the new CA", func(context.Context) error {
		is, err := s.ca()
		switch {
		case err != nil:
			return err
		case is.Before == nil || is.Before.Hash != was.Signs.Hash || is.Signs.Hash == was.Signs.Hash:
			t.Fatalf("the CAs are %+v, and before the rotation there was %s", is, was.Signs.Hash)
		case len(is.Unmoved) > 0:
			return fmt.Errorf("these do not: %+v", is.Unmoved)
		}
		return nil
	})
	s.servesAll("while there are two", "counter", "old", "during")

	// When all cells are moved.
	killKip(t)
	cas := storedAuthorities(t, s.CellOf("old").Status.ControllerID)
	if cas.Before == nil || cas.Before.Hash() != was.Signs.Hash {
		t.Fatalf("stored are %v, want %s as the old one", cas.Hashes(), was.Signs.Hash)
	}
	s.obeys("while there are two", cas, true, true, "counter", "old")
	s.obeys("while there are two", cas, true, false, "during")
	if ud, _ := s.machine("during").userData(t); ud.CAHash != cas.Signing.Hash() {
		t.Errorf("what is launched in the rotation is told of %s", ud.CAHash)
	}
	startKip(t)
	s.servesAll("while there are two", "counter", "old", "during")

	reconfigure(t, map[string]any{"caOverlap": 10})
	s.Eventually("the old CA is dropped, and all cells know it", func(context.Context) error {
		is, err := s.ca()
		if err == nil && is.Before != nil {
			err = errors.New(is.Waits)
		}
		if err == nil && is.Untold > 0 {
			err = fmt.Errorf("%d cells may trust it yet", is.Untold)
		}
		return err
	})
	s.Apply(namespace.Sleeper("after"))
	before["after"] = s.WaitReady("after")
	s.servesAll("in the end", "counter", "old", "during", "after")
	s.obeys("in the end", cas, true, false, "counter", "old", "during", "after")

	// Cells are found by the new one alone.
	killKip(t)
	startKip(t)
	s.servesAll("to another Kip", "counter", "old", "during", "after")
	s.allUnmoved(before)
	s.counts("counter", counted)
	s.deleteAll("counter", "old", "during", "after")
}
