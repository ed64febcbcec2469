// Package hollow owns cells without machines: for each simulated instance an agent
// in this process that joins through Kip's real tunnel and answers like itzo and a
// kubelet, in a few tens of kilobytes, so that one computer runs thousands. It
// starts no container, and imports neither client-go nor a kubelet.
//
// [Fleet.Boot] is the hook of the simulated cloud. What a hollow cell does of what
// a real one does:
//
//   - it makes a key, joins once, serves the agent's HTTP API and, below it, the
//     few paths of a kubelet that Kip reads;
//   - with its configuration it reads its node, reports it ready, and goes on to
//     report it and to renew its lease, as often as Kip configures
//     its kubelets;
//   - it watches its pods in one request (sendInitialEvents), "runs" the pod that
//     it is shown, reports its status, and ends and deletes it as a kubelet does.
//
// With [Config.Whole] it makes all requests that a real cell's kubelet and kube-proxy
// make, as often and in the same order: [Asks] lists them, and what is left out. Its
// node's status and its pod's are about as large as real ones. These differ still:
// all of what it sends is in JSON, where kube-proxy's one event is protobuf; a patch of
// a pod's status is the whole status and not what differs; no image is pulled, so that
// there are neither its events nor the node's report of it; the node is reported
// once at the start where it takes a real one two or three reports until it is ready.
//
// Two annotations of a pod say how long it runs and how it ends:
// [AnnotationRunSeconds] and [AnnotationExitCode].
//
// Cells need addresses. By default each listens on its instance's management
// address, so those must be addresses of this host, such as 127.64.0.1. That costs
// two file descriptors a cell, and a third for the ninety seconds after requests of
// Kip. [Shared] spares one of them; [Network] needs no sockets at all, and works in
// a bubble of testing/synctest, where Kip dials in the same process.
package hollow
