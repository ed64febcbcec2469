package cells

import (
	"time"

	"github.com/elotl/kip/internal/cloud/pipe"
)

// The times that several parts share. Those of one part are in its file.

// Calls to the cloud.
const (
	// callTimeout bounds what waits for a call to the cloud, where that is not to wait
	// for the budget for ever.
	callTimeout = pipe.Timeout
	// firstRetry and longestRetry are the waits between two tries of a launch.
	firstRetry, longestRetry = 200 * time.Millisecond, 15 * time.Second
	// A launch whose outcome stays unknown is given up after both, and so is one that
	// cannot be resolved: the cloud cannot say what is wrong with this offering, and
	// another may work.
	giveUpTries, giveUpAfter = 5, time.Minute
	// heldTimeout is how long a cell waits for a disk, or for routes, that an instance has which no cell of
	// an ending pod is: longer than a node of Kubernetes' own takes to let go of a disk in good order.
	heldTimeout = 2 * time.Minute
)

// The cloud's list of instances.
const (
	// idlePoll is how often the cloud's list is asked for at least: one call serves
	// all cells.
	idlePoll = 15 * time.Second
	// silentPoll is how often it is asked for while a cell is silent.
	silentPoll = 2 * time.Second
	// orphanAge is how long an instance must be seen without a cell before the
	// instance is terminated. A list may be older than the records.
	orphanAge = 10 * time.Second
	// missingAge is how long snapshots must not have shown a cell's instance before
	// the instance counts as gone. A list may lag behind a launch, EC2's by a few
	// seconds.
	missingAge = 20 * time.Second
	// silentAge is as missingAge, for a cell whose tunnel is down too.
	silentAge = 4 * time.Second
)

// Agents and kubelets.
const (
	// readyTimeout is the least time that a kubelet has from the join: it needs about a
	// second, on a machine that is being started perhaps ten. On a machine that was slow to
	// join, such as an emulated one on a busy host, it has as long as the join took.
	readyTimeout = 2 * time.Minute
	// agentPoll is how often a cell is asked whether it has its agent.
	agentPoll = time.Second
	// A disk, or routes, that are not free, or not there, are asked for again after diskPoll, and then
	// less and less often.
	diskPoll, longestDiskPoll = 250 * time.Millisecond, 4 * time.Second
	// pluginPoll is how often Kip checks whether a plugin has registered, or has let go of its volumes.
	pluginPoll = 100 * time.Millisecond
	// countPoll is how often Kip checks what a cell's kubelet counts of what its pod asks for, and countSilence how long the pod's owner
	// is not told: a driver finds eight GPUs within some ten seconds, and a kubelet that starts counts huge pages within some seconds.
	countPoll, countSilence = 200 * time.Millisecond, 30 * time.Second
)

// latest returns the latest of some times.
func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}
