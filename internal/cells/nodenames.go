package cells

import (
	"cmp"
)

// nodeNames knows the virtual nodes of cells.
type nodeNames struct {
	nodes Nodes  // nil for one
	one   string // that of cells whose record says none
}

// of returns the virtual node that a cell's kubelet is to be.
func (s *nodeNames) of(cell *Cell) string {
	if cell.Node == "" && cell.Pod.UID == "" && s.nodes != nil {
		return s.nodes.StandbyNode(cell.Offering())
	}
	return cmp.Or(cell.Node, s.one)
}

// ofMany is Controller.NodesOf.
func (s *nodeNames) ofMany() func(Cell) string {
	type launched struct {
		instanceType, zone string
		spot, dedicated    bool
	}
	asked := map[launched]string{}
	return func(cell Cell) string {
		if cell.Node != "" || cell.Pod.UID != "" {
			return s.of(&cell)
		}
		o := cell.Offering()
		as := launched{
			instanceType: o.InstanceType,
			zone:         o.Zone,
			spot:         o.Spot,
			dedicated:    o.Dedicated,
		}
		node, was := asked[as]
		if !was {
			node = s.of(&cell)
			asked[as] = node
		}
		return node
	}
}
