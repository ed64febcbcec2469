// Package cluster owns a Kubernetes control plane within this process: the
// upstream etcd, kube-apiserver, kube-controller-manager and kube-scheduler,
// each driven by its own flags. It is for development and tests: everything is
// made anew in a state folder and thrown away with it. It must not be imported
// by anything that ships.
package cluster
