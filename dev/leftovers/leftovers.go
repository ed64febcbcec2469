// Package leftovers owns the words for what a run left on the machine. It
// neither looks for it nor removes it.
package leftovers

import (
	"fmt"
	"slices"
	"strings"
)

// Error says what a run left on the machine, which it must not.
type Error struct{ Left []string }

func (e *Error) Error() string { return "left on the machine: " + strings.Join(e.Left, ", ") }

// Summary counts things by their kind, which is what their names begin with:
// "process 12 (itzo)", "cgroup /sys/…", "network device kip0".
func Summary(things []string) string {
	kinds := []struct{ one, many string }{
		{"process", "processes"}, {"mount", "mounts"}, {"network device", "network devices"}, {"cgroup", "cgroups"}, {"folder", "folders"},
	}
	counts := make([]int, len(kinds))
	var parts, others []string
	for _, t := range things {
		i := slices.IndexFunc(kinds, func(k struct{ one, many string }) bool { return strings.HasPrefix(t, k.one+" ") })
		if i < 0 {
			others = append(others, t)
			continue
		}
		counts[i]++
	}
	for i, n := range counts {
		switch {
		case n == 1:
			parts = append(parts, "1 "+kinds[i].one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, kinds[i].many))
		}
	}
	return strings.Join(append(parts, others...), ", ")
}
