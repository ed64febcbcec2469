// Package guard owns the termination guard of the pipe to the cloud: whether an instance may end, and whether a disk, or what instances
// have left, may be deleted. It decides neither what is to end nor when a call is sent or tried again, and makes no call to the cloud.
//
// The guard comes before every wait. It has two rules of its own: a cell that was heard lately does not end unless its pod does, and
// ends that may be a mistake have a stored limit. What it holds back is kept for people to see, and to let pass. That an instance is gone
// only when the cloud describes it so, or two complete lists lack it, is the business of package cells; that this Kip still leads, of the
// pipe's fence. The guard holds no lock while a call to the cloud waits.
package guard
