// Package plugins owns the node plugins of CSI drivers on a cell: the static pods
// that the kubelet runs them from, and when one may go. It mounts and unmounts
// nothing: the kubelet does, through them.
package plugins
