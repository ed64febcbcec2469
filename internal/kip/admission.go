package kip

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/roster"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// answerAdmission answers the API server about pods that are not made yet, in each
// process: pods are made whoever leads.
func (k *process) answerAdmission(ctx context.Context, own *store.Store) error {
	taint, err := k.taint()
	if err != nil {
		return err
	}
	sealer, err := openSealer(k.cfg.Etcd.EncryptionKeyFiles)
	if err != nil {
		return err
	}
	nodes, err := k.nodesToAsk()
	if err != nil {
		return err
	}
	return admission.New(admission.Config{
		Name:   k.NodeName,
		Own:    k.api.ownDynamic,
		Nodes:  nodes,
		Listen: k.listenForAdmission,
		Authority: func(ctx context.Context) (*pki.Authority, error) {
			is, err := readAuthority(ctx, own, sealer, k.clock)
			return is.authority, err
		},
		Rules: func() admission.Rules { return admissionRules(k.configNow(), k.controllerID, nodes, taint) },
		Clock: k.clock,
		Log:   k.Log,
	}).Run(ctx)
}

func (k *process) listenForAdmission(ctx context.Context) (net.Listener, error) {
	addresses, err := k.addresses()
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(addresses[0].String(), strconv.Itoa(k.WebhookPort)))
	if err != nil {
		return nil, fmt.Errorf("listen on --webhook-port: %w", err)
	}
	return l, nil
}

// nodesToAsk are the virtual nodes that this Kip may have.
func (k *process) nodesToAsk() ([]admission.Node, error) {
	nodes := []admission.Node{{Name: k.NodeName, As: k.api.nodeDynamic}}
	if !k.cfg.AutoNodes && len(k.cfg.Nodes) == 0 {
		return nodes, nil
	}
	for number := 1; number <= config.MaxNodes; number++ {
		as := rest.CopyConfig(k.api.nodeConfig)
		name := roster.Name(k.NodeName, number)
		as.Impersonate.UserName = "system:node:" + name
		client, err := dynamic.NewForConfig(as)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, admission.Node{Name: name, As: client})
	}
	return nodes, nil
}

// configNow is the configuration of the nodes: while this process leads, it follows the
// file.
func (k *process) configNow() *config.Config {
	cfg := ofLeader(k, func(l *leading) *config.Config {
		l.nodes.mu.Lock()
		defer l.nodes.mu.Unlock()
		return l.nodes.cfg
	})
	return cmp.Or(cfg, k.cfg)
}

// admissionRules are what is known of the nodes that a configuration has. Their names may
// be any of those that Kip's nodes may have.
func admissionRules(cfg *config.Config, controller string, named []admission.Node, taint *corev1.Taint) admission.Rules {
	rules := admission.Rules{
		Label:      admission.Label{Key: node.TypeLabel, Value: node.TypeValue},
		NodeLabels: map[string][]string{},
		NoInstance: node.InstanceType,
		Taint:      taint,
	}
	add := func(key, value string) {
		if value != "" && !slices.Contains(rules.NodeLabels[key], value) {
			rules.NodeLabels[key] = append(rules.NodeLabels[key], value)
		}
	}
	add(apiv1.LabelController, controller)
	for _, n := range named {
		add(corev1.LabelHostname, n.Name)
	}
	nodes := cfg.Nodes
	if len(nodes) == 0 {
		nodes = []config.Node{{}}
	}
	for _, n := range nodes {
		labels := cfg.LabelsOf(n)
		if _, ok := labels[corev1.LabelInstanceTypeStable]; !ok {
			add(corev1.LabelInstanceTypeStable, node.InstanceType)
		}
		for key, value := range labels {
			add(key, value)
		}
		add(placement.LabelCapacityType, roster.Entry{Node: n}.CapacityType())
	}
	if cfg.AutoNodes { // each is bought in one way
		add(placement.LabelCapacityType, config.OnDemand)
		add(placement.LabelCapacityType, config.Spot)
	}
	return rules
}

// taint is that of the virtual node; nil where it has none.
func (o Options) taint() (*corev1.Taint, error) {
	if o.DisableTaint {
		return nil, nil
	}
	t, err := node.TaintFromEnv(os.LookupEnv)
	return &t, err
}
