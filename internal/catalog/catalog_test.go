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

// The first pod that is placed by it must fit, or it is placed twice.
func TestASmallMachineOfACloudIsTakenToSeeNoMoreThanItDoes(t *testing.T) {
	// MemTotal of the boot image's kernel, in KiB, by MiB of the machine: see KernelSees.
	for megabytes, kib := range map[int64]int64{512: 475856, 1024: 991180, 2048: 2021840, 4096: 4016840, 8192: 8139456} {
		memory := megabytes << 20
		if got := CloudSees(memory); got > kib<<10 || got > memory/100*97 || got < memory/100*90 {
			t.Errorf("of %d MiB %d bytes are taken to be seen, and it sees %d", megabytes, got, kib<<10)
		}
	}
	for _, memory := range []int64{0, 1 << 20, 1 << 50} {
		if got := CloudSees(memory); got < 0 || got > memory {
			t.Errorf("of %d bytes %d are taken to be seen", memory, got)
		}
	}
}
