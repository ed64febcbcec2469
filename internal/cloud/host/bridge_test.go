package host

import (
	"testing"
)

func TestDroppedForwardingIsSeen(t *testing.T) {
	for rules, want := range map[string]bool{
		"-P FORWARD ACCEPT\n":                                       false,
		"-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n":              true,
		"-P FORWARD DROP\n-A FORWARD -i kip0 -o kip0 -j ACCEPT\n":   false,
		"-P FORWARD DROP\n-A FORWARD -i kip01 -o kip01 -j ACCEPT\n": true,
	} {
		if got := forwardDropped(rules, "kip0"); got != want {
			t.Errorf("%q: %t, want %t", rules, got, want)
		}
	}
}
