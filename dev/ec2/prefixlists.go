package ec2

import "github.com/elotl/kip/internal/cloud/sim"

type entryXML struct {
	CIDR string `xml:"cidr"`
}

// mostEntries is the most that a page has. Source: EC2 API reference, "GetManagedPrefixListEntries".
const mostEntries = 100

// getManagedPrefixListEntries shows the networks of a list, whether it is AWS' or a customer's.
func (m *routing) getManagedPrefixListEntries(r *request) (any, error) {
	id := r.text("PrefixListId")
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("prefix-list/"+id), nil); err != nil {
		return nil, err
	}
	if err := m.model.Arrive(r.ctx, sim.KindCatalogue, nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	networks, has := m.lists[id]
	m.mu.Unlock()
	if !has {
		return nil, bad("InvalidPrefixListID.NotFound", "The prefix list ID '%s' does not exist", id)
	}
	var all []entryXML
	for _, p := range networks {
		all = append(all, entryXML{p.String()})
	}
	return paged(r, "entrySet", min(mostEntries, m.cfg.PageSize), all, func(e entryXML) string { return e.CIDR }), nil
}
