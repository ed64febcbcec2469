// Package gate owns whether a call to a cloud that destroys is made: the end of
// instances, their stop, the detaching and the deletion of disks, the deletion of what
// instances have left. It decides neither what is to end nor when a call is sent or
// tried again, and makes no other call to the cloud.
//
// Before the wait for the budget stands the Gate: the cell was not heard lately, and no
// more than a share of all cells ends by what may be a mistake. What these hold back is
// kept for people to see, and to let pass. After the wait stands the Fence: this Kip
// leads still. Neither holds a lock while a call waits.
package gate
