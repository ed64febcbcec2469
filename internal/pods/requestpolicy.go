package pods

import (
	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
)

// requestPolicy is what pods may ask for, and what their cells are launched with where their annotations do not say otherwise.
type requestPolicy struct {
	grants       Grants
	sharedKernel bool // with other cells of a host, so that no pod may change it
	options      cells.Options
	costLabels   []string // keys of the labels that costs are kept by
}

// allows returns an error for the first annotation that cells of this cloud cannot have, or the namespace may not have.
func (p *requestPolicy) allows(namespace string, asked placement.Annotations) error {
	if p.sharedKernel {
		if err := changesKernel(asked); err != nil {
			return err
		}
	}
	return p.grants.Check(namespace, asked)
}

// newRequest returns what is requested for a pod without regard to its annotations: of what was chosen for it, the offerings that its
// namespace is granted. The error is a *NotGrantedError.
func (p *requestPolicy) newRequest(pod *corev1.Pod, chosen placement.Chosen, needs volumes.Needs) (cells.Request, error) {
	offerings, err := p.grants.granted(pod.Namespace, chosen.Offerings)
	if err != nil {
		return cells.Request{}, err
	}
	return cells.Request{
		Pod:       apiv1.Ref(pod),
		Node:      pod.Spec.NodeName,
		Account:   account(pod, p.costLabels),
		Created:   pod.CreationTimestamp.Time,
		Offerings: offerings,
		RuledOut:  ruledOut(pod.Namespace, chosen, offerings),
		Wants: cells.Wants{
			Disks:         disksOf(needs),
			Plugins:       pluginsOf(needs),
			GPUs:          placement.NVIDIA(pod),
			Accelerators:  placement.Accelerators(pod),
			UnsafeSysctls: p.grants.unsafeSysctls(pod),
		},
	}, nil
}

// apply puts into a request what a pod's annotations ask for.
func (p *requestPolicy) apply(r *cells.Request, asked placement.Annotations) {
	r.Special, r.Kernel, r.SwapBytes = special(asked), kernelSettings(asked), asked.SwapBytes
	r.Options, r.Offerings = resolve(p.options, asked), withDisk(r.Offerings, asked)
	if t := asked.HealthyTimeout; t != nil {
		after := t.After // 0 when never
		r.HealthyTimeout = &after
	}
}

// ruledOut counts what is not among the first of the offerings that are granted to the namespace of a pod,
// of those that were chosen for it.
func ruledOut(namespace string, chosen placement.Chosen, granted []offering.Offering) (list []apiv1.RuledOut) {
	for _, r := range chosen.RuledOut {
		list = append(list, apiv1.RuledOut(r))
	}
	count := func(n int, one, many, words string) {
		if n == 1 {
			many = one
		}
		if n > 0 {
			list = append(list, apiv1.RuledOut{Types: n, Why: many + words})
		}
	}
	refused := typesOf(chosen.Offerings) - typesOf(granted)
	count(refused, "is", "are", " not granted to namespace "+namespace)
	count(chosen.Types-refused-typesOf(granted[:min(len(granted), apiv1.MaxCandidates)]), "comes", "come", " after these")
	return list
}

// typesOf is how many instance types there are among offerings.
func typesOf(offerings []offering.Offering) int {
	names := map[string]bool{}
	for _, o := range offerings {
		names[o.InstanceType] = true
	}
	return len(names)
}
