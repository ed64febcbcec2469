// Package podlogs owns the container logs that outlive their cell: it fetches
// them when a pod has ended, keeps the end of each in a folder, and answers
// `kubectl logs` from there until the pod object is deleted. It must not know
// why a pod ended, nor touch the logs of a pod that runs.
//
// A pod has a folder named after its UID, with a file for each container (and
// one for its previous run) and index.json, which is written last. A log keeps
// the time of each line, as the kubelet gives it, so that every option of a
// later request can be answered.
package podlogs
