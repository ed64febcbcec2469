package placement

import "strings"

// pattern is what stands between the stars of a pattern of names; nil matches any
// name. Each star stands for any run of characters.
type pattern []string

func (p pattern) match(name string) bool {
	if p == nil {
		return true
	}
	first, last := p[0], p[len(p)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range p[1 : len(p)-1] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return true
}

// matching are the types whose names match a pattern; nil if there is none.
func (p *Placer) matching(names pattern) matches {
	var all matches
	for typ := range p.types {
		if !names.match(p.types[typ].Name) {
			continue
		}
		for _, m := range p.capacityTypesOf([]LaunchType{OnDemand, Spot, Dedicated}) {
			if all == nil {
				all = matches{}
			}
			if all[m.launchType] == nil {
				all[m.launchType] = newSet(len(m.rows))
			}
			if i := m.rowOf[typ]; i >= 0 {
				all[m.launchType].add(i)
			}
		}
	}
	return all
}
