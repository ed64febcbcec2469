package kernel

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
)

const mi, gi = 1 << 20, 1 << 30

// pagesOf are so many huge pages of 2 MiB, and of 1 GiB.
func pagesOf(small, large int64) (all []agentapi.HugePages) {
	for size, n := range map[int64]int64{2 * mi: small, gi: large} {
		if n > 0 {
			all = append(all, agentapi.HugePages{PageBytes: size, Pages: n})
		}
	}
	return all
}

// pageWorld is a machine of 4 GiB whose kernel has no huge page yet.
func pageWorld(t *testing.T) *world {
	w := newWorld(t)
	w.file("proc/meminfo", "MemTotal:        4194304 kB\nMemFree:         4000000 kB\n")
	for _, kib := range []int64{2048, 1048576} {
		w.file(fmt.Sprintf("sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", kib), "0\n")
	}
	return w
}

// writes has a kernel write each file by f, and returns what is written, in order.
func writes(k *Kernel, f func(file, text string) (string, error)) *[]string {
	all := new([]string)
	k.setFile = func(file, text string) error {
		*all = append(*all, filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file)+"="+text)
		became, err := f(file, text)
		if err != nil {
			return err
		}
		return setFile(file, became)
	}
	return all
}

func same(got, want []agentapi.HugePages) bool {
	return len(got) == len(want) && !slices.ContainsFunc(want, func(p agentapi.HugePages) bool { return !slices.Contains(got, p) })
}

func TestTheKernelReservesThePagesThatItIsAskedFor(t *testing.T) {
	w := pageWorld(t)
	k := w.kernel(false)
	all := writes(k, func(_, text string) (string, error) { return text, nil })
	want := pagesOf(512, 2)
	if has, err := k.Reserve(want, 128*mi); err != nil || !same(has, want) {
		t.Fatalf("it has %v, %v", has, err)
	}
	// The largest need the longest pieces.
	if want := []string{"hugepages-1048576kB/nr_hugepages=2", "hugepages-2048kB/nr_hugepages=512"}; !slices.Equal(*all, want) {
		t.Errorf("it wrote %q, want %q", *all, want)
	}
	// Another agent on the same machine, or the same one with the same configuration.
	again := w.kernel(false)
	wrote := writes(again, func(_, text string) (string, error) { return text, nil })
	if has, err := again.Reserve(want, 128*mi); err != nil || !same(has, want) || len(*wrote) > 0 {
		t.Errorf("once more it has %v, %v, and wrote %q", has, err, *wrote)
	}
	// More may be there, of the kernel's command line.
	if has, err := again.Reserve(pagesOf(100, 0), 128*mi); err != nil || !same(has, pagesOf(512, 0)) || len(*wrote) > 0 {
		t.Errorf("asked for fewer it has %v, %v, and wrote %q", has, err, *wrote)
	}
}

func TestAKernelThatFindsTooFewPagesIsHelpedAndAskedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		finds map[int]string // by how often it was asked
		want  int64
	}{
		"it finds the rest":  {map[int]string{1: "300", 2: "512"}, 512},
		"it never does":      {map[int]string{1: "300", 2: "301", 3: "302", 4: "303"}, 303},
		"it finds less then": {map[int]string{1: "300", 2: "299", 3: "298", 4: "297"}, 297},
	} {
		t.Run(name, func(t *testing.T) {
			w := pageWorld(t)
			for _, f := range []string{"proc/sys/vm/drop_caches", "proc/sys/vm/compact_memory"} {
				w.file(f, "")
			}
			k, asked, helped := w.kernel(false), 0, 0
			writes(k, func(file, text string) (string, error) {
				switch filepath.Base(file) {
				case "nr_hugepages":
					asked++
					return tc.finds[asked], nil
				case "compact_memory":
					helped++
				}
				return text, nil
			})
			has, err := k.Reserve(pagesOf(512, 0), 128*mi)
			if err != nil || !same(has, pagesOf(tc.want, 0)) || asked != len(tc.finds) || helped != asked-1 {
				t.Errorf("it has %v, %v, asked %d times, helped %d times", has, err, asked, helped)
			}
		})
	}
}

func TestPagesLeaveMemoryForWhatRunsThePod(t *testing.T) {
	w := pageWorld(t)
	k := w.kernel(false)
	all := writes(k, func(_, text string) (string, error) { return text, nil })
	if has, err := k.Reserve(pagesOf(2000, 0), 128*mi); err != nil || len(has) != 1 || has[0].Pages != 0 || len(*all) > 0 {
		t.Errorf("it has %v, %v, and wrote %q", has, err, *all)
	}
	if has, err := k.Reserve(pagesOf(1984, 0), 128*mi); err != nil || !same(has, pagesOf(1984, 0)) {
		t.Errorf("of what may be had it has %v, %v", has, err)
	}
}

func TestAMachineThatCanHaveNoPagesOfASizeSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		asked  []agentapi.HugePages
		shared bool
		want   string
	}{
		"of the host's kernel": {pagesOf(1, 0), true, "reserve hugepages-2Mi: this machine shares its kernel with others"},
		"of no such size": {
			[]agentapi.HugePages{{PageBytes: 32 * mi, Pages: 1}, {PageBytes: 2 * mi, Pages: 1}}, false,
			"reserve hugepages-32Mi: the kernel has no pages of this size",
		},
	} {
		w := pageWorld(t)
		k := w.kernel(tc.shared)
		all := writes(k, func(_, text string) (string, error) { return text, nil })
		if has, err := k.Reserve(tc.asked, 0); !errors.Is(err, ErrRefused) || err.Error() != tc.want || has != nil || len(*all) > 0 {
			t.Errorf("%s: %v, %v, wrote %q, want %s", name, has, err, *all, tc.want)
		}
	}
	w := pageWorld(t)
	w.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "many\n")
	if _, err := w.kernel(false).Reserve(pagesOf(1, 0), 0); err == nil || errors.Is(err, ErrRefused) || !errors.Is(err, strconv.ErrSyntax) {
		t.Errorf("of a number that is none: %v", err)
	}
	w.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
	w.file("proc/meminfo", "MemFree: 1 kB\n")
	if _, err := w.kernel(false).Reserve(pagesOf(1, 0), 0); err == nil || !strings.Contains(err.Error(), "no MemTotal") {
		t.Errorf("without MemTotal: %v", err)
	}
}
