package host

import (
	"os"
	"runtime"
	"strings"

	"k8s.io/utils/cpuset"
)

// CPUs returns how many processors this host has. runtime.NumCPU returns fewer if this process is
// held to some of them, as by taskset: machines may have all, in their share of the time.
func CPUs() int {
	list, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(list)))
	if err != nil {
		return runtime.NumCPU()
	}
	return max(online.Size(), runtime.NumCPU())
}
