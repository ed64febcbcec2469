package local

import (
	"fmt"
	"path"
	"strings"

	"github.com/elotl/kip/internal/catalog"
)

// cores is how many CPUs a machine shows: the type's, rounded up.
func cores(t catalog.InstanceType) int {
	return max(1, int((t.MilliCPU+999)/1000))
}

// file is a path and its content; a link's target when link is set.
type file struct {
	path, content string
	link          bool
}

// meminfo is /proc/meminfo of a machine with this much memory, none of it used
// and no swap. Programs size themselves by MemTotal; what is in use is in the
// machine's own memory cgroup.
func meminfo(memoryBytes int64) string {
	var b strings.Builder
	kb := memoryBytes / 1024
	for _, l := range []struct {
		name string
		kb   int64
	}{
		{"MemTotal", kb}, {"MemFree", kb}, {"MemAvailable", kb}, {"Buffers", 0}, {"Cached", 0},
		{"SwapCached", 0}, {"Active", 0}, {"Inactive", 0}, {"SwapTotal", 0}, {"SwapFree", 0},
		{"Shmem", 0}, {"Slab", 0}, {"SReclaimable", 0},
	} {
		fmt.Fprintf(&b, "%-15s %8d kB\n", l.name+":", l.kb)
	}
	return b.String()
}

// noSwap is /proc/swaps of a machine without swap: the kubelet refuses to run
// where it sees some.
const noSwap = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"

// cpuinfo is /proc/cpuinfo with n processors like the first one of host.
func cpuinfo(host string, n int) string {
	first, _, _ := strings.Cut(host, "\n\n")
	lines := strings.Split(strings.TrimRight(first, "\n"), "\n")
	var b strings.Builder
	for cpu := range n {
		for _, line := range lines {
			name, _, ok := strings.Cut(line, ":")
			key := strings.TrimSpace(name)
			if ok {
				switch key {
				case "processor", "core id", "apicid", "initial apicid":
					line = fmt.Sprintf("%s: %d", name, cpu)
				case "physical id":
					line = fmt.Sprintf("%s: %d", name, 0)
				case "siblings", "cpu cores":
					line = fmt.Sprintf("%s: %d", name, n)
				}
			}
			b.WriteString(line + "\n")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// cpuTree is what /sys/devices/system/cpu shows: n cores of one thread each in
// one package.
func cpuTree(n int) []file {
	list := cpuList(n)
	files := []file{
		{path: "online", content: list}, {path: "possible", content: list}, {path: "present", content: list},
		{path: "offline", content: "\n"}, {path: "isolated", content: "\n"},
		{path: "kernel_max", content: fmt.Sprintf("%d\n", n-1)},
	}
	for cpu := range n {
		topology := fmt.Sprintf("cpu%d/topology", cpu)
		id := fmt.Sprintf("%d\n", cpu)
		files = append(files,
			file{path: path.Join(topology, "core_id"), content: id},
			file{path: path.Join(topology, "physical_package_id"), content: "0\n"},
			file{path: path.Join(topology, "thread_siblings_list"), content: id},
			file{path: path.Join(topology, "core_siblings_list"), content: list},
		)
	}
	return files
}

// nodeTree is what /sys/devices/system/node shows: one NUMA node with all
// cores and all memory. The kubelet counts its cores here.
func nodeTree(n int, memoryBytes int64) []file {
	kb := memoryBytes / 1024
	files := []file{
		{path: "online", content: "0\n"}, {path: "possible", content: "0\n"}, {path: "has_cpu", content: "0\n"},
		{path: "has_memory", content: "0\n"}, {path: "has_normal_memory", content: "0\n"},
		{path: "node0/cpulist", content: cpuList(n)},
		{path: "node0/distance", content: "10\n"},
		{path: "node0/meminfo", content: fmt.Sprintf("Node 0 MemTotal: %15d kB\nNode 0 MemFree: %16d kB\n", kb, kb)},
	}
	for cpu := range n {
		files = append(files, file{
			path: fmt.Sprintf("node0/cpu%d", cpu), content: fmt.Sprintf("../../cpu/cpu%d", cpu), link: true,
		})
	}
	return files
}

func cpuList(n int) string {
	if n == 1 {
		return "0\n"
	}
	return fmt.Sprintf("0-%d\n", n-1)
}

// kernelEntries are the entries of /proc/sys that belong to the shared kernel
// and that the kubelet sets. Machines get files of their own over them, with
// the values it wants, so that the host keeps its own.
var kernelEntries = []file{
	{path: "vm/overcommit_memory", content: "1\n"},
	{path: "vm/panic_on_oom", content: "0\n"},
	{path: "kernel/panic", content: "10\n"},
	{path: "kernel/panic_on_oops", content: "1\n"},
	{path: "kernel/keys/root_maxkeys", content: "1000000\n"},
	{path: "kernel/keys/root_maxbytes", content: "25000000\n"},
}
