// Package containerd is upstream's containerd behind its own command line, and what
// has to be asked of it through its own client. It adds no behaviour to it. It must
// not be imported by the agent itself, nor import Kubernetes' own code: linking that
// costs a process some 8 MB and 30 ms before main, and one that asks containerd
// runs at every start of a cell.
package containerd

// Programs of itzo that this package has, by name.
var Programs = map[string]func() int{
	"containerd":    Containerd,
	"import-images": ImportImages,
	"stop-pods":     StopPods,
}
