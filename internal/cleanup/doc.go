// Package cleanup ends all that one Kip has made: pods, cells, instances, the node and
// its Cell resources, in an order in which nothing is made anew. It leaves the disks and
// the store, which hold what cannot be made again, and says so. An Outside ends what a Kip that is gone has left in its cloud.
package cleanup
