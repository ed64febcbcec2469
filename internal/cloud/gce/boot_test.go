package gce

import (
	"testing"
	"time"
)

func TestBootTimeoutDependsOnTheKindOfMachine(t *testing.T) {
	for name, want := range map[string]time.Duration{
		"e2-medium":                     10 * time.Minute,
		"c3-standard-192":               10 * time.Minute,
		"":                              10 * time.Minute,
		"c3-standard-192-metal":         30 * time.Minute,
		"z3-highmem-192-highlssd-metal": 30 * time.Minute,
	} {
		if got := BootTimeout(name); got != want {
			t.Errorf("BootTimeout(%q) = %v, want %v", name, got, want)
		}
	}
}
