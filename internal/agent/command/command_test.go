package command

import (
	"slices"
	"strings"
	"testing"
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

func TestEveryItzoHasWhatAPodStartsOften(t *testing.T) {
	for _, name := range []string{"cell", "version", "itzo-cni", "itzo-image-credentials", shimProgram} {
		if programs[name] == nil {
			t.Errorf("no program %s", name)
		}
	}
}
