package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/agentapi"
)

// reserveTries is how often the kernel is asked for the pages that it has not found yet: after the first time it drops its
// caches and moves pages together.
const reserveTries = 4

// Reserve has the kernel reserve huge pages, so that it has at least so many of each size. Of the machine's memory it leaves
// keep bytes. It returns how many the kernel has, which may be fewer; or an ErrRefused where the machine can have none of a size.
//
// A kubelet counts them when it starts.
func (k *Kernel) Reserve(want []agentapi.HugePages, keep int64) ([]agentapi.HugePages, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	sizes := slices.Clone(want)
	// The largest first, while memory is in one piece.
	slices.SortFunc(sizes, func(a, b agentapi.HugePages) int { return cmp.Compare(b.PageBytes, a.PageBytes) })
	var asked int64
	for i, s := range sizes {
		if k.o.Shared {
			return nil, refuse("reserve %s: this machine shares its kernel with others", s.Resource())
		}
		has, err := k.pages(s)
		if err != nil {
			return nil, err
		}
		sizes[i].Pages, asked = has, asked+s.PageBytes*s.Pages
	}
	memory, err := k.memory()
	if err != nil {
		return nil, err
	}
	if asked > memory-keep {
		return sizes, nil // it would leave nothing for what runs the pod; Kip knows the memory, and says so
	}
	for i := range sizes {
		at := slices.IndexFunc(want, func(w agentapi.HugePages) bool { return w.PageBytes == sizes[i].PageBytes })
		if sizes[i].Pages, err = k.reserve(want[at]); err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

// reserve has the kernel reserve pages of one size. It returns how many there are.
func (k *Kernel) reserve(want agentapi.HugePages) (has int64, err error) {
	for try := range reserveTries {
		if has, err = k.pages(want); err != nil || has >= want.Pages {
			return has, err
		}
		if try > 0 {
			// It helps, or it does not.
			_ = k.setFile(filepath.Join(k.o.Root, "proc/sys/vm/drop_caches"), "3")
			_ = k.setFile(filepath.Join(k.o.Root, "proc/sys/vm/compact_memory"), "1")
		}
		if err := k.setFile(k.pagesFile(want), strconv.FormatInt(want.Pages, 10)); err != nil {
			return 0, fmt.Errorf("reserve %s: %w", want.Resource(), err)
		}
	}
	return k.pages(want)
}

// pagesFile has the number of pages of a size.
func (k *Kernel) pagesFile(s agentapi.HugePages) string {
	return filepath.Join(k.o.Root, "sys/kernel/mm/hugepages", fmt.Sprintf("hugepages-%dkB", s.PageBytes>>10), "nr_hugepages")
}

// pages is how many pages of a size the kernel has.
func (k *Kernel) pages(s agentapi.HugePages) (int64, error) {
	b, err := os.ReadFile(k.pagesFile(s))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, refuse("reserve %s: the kernel has no pages of this size", s.Resource())
	}
	var n int64
	if err == nil {
		n, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", s.Resource(), err)
	}
	return n, nil
}

// memory is what the kernel has, in bytes.
func (k *Kernel) memory() (int64, error) {
	b, err := os.ReadFile(filepath.Join(k.o.Root, "proc/meminfo"))
	if err != nil {
		return 0, fmt.Errorf("read how much memory there is: %w", err)
	}
	var kib int64
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("read how much memory there is: no MemTotal in /proc/meminfo")
}

// setFile writes a file of the kernel's.
func setFile(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	return errors.Join(err, f.Close())
}
