//go:build e2e

package aws

import (
	"context"
	"fmt"
	"slices"

	"github.com/elotl/kip/dev/cloudmodel"
)

// killAt does what makes Kip call EC2, and has Kip die at the next call of each of these actions, in
// whatever order they come. Each has worked by then and its answer is lost, if after says so; else it
// has not been carried out.
func (s *space) killAt(after bool, do func(), actions ...string) {
	s.Helper()
	before := len(s.state(s.Context()).Hung)
	for _, action := range actions {
		s.order("hang", cloudmodel.Hang{Action: action, Nth: 1, After: after})
	}
	do()
	var hung []string
	for len(hung) < len(actions) {
		s.Eventually(fmt.Sprintf("Kip calls EC2, and hangs: of %v it has died at %v", actions, hung), func(ctx context.Context) error {
			now := s.state(ctx).Hung[before:]
			if len(now) == len(hung) {
				return fmt.Errorf("it has died at %v", now)
			}
			return nil
		})
		if err := world.KillKip(s.Context()); err != nil {
			s.Fatal(err)
		}
		hung = s.state(s.Context()).Hung[before:]
		if err := world.StartKip(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
	if slices.Sort(hung); !slices.Equal(hung, slices.Sorted(slices.Values(actions))) {
		s.Errorf("Kip has died at %v, want %v", hung, actions)
	}
}
