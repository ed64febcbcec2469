// Package gate owns the calls to a cloud that destroy: the end of instances, their
// stop, the detaching and the deletion of disks, the deletion of what instances leave. Nobody else makes them. It decides
// neither what is to end nor when to try again, and makes no other call to the cloud.
//
// Four things stand before such a call: the cell was not heard lately, no more than a
// share of all cells ends by what may be a mistake, there is a call left in the
// budget, and this Kip leads still, which is asked last. What the first two hold back
// is kept for people to see, and to let pass.
package gate
