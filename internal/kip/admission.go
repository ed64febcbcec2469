package kip

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"

	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
)

// answerAdmission answers the API server about pods that are not made yet, in each
// process: pods are made whoever leads.
func (k *process) answerAdmission(ctx context.Context, own *store.Store) error {
	rules, err := k.admissionRules()
	if err != nil {
		return err
	}
	sealer, err := openSealer(k.cfg.Etcd.EncryptionKeyFiles)
	if err != nil {
		return err
	}
	return admission.New(admission.Config{
		Name:   k.NodeName,
		Own:    k.api.ownDynamic,
		Nodes:  []admission.Node{{Name: k.NodeName, As: k.api.nodeDynamic}},
		Listen: k.listenForAdmission,
		Authority: func(ctx context.Context) (*pki.Authority, error) {
			authority, _, _, err := readAuthority(ctx, own, sealer, k.clock)
			return authority, err
		},
		Rules: func() admission.Rules { return rules },
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

// admissionRules are what is known of this Kip's nodes without leading.
func (k *process) admissionRules() (admission.Rules, error) {
	rules := admission.Rules{
		Label:      admission.Label{Key: node.TypeLabel, Value: node.TypeValue},
		NodeLabels: map[string][]string{},
		NoInstance: node.InstanceType,
	}
	labels, err := node.Labels(node.Config{Name: k.NodeName, Arch: runtime.GOARCH, Labels: k.cfg.Kubelet.Labels})
	if err != nil {
		return rules, err
	}
	for key, value := range labels {
		rules.NodeLabels[key] = []string{value}
	}
	if rules.Taint, err = k.taint(); err != nil {
		return rules, err
	}
	return rules, nil
}

// taint is that of the virtual node; nil where it has none.
func (o Options) taint() (*corev1.Taint, error) {
	if o.DisableTaint {
		return nil, nil
	}
	t, err := node.TaintFromEnv(os.LookupEnv)
	return &t, err
}
