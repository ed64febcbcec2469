package aws

// caches is what was read of EC2, and is read again with the catalogue or where a launch is stale.
type caches struct {
	networks *networks
	images   *bootImages
	groups   *securityGroups
	sold     *soldTypes
}

// forget lets the next launch be resolved by what EC2 says then.
func (e *caches) forget() {
	e.networks.forget()
	e.images.forget()
	e.groups.forget()
	e.sold.forget()
}
