// Package aws owns Amazon EC2 as a cloud: its calls, its errors, what it sells. It must
// not know how a launch is decided on, keep state, or retry.
//
// Cloud wires the areas of EC2, in wire.go. Each is a struct with the few others that it depends on, in a file of its own:
//
//	catalogue.go     what EC2 sells: prices.go, plan.go (AWS' Free plan), reservations.go (and hosts.go), network.go
//	resolve.go       what a launch is made of: images.go, groups.go (and grouprules.go), credits.go
//	launch.go        launches: launchcall.go makes the call, messages.go and addresses.go read what EC2 says to it
//	instances.go     shows instances; ends.go ends, stops and starts them; interruptions.go and maintenance.go tell
//	                 which ones EC2 takes back, blocks.go of those in Capacity Blocks
//	disks.go         makes disks: volumes.go reads and deletes them, attach.go attaches them, grow.go makes them larger
//	routes.go        routes networks to instances; egress.go reads how subnets reach others
//	bounds.go        how many machines fit: quotas.go
//	ecr.go, tags.go, console.go, parts.go do what their names say
//
// caches.go forgets what was read, so that the next launch is resolved by what EC2 says then. account.go is for the
// doctor, permissions.go lists the rights that Kip needs.
package aws
