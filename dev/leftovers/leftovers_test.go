package leftovers

import "testing"

func TestSummaryCountsByKindAndKeepsWhatItDoesNotKnow(t *testing.T) {
	got := Summary([]string{
		"cgroup /sys/fs/cgroup/a", "network device kip0", "process 12 (itzo)", "cgroup /sys/fs/cgroup/b", "socket /x", "process 13 (kip)",
	})
	if want := "2 processes, 1 network device, 2 cgroups, socket /x"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
	if got := Summary(nil); got != "" {
		t.Errorf("summary of nothing is %q", got)
	}
}
