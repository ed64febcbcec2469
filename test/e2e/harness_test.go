//go:build e2e

package e2e

import (
	"testing"

	"github.com/elotl/kip/test/namespace"
)

// How long anything may take, and how many times is looked for what must not be.
const (
	patience = namespace.Patience
	looks    = namespace.Looks
)

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

// newSpace makes a namespace that is removed, with its pods and their cells, when
// the test ends.
func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{namespace.New(t, world)}
}
