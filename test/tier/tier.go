// Package tier declares which tests belong to `make test-all` alone. It owns
// the reason of such a skip, and decides nothing else.
package tier

import "testing"

// Reason is why a test of `make test-all` does not run in `make test`. The
// summary of a run counts these skips instead of listing them.
const Reason = "runs in make test-all"

// All declares that a test belongs to `make test-all` and not to `make test`,
// which passes -short. Call it first: it skips the test if -short is set.
func All(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip(Reason)
	}
}
