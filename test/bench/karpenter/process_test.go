package main

import (
	"os"
	"testing"
	"time"
)

func TestProcessorTimeOfAnyName(t *testing.T) {
	for _, name := range []string{"kube", "a b) R 1 2 3"} {
		stat := "4242 (" + name + ") S 1 4242 4242 0 -1 4194304 100 0 0 0 1234 56 0 0 20 0 12 0 100 1000 10"
		got, err := parseCPU(stat)
		if want := 12900 * time.Millisecond; err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
	}
	for _, stat := range []string{"", "1 (short) S 1 2", "1 (odd) S 1 4242 4242 0 -1 4194304 100 0 0 0 x 56 0"} {
		if got, err := parseCPU(stat); err == nil {
			t.Errorf("stat %q: got %s, want an error", stat, got)
		}
	}
}

func TestPeakMemoryFollowsTheProcess(t *testing.T) {
	pid := os.Getpid()
	if err := resetPeakMemory(pid); err != nil {
		t.Fatal(err)
	}
	before, err := peakMemory(pid)
	if err != nil {
		t.Fatal(err)
	}
	const more = 64 << 20
	held := make([]byte, more)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = byte(i) | 1
	}
	after, err := peakMemory(pid)
	if err != nil {
		t.Fatal(err)
	}
	if after-before < more/2 {
		t.Errorf("peak went from %d to %d bytes after %d were used", before, after, more)
	}
	if held[0] == 0 {
		t.Error("the memory was not used")
	}
}
