package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/test/harness"
)

// write makes a file and the folders above it.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACrashOfAnyKipIsNoticed(t *testing.T) {
	for _, name := range []string{"kip.json", "peers/kip-1/kip.json"} {
		for what, crash := range map[string]func(t *testing.T, record string){
			"ended": func(t *testing.T, record string) {
				if err := os.Remove(record); err != nil {
					t.Fatal(err)
				}
			},
			"restarted":             func(t *testing.T, record string) { write(t, record, `{"pid":9,"start":9}`) },
			"restarted as the same": func(t *testing.T, record string) { write(t, record, `{"pid":1,"start":2}`) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				state := t.TempDir()
				write(t, filepath.Join(state, "kip.json"), `{"pid":1,"start":1}`)
				write(t, filepath.Join(state, "peers/kip-1/kip.json"), `{"pid":1,"start":1}`)
				k, err := readKips(state, 2)
				if err != nil {
					t.Fatal(err)
				}
				over, stop := context.WithCancel(t.Context())
				stop()
				if err := k.watch(over, nil, nil); err != nil {
					t.Errorf("before the crash: %v", err)
				}
				crash(t, filepath.Join(state, name))
				tick := make(chan time.Time, 1)
				tick <- time.Time{}
				for what, err := range map[string]error{"at a tick": k.watch(t.Context(), nil, tick), "at the end": k.watch(over, nil, nil)} {
					if err == nil || !strings.Contains(err.Error(), name) {
						t.Errorf("%s it says %v, want an error that names %s", what, err, name)
					}
				}
			})
		}
	}
}

func TestTheEndOfTheClusterIsNoticed(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	over, stop := context.WithCancel(t.Context())
	stop()
	for _, ctx := range []context.Context{t.Context(), over} {
		if err := (kips{}).watch(ctx, ended, nil); !errors.Is(err, errClusterEnded) {
			t.Errorf("it says %v", err)
		}
	}
}

func TestARunStartsWithAllItsKips(t *testing.T) {
	state := t.TempDir()
	if _, err := readKips(state, 0); err != nil {
		t.Errorf("a cluster without Kip: %v", err)
	}
	write(t, filepath.Join(state, "kip.json"), "{}")
	if _, err := readKips(state, 2); err == nil {
		t.Error("one Kip is taken for two")
	}
}

func TestWhatIsAmissInALogOfAKipFails(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		"time=x level=INFO msg=\"the word panic: in a message\"\n":       false,
		"time=x level=INFO\npanic: runtime error: index out of range":    true,
		"fatal error: all goroutines are asleep - deadlock!\n":           true,
		"x\n==================\nWARNING: DATA RACE\nRead at 0x0\n":       true,
		"time=x level=ERROR msg=\"Observed a panic\" panic=boom\n":       true,
		"x\nSIGSEGV: segmentation violation\n":                           true,
		"runtime: program exceeds 10000-thread limit\n":                  true,
		"time=x level=INFO\nkip: open the store: it is another's\n":      true,
		"time=x level=INFO msg=\"kip: in a message\"\n":                  false,
		"time=x level=DEBUG msg=\"http: panic serving 10.0.0.1:1\"\n":    true,
		"time=x level=WARN msg=\"" + harness.Stray + "\" instance=i-1\n": true,
	} {
		for _, name := range []string{"kip.log", "kip-1.kip.log"} {
			state := t.TempDir()
			write(t, filepath.Join(state, "kip.log"), "fine\n")
			write(t, filepath.Join(state, "control-plane.log"), "panic: another's\n")
			write(t, filepath.Join(state, name), text)
			if err := amiss(state, 1); (err != nil) != want || want && !strings.Contains(err.Error(), name) {
				t.Errorf("%s with %q: %v", name, text, err)
			}
		}
	}
}

func TestThePanicsOfAllKipsAreTold(t *testing.T) {
	state := t.TempDir()
	write(t, filepath.Join(state, "kip.log"), "panic: the first's\n")
	write(t, filepath.Join(state, "kip-1.kip.log"), "x\nfatal error: the second's\n")
	if err := amiss(state, 2); err == nil || !strings.Contains(err.Error(), "line 1: panic: the first's") ||
		!strings.Contains(err.Error(), "line 2: fatal error: the second's") {
		t.Errorf("it says %v", err)
	}
}

func TestAKipWithoutALogIsAmiss(t *testing.T) {
	state := t.TempDir()
	write(t, filepath.Join(state, "kip.log"), "fine\n")
	for n, want := range map[int]bool{0: false, 1: false, 2: true} {
		if err := amiss(state, n); (err != nil) != want || want && !strings.Contains(err.Error(), "logs of 1 Kips, want 2") {
			t.Errorf("with %d Kips it says %v", n, err)
		}
	}
}

func TestTheLogsOfACrashOutliveTheCluster(t *testing.T) {
	root := t.TempDir()
	state, kept := filepath.Join(root, "kipconf0"), filepath.Join(root, "conformance", "kip", "crash-1")
	for _, name := range []string{"kipconf0.log", "kipconf0/kip.log", "kipconf0/kip-1.kip.log", "kipconf0/control-plane.log"} {
		write(t, filepath.Join(root, name), name)
	}
	if err := keepLogs(state, kept); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	// Once more, as after the cluster's stop: what is gone by then stays kept.
	if err := keepLogs(state, kept); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kipconf0.log", "kip.log", "kip-1.kip.log", "control-plane.log"} {
		if data, err := os.ReadFile(filepath.Join(kept, name)); err != nil || !strings.HasSuffix(string(data), name) {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
}
