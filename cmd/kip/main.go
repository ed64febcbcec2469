package main

import (
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "github.com/virtual-kubelet/virtual-kubelet/node"
	_ "github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	_ "k8s.io/client-go/dynamic"
	_ "k8s.io/client-go/kubernetes"
	_ "golang.org/x/net/http2"
	_ "sigs.k8s.io/yaml"
	_ "go.yaml.in/yaml/v3"
)

func main() {}
