package aws

import (
	"testing"
	"time"
)

func TestBootTimeoutDependsOnTheKindOfMachine(t *testing.T) {
	for name, want := range map[string]time.Duration{
		"t3.nano":          10 * time.Minute,
		"m5.24xlarge":      10 * time.Minute,
		"nano":             10 * time.Minute,
		"macro":            10 * time.Minute, // no type: there is no dot
		"metal":            10 * time.Minute,
		"":                 10 * time.Minute,
		"m5.metal":         30 * time.Minute,
		"c7i.metal-24xl":   30 * time.Minute,
		"u-6tb1.metal":     30 * time.Minute,
		"mac1.metal":       60 * time.Minute,
		"mac2-m2pro.metal": 60 * time.Minute,
		"mac-m4max.metal":  60 * time.Minute,
	} {
		if got := BootTimeout(name); got != want {
			t.Errorf("BootTimeout(%q) = %v, want %v", name, got, want)
		}
	}
}
