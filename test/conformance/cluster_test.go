package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/test/harness"
)

// loops is a ginkgo that has passed one spec and goes on for ever.
const loops = "trap '' INT TERM\n" + oneHasPassed + "while :; do sleep 0.01; done\n"

func script(t *testing.T, path, text string) {
	t.Helper()
	write(t, path, "#!/bin/sh\n"+text)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestACrashOfKipEndsTheSuite(t *testing.T) {
	for name, stops := range map[string]bool{"while it runs": false, "while it is interrupted": true} {
		t.Run(name, func(t *testing.T) {
			o := options{root: t.TempDir(), mode: "kip", procs: 1}
			world := &harness.World{State: filepath.Join(o.root, ".kip", "kipconf0")}
			kip := filepath.Join(world.State, "kip.json")
			write(t, kip, "{}")
			script(t, o.dir("bin", "ginkgo"), loops)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			err := o.onWorld(ctx, world, []string{one, two}, o.dir("log"), func(outcome) {
				if stops {
					stop()
				}
				if err := os.Remove(kip); err != nil {
					t.Error(err)
				}
			})
			if err == nil || !strings.Contains(err.Error(), kip) {
				t.Errorf("its error is %v, want one that names %s", err, kip)
			}
		})
	}
}

// forever ends by a signal only.
const forever = "; while :; do sleep 0.01; done"

// kipDev stands for kip-dev: it is ready, and then does what follows. Its state
// folder is $state.
const kipDev = `
while [ $# -gt 0 ]; do case $1 in --state) state=$2;; --ready-file) ready=$2;; esac; shift; done
mkdir -p $state
echo '{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "users": [{"name": "a", "user": {}}],
"current-context": "a"}' >$state/kubeconfig
cp $state/kubeconfig $state/kip.kubeconfig
echo "the Kip's words" >$state/kip.log
`

func TestTheLogsOfAClusterThatCrashedAreKept(t *testing.T) {
	for name, tc := range map[string]struct {
		dev, ginkgo string
		want        string // what the error says; nothing for none
	}{
		"it ends by itself": {"echo ready >$ready; while [ ! -e $state/go ]; do sleep 0.01; done; echo boom; exit 0", loops,
			errClusterEnded.Error()},
		"it does not start": {"echo boom; exit 2", loops, "exit status 2"},
		"a Kip panics": {"echo 'panic: boom' >>$state/kip.log; trap 'exit 0' TERM; echo ready >$ready" + forever, oneHasPassed,
			"panic: boom"},
		"a Kip ends badly": {"trap \"echo 'kip: boom' >>$state/kip.log; exit 0\" TERM; echo ready >$ready" + forever, oneHasPassed,
			"kip: boom"},
		"the suite ends oddly":  {"trap 'echo boom; exit 0' TERM; echo ready >$ready" + forever, oneHasPassed + "exit 1\n", "exit status 1"},
		"it does not stop well": {"trap 'echo boom; exit 3' TERM; echo ready >$ready" + forever, oneHasPassed, "exit status 3"},
		"all is well":           {"trap 'exit 0' TERM; echo ready >$ready" + forever, oneHasPassed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{root: t.TempDir(), mode: "nodes", procs: 1, bridge: "kipconf0", cidr: "10.113.0.0/16"}
			t.Chdir(o.root)
			write(t, filepath.Join(o.root, "go.mod"), "module a")
			script(t, filepath.Join(o.root, "bin", "kip-dev"), kipDev+tc.dev)
			script(t, o.dir("bin", "ginkgo"), tc.ginkgo)
			err := o.onCluster(t.Context(), []string{one, two}, "images", func(outcome) {
				write(t, filepath.Join(o.root, ".kip", "kipconf0", "go"), "")
			})
			kept, globErr := filepath.Glob(o.dir("nodes", "crash-*", "*.log"))
			if globErr != nil {
				t.Fatal(globErr)
			}
			if tc.want == "" {
				if err != nil || len(kept) > 0 {
					t.Errorf("its error is %v, and it kept %q", err, kept)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("its error is %v, want %q", err, tc.want)
			}
			all := ""
			for _, log := range kept {
				data, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				all += string(data)
			}
			if len(kept) != 2 || !strings.Contains(all, "boom") || !strings.Contains(all, "the Kip's words") {
				t.Errorf("it kept %q, with\n%s", kept, all)
			}
		})
	}
	t.Run("but not of one that was interrupted", func(t *testing.T) {
		o := options{root: t.TempDir(), mode: "nodes", procs: 1, bridge: "kipconf0", cidr: "10.113.0.0/16"}
		t.Chdir(o.root)
		write(t, filepath.Join(o.root, "go.mod"), "module a")
		script(t, filepath.Join(o.root, "bin", "kip-dev"), kipDev+"trap 'exit 0' TERM; echo ready >$ready"+forever)
		script(t, o.dir("bin", "ginkgo"), "trap 'exit 1' INT\n"+oneHasPassed+"while :; do sleep 0.01; done\n")
		ctx, stop := context.WithCancel(t.Context())
		err := o.onCluster(ctx, []string{one, two}, "images", func(outcome) { stop() })
		if _, statErr := os.Stat(o.dir("nodes", "logs")); err != nil || statErr != nil {
			t.Errorf("its errors are %v and %v", err, statErr)
		}
		if kept, err := filepath.Glob(o.dir("nodes", "crash-*")); err != nil || len(kept) > 0 {
			t.Errorf("it kept %q, %v", kept, err)
		}
	})
}
