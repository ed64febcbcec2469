package cloudtest

import (
	"context"

	"github.com/elotl/kip/internal/cloud"
)

// Launcher is a cloud that resolves launches before it makes them.
type Launcher interface {
	cloud.Resolver
	Launch(context.Context, cloud.LaunchRequest) cloud.LaunchResults
}

// Launch launches as Kip does: a request that is not resolved is resolved first.
func Launch(ctx context.Context, c Launcher, r cloud.LaunchRequest) cloud.LaunchResults {
	if r.Resolved == nil {
		found, err := c.Resolve(ctx, r.LaunchSpec)
		if err != nil {
			return cloud.NotLaunched(len(r.Machines), err)
		}
		r.Resolved = &found
	}
	return c.Launch(ctx, r)
}
