package placement

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// pageSizes are the huge pages that a running kernel reserves, and on which architectures: pages that its allocator has, of at most
// some MiB, whose memory it finds by moving others (Documentation/admin-guide/mm/hugetlbpage.rst in Linux, and
// Documentation/arch/arm64/hugetlbpage.rst, for base pages of 4 KiB). A page of 1 GiB needs a GiB in one piece, which a kernel has
// when it starts and mostly not when its agent runs. A kubelet writes their sizes like this.
var pageSizes = [...]struct {
	resource corev1.ResourceName
	bytes    int64
	archs    []string
}{
	{"hugepages-64Ki", 64 << 10, []string{"arm64"}},
	{"hugepages-2Mi", 2 << 20, []string{"amd64", "arm64"}},
	{"hugepages-32Mi", 32 << 20, []string{"arm64"}},
}

// HugePages are huge pages of one size.
type HugePages struct{ PageBytes, Pages int64 }

// HugePagesOf returns the huge pages that a pod asks for; nil for none.
func HugePagesOf(pod *corev1.Pod) []HugePages {
	var all []HugePages
	for i, pages := range needOf(pod).pages {
		if pages > 0 {
			all = append(all, HugePages{pageSizes[i].bytes, pages})
		}
	}
	return all
}

// HugePageNames are the resources by which pods ask for huge pages, in the order of their sizes.
func HugePageNames() (names []corev1.ResourceName) {
	for _, s := range pageSizes {
		names = append(names, s.resource)
	}
	return names
}

// hugePages are how many huge pages of each of pageSizes.
type hugePages [len(pageSizes)]int64

// set notes that so many bytes of a resource are asked for. It reports whether that is one of the sizes.
func (p *hugePages) set(name corev1.ResourceName, bytes int64) bool {
	for i, s := range pageSizes {
		if s.resource == name {
			p[i] = bytes / s.bytes
			if bytes%s.bytes > 0 {
				p[i]++
			}
			return true
		}
	}
	return false
}

// bytesOf are those of the pages of one size.
func (p hugePages) bytesOf(i int) int64 {
	if p[i] > math.MaxInt64/pageSizes[i].bytes {
		return math.MaxInt64
	}
	return p[i] * pageSizes[i].bytes
}

// bytes are those of all pages, of the machine's memory.
func (p hugePages) bytes() (sum int64) {
	for i := range p {
		sum += min(p.bytesOf(i), math.MaxInt64-sum)
	}
	return sum
}

// on reports whether kernels of an architecture have each size that is asked for.
func (p hugePages) on(arch string) bool {
	for i, pages := range p {
		if pages > 0 && !slices.Contains(pageSizes[i].archs, arch) {
			return false
		}
	}
	return true
}

// asksForPages reports whether the pod asks for huge pages of any size.
func (n need) asksForPages() bool { return n.pages != hugePages{} || n.otherPages != "" }

// allMemory is what the pod needs of its machine's memory: huge pages are reserved there, beside the rest.
func (n need) allMemory() int64 { return n.memory + min(n.pages.bytes(), math.MaxInt64-n.memory) }

// keepPages keeps the types whose kernels can reserve the huge pages that the pod asks for, also of one that was named.
func (c *choice) keepPages(m *capacityType, rows set) {
	if !c.need.asksForPages() {
		return
	}
	if c.need.otherPages != "" || c.config.SharedKernel {
		clear(rows)
		return
	}
	for i, arch := range c.archs {
		if !c.need.pages.on(arch) {
			rows.drop(m.archs[i])
		}
	}
}

// pagesText says which huge pages types lack.
func (c *choice) pagesText() string {
	names := []string{string(c.need.otherPages)}
	if c.need.otherPages == "" {
		names = nil
		for i, pages := range c.need.pages {
			if pages > 0 {
				names = append(names, string(pageSizes[i].resource))
			}
		}
	}
	return "have no " + strings.Join(names, ", ")
}

// whyNoPages says why these types lack them.
func (c *choice) whyNoPages(ruledOut []int) string {
	switch {
	case c.need.otherPages != "":
		return "no running kernel reserves pages of this size"
	case c.config.SharedKernel:
		return "machines share the kernel of their host"
	}
	return list(ruledOut, func(typ int) []string { return []string{c.types[typ].Arch} })
}
