// Package agent is itzo, the agent on a cell: it joins Kip by the tunnel, writes
// the configuration of containerd and the kubelet, keeps both running and passes
// requests between them and Kip. It knows nothing of pods: those are the
// kubelet's.
package agent
