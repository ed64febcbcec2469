package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agent/userdata"
)

func TestTheNameOrTheFirstArgumentSaysWhichProgramItIs(t *testing.T) {
	all := map[string]func() int{}
	for _, name := range []string{"cell", "kubelet", "containerd", "itzo-cni", shimProgram} {
		all[name] = func() int { return 0 }
	}
	for line, want := range map[string]struct{ program, rest string }{
		"/bin/itzo cell":                         {"cell", "cell"},
		"itzo kubelet --config=x":                {"kubelet", "kubelet --config=x"},
		"kubelet --config=x":                     {"kubelet", "kubelet --config=x"},
		"/run/itzo/bin/itzo-cni":                 {"itzo-cni", "/run/itzo/bin/itzo-cni"},
		"/x/containerd-shim-runc-v2 -id a start": {shimProgram, "/x/containerd-shim-runc-v2 -id a start"},
		"/bin/itzo -namespace k8s.io -id a":      {shimProgram, "/bin/itzo -namespace k8s.io -id a"},
		"containerd kubelet":                     {"containerd", "containerd kubelet"},
		"itzo":                                   {"", "itzo"},
		"itzo --help":                            {"", "itzo --help"},
		"itzo rm -rf":                            {"", "itzo rm -rf"},
	} {
		program, rest := choose(strings.Fields(line), all)
		if program != want.program || !slices.Equal(rest, strings.Fields(want.rest)) {
			t.Errorf("%q: %q %q, want %q %q", line, program, rest, want.program, want.rest)
		}
	}
}

func TestAnAgentThatTakesOverIsToldWhatTheOneBeforeWas(t *testing.T) {
	flags := func(args []string) (components, containerd, userData string) {
		f := flag.NewFlagSet("", flag.ContinueOnError)
		f.StringVar(&components, "components", "", "")
		f.StringVar(&containerd, "containerd", "", "")
		f.StringVar(&userData, "user-data", "seed", "")
		if err := f.Parse(args); err != nil || f.NArg() > 0 {
			t.Errorf("%q: %v", args, err)
		}
		return components, containerd, userData
	}
	all := map[string]func() int{"cell": nil, "boot": func() int { return 0 }}
	all["cell"] = all["boot"]
	for line, want := range map[string][4]string{
		"cell": {"cell", "/b/components", "/b/containerd", "seed"},
		"boot": {"boot", "/b/components", "/b/containerd", "seed"},
		"cell --user-data=cloud --containerd /own": {"cell", "/b/components", "/own", "cloud"},
	} {
		argv := handedOn(strings.Fields(line), "/b/components", "/b/containerd")
		program, rest := choose(argv, all)
		components, containerd, userData := flags(rest[1:])
		if got := [4]string{program, components, containerd, userData}; got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
		// And so on, if that one is started again.
		if again := handedOn(rest, "/x", "/y"); again[0] != "itzo" {
			t.Errorf("%q", again)
		} else if components, containerd, _ := flags(again[2:]); components != want[1] || containerd != want[2] {
			t.Errorf("%s, handed on again: %s and %s", line, components, containerd)
		}
	}
}

func TestEveryItzoHasWhatAPodStartsOften(t *testing.T) {
	for _, name := range []string{"cell", "version", "itzo-cni", "itzo-image-credentials", shimProgram} {
		if programs[name] == nil {
			t.Errorf("no program %s", name)
		}
	}
}

func TestUserDataIsTakenOnceABoot(t *testing.T) {
	dir := t.TempDir()
	file, taken := filepath.Join(dir, "seed", "user-data"), filepath.Join(dir, "run", "taken")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := 0
	var refuses error
	source := userdata.Source{Limit: time.Minute, Fetch: func(context.Context) (userdata.Data, error) {
		asked++
		return userdata.Data{Document: []byte(fmt.Sprint("document ", asked)), Place: "3"}, refuses
	}}
	take := func(want string, wantAsked int) {
		t.Helper()
		err := takeUserData(t.Context(), source, file, taken)
		b, _ := os.ReadFile(file)
		if asked != wantAsked || string(b) != want || (want == "") != (err != nil) {
			t.Errorf("asked %d times, want %d; it has %q, want %q: %v", asked, wantAsked, b, want, err)
		}
	}
	refuses = errors.New("none")
	take("", 1)
	refuses = nil
	take("document 2", 2)
	take("document 2", 2) // an agent that starts again
	if err := os.Remove(taken); err != nil {
		t.Fatal(err)
	}
	take("document 3", 3) // another boot
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	take("document 4", 4) // somebody has removed it
}
