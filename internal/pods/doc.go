// Package pods holds the loop that matches pods to cells. Read this first: a pod
// that is bound to the virtual node gets a cell, a pod that has ended or is gone
// lets its cell go, and a pod that waits has an Event that says for what.
//
// reconcile in controller.go chooses what is done for a pod. Each of these is a struct with the few
// parts that it depends on, in a file of its own:
//
//	release.go    releases the cells of pods that are gone
//	delete.go     sees a deleted pod out
//	complete.go   releases the cell of a pod that has ended
//	attend.go     does for a running pod what its kubelet cannot: silence.go marks it as not ready while its cell is silent,
//	              rescue.go moves it away before the cloud takes the instance; evict.go evicts, disrupt.go a few at a time
//	              what could stay, of which age.go are those on old cells, and moveback.go those on what they did not ask for first
//	nomachine.go  has a pod of a DaemonSet stand without a machine; beside.go as its copies on cells do
//	request.go    requests a cell: choose.go chooses for it with which DaemonSets beside it (beside.go), fit.go what can be
//	              launched then, requestpolicy.go makes the request, as grants.go allow; placementerror.go is why nothing can
//
// A pod that gets no cell waits (wait.go): for its volumes (volumes.go), or for capacity, for which it may
// leave its node (leave.go, departures.go). duplicates.go sees that nothing else runs it, and fail.go fails it.
// pending.go bounds how long it waits.
//
// All of them stand on a loop, which has the queue, and a registry, which knows the pods. Each part notes there
// what it has to know about a pod until its next step; history.go notes what the pod's earlier cells have
// shown. watch.go hears of changes, and wire.go wires the parts.
//
// It never touches the cloud, the store or a cell; package cells does. It never
// writes a pod's status while a kubelet may own it.
package pods
