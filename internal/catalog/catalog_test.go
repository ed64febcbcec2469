package catalog

import (
	"testing"
	"time"
)

func TestATypeOfWhichNothingIsKnownHasTheUsualTimeToBoot(t *testing.T) {
	for own, want := range map[time.Duration]time.Duration{0: 10 * time.Minute, time.Minute: time.Minute, time.Hour: time.Hour} {
		if got := (InstanceType{BootTimeout: own}).BootLimit(); got != want {
			t.Errorf("with a BootTimeout of %v: %v, want %v", own, got, want)
		}
	}
}
