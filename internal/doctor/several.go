package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/kippods"
)

// Each returns a Doctor for each Kip of the cluster that First has found: d itself unless there are several.
func (d *Doctor) Each() []*Doctor {
	if len(d.parts) == 0 {
		return []*Doctor{d}
	}
	return d.parts
}

// split makes a Doctor of each Kip, if there are several. The pods of a Kip have one owner, and its nodes one controller ID. In a
// namespace that was asked for, nodes of no pod are another namespace's.
func (d *Doctor) split() {
	pods, nodes := map[string][]corev1.Pod{}, map[string][]corev1.Node{}
	for _, p := range d.pods {
		_, owner, _ := strings.Cut(ownerOf(&p), "/")
		pods[p.Namespace+"/"+owner] = append(pods[p.Namespace+"/"+owner], p)
	}
	for _, n := range d.own {
		id := n.Labels[apiv1.LabelController]
		nodes[id] = append(nodes[id], n)
	}
	ids := map[string]string{} // by the names of Kips
	taken := map[string]bool{}
	// The first node of one Kip may be called as a further one of another would be.
	for _, is := range []func([]corev1.Node, string) bool{hasFirst, hasFurther} {
		for name, of := range pods {
			for id, own := range nodes {
				if _, has := ids[name]; !has && !taken[id] && is(own, nodeNameOf(of)) {
					ids[name], taken[id] = id, true
				}
			}
		}
	}
	if len(pods) == 1 && len(nodes) == 1 || len(pods) == 0 && len(nodes) <= 1 {
		return // whatever they are called
	}
	if d.c.Namespace != "" && len(pods) > 0 {
		d.own = slices.DeleteFunc(d.own, func(n corev1.Node) bool { return !taken[n.Labels[apiv1.LabelController]] })
	} else {
		for id, own := range nodes {
			if !taken[id] {
				ids[own[0].Name] = id
			}
		}
	}
	names := slices.Sorted(maps.Keys(pods))
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		if pods[name] == nil {
			names = append(names, name)
		}
	}
	if len(names) < 2 {
		return
	}
	for _, name := range names {
		id, has := ids[name]
		part := *d.installation
		part.name, part.pods, part.own = name, pods[name], nil
		if has {
			part.own = nodes[id]
		}
		part.c.Cluster.Cells = func(ctx context.Context) ([]apiv1.Cell, error) {
			cells, err := d.c.Cluster.Cells(ctx)
			return slices.DeleteFunc(cells, func(c apiv1.Cell) bool { return !has || c.Status.ControllerID != id }), err
		}
		d.parts = append(d.parts, &Doctor{installation: &part})
	}
}

// nodeNameOf is the name of the first node of a Kip, as its pods are told; "" if they are not.
func nodeNameOf(pods []corev1.Pod) string {
	for i := range pods {
		if name := kippods.NodeName(&pods[i]); name != "" {
			return name
		}
	}
	return ""
}

// hasFirst reports whether one of the nodes is the first of a Kip, which has its name.
func hasFirst(nodes []corev1.Node, name string) bool {
	return slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
}

// hasFurther reports whether one of the nodes is a further one of that Kip: it has a number after the name.
func hasFurther(nodes []corev1.Node, name string) bool {
	return name != "" && slices.ContainsFunc(nodes, func(n corev1.Node) bool {
		number, is := strings.CutPrefix(n.Name, name+"-")
		return is && number != "" && strings.Trim(number, "0123456789") == ""
	})
}

// onNodes are the pods on the nodes of all Kips.
func (d *Doctor) onNodes() []corev1.Pod {
	all := slices.Clone(d.onOwn)
	for _, part := range d.parts {
		all = append(all, part.onOwn...)
	}
	return all
}
