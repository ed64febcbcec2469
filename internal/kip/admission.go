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
	"github.com/elotl/kip/internal/cellca"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// answerAdmission answers the API server about pods that are not made yet, in each
// process: pods are made whoever leads.
func (k *process) answerAdmission(ctx context.Context, own *store.Store) error {
	taint, err := k.Taint()
	if err != nil {
		return err
	}
	sealer, err := cellca.OpenSealer(k.cfg.Etcd.EncryptionKeyFiles)
	if err != nil {
		return err
	}
	profiles, err := k.profiles()
	if err != nil {
		return err
	}
	recorder, stop := k.api.eventRecorder(ctx, k.NodeName)
	defer stop()
	return admission.New(admission.Config{
		Name: k.NodeName,
		Own:  k.api.ownDynamic,
		Nodes: func(ctx context.Context) ([]admission.Node, error) {
			return k.nodesToAsk(ctx, own)
		},
		Listen: k.listenForAdmission,
		Authorities: func(ctx context.Context) (pki.Authorities, error) {
			is, err := cellca.Read(ctx, own, sealer, k.clock)
			return is.Authorities, err
		},
		Rules: func() admission.Rules {
			cfg := k.configNow()
			return admissionRules(cfg, k.controllerID, namesOf(cfg, k.NodeName), taint)
		},
		Machines: (&machines{process: k, own: own}).Of,
		Profiles: profiles,
		Unasked: func(why string) {
			reportOfNode(recorder, k.NodeName, events.NewProfilesIgnored(why))
		},
		Sets:  k.setsBesidePods(taint),
		Clock: k.clock,
		Log:   k.Log,
	}).Run(ctx)
}

// setsBesidePods are the DaemonSets that run beside pods, and what their pods have to tolerate: the taint of Kip's nodes, and the one by
// which these say that they are out of capacity. Without the second an update at that time would end the copies of a set.
func (k *process) setsBesidePods(taint *corev1.Taint) admission.Sets {
	sets := admission.Sets{Rules: daemonSets(k.cfg), Nodes: daemonsets.Nodes{Controller: k.controllerID}}
	if taint != nil {
		sets.Nodes.Taints = append(sets.Nodes.Taints, *taint)
	}
	sets.Nodes.Taints = append(sets.Nodes.Taints, corev1.Taint{Key: node.ShortTaint, Effect: corev1.TaintEffectNoSchedule})
	return sets
}

func (k *process) listenForAdmission(ctx context.Context) (net.Listener, error) {
	addresses, err := k.Addresses()
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(addresses[0].String(), strconv.Itoa(k.WebhookPort)))
	if err != nil {
		return nil, fmt.Errorf("listen on --webhook-port: %w", err)
	}
	return l, nil
}

// namesOf are those that the virtual nodes of a configuration may have.
func namesOf(cfg *config.Config, base string) []string {
	names := []string{base}
	if cfg.AutoNodes == "" && len(cfg.Nodes) == 0 {
		return names
	}
	for number := 1; number <= config.MaxNodes; number++ {
		names = append(names, nodeplan.Name(base, number))
	}
	return names
}

// nodesToAsk are the virtual nodes that the leader has stored, and who acts as each: Kip
// may have no right to be those that it could have besides. A Kip whose one node has no
// number stores none.
func (k *process) nodesToAsk(ctx context.Context, own *store.Store) (list []admission.Node, err error) {
	var stored []nodeplan.Entry
	if _, err := own.Get(ctx, nodes.Key, &stored); err != nil {
		return nil, err
	}
	if len(stored) == 0 {
		stored = []nodeplan.Entry{{}}
	}
	for _, e := range stored {
		name := e.Name(k.NodeName)
		as := rest.CopyConfig(k.api.nodeConfig)
		as.Impersonate.UserName = "system:node:" + name
		client, err := dynamic.NewForConfig(as)
		if err != nil {
			return nil, err
		}
		list = append(list, admission.Node{Name: name, As: client})
	}
	return list, nil
}

// configNow is the configuration of the nodes that is in force: that of this process
// while it leads, and else that of whoever does.
func (k *process) configNow() *config.Config {
	cfg := ofLeader(k.role, func(l *leading) *config.Config { return l.nodes.all.Configuration() })
	return cmp.Or(cfg, k.others.Load(), k.cfg)
}

// followOthers keeps up, while another leads, with the configuration of the nodes that is
// in force there, until ctx ends.
func (k *process) followOthers(ctx context.Context, own *store.Store) error {
	ticker := k.clock.NewTicker(nodes.LookEvery)
	defer ticker.Stop()
	for said := ""; ; {
		if why := k.lookAtOthers(ctx, own); why == nil {
			said = ""
		} else if why.Error() != said && ctx.Err() == nil {
			said = why.Error()
			k.Log.Warn("what is configured of the virtual nodes is not known anew: pods are made by what was", "err", why)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// lookAtOthers takes the nodes from what the leader stored, before it made anything of
// them: it knows more of what is wrong in the file than the file says. The labels of all
// nodes are the file's alone.
func (k *process) lookAtOthers(ctx context.Context, own *store.Store) error {
	if k.role.elected.Load() {
		return nil
	}
	cfg, _, err := config.Load(k.ProviderConfig)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var stored []nodeplan.Entry
	if _, err := own.Get(ctx, nodes.Key, &stored); err != nil {
		return err
	}
	cfg.AutoNodes, cfg.Nodes = "", nil
	for _, e := range stored {
		if !e.Removed {
			cfg.Nodes = append(cfg.Nodes, e.Node)
		}
	}
	k.others.Store(cfg)
	return nil
}

// admissionRules are what is known of the nodes that a configuration has. Their names may
// be any of those that Kip's nodes may have.
func admissionRules(cfg *config.Config, controller string, names []string, taint *corev1.Taint) admission.Rules {
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
	for _, name := range names {
		add(corev1.LabelHostname, name)
	}
	configured := cfg.Nodes
	if len(configured) == 0 {
		configured = []config.Node{{}}
	}
	for _, n := range configured {
		labels := cfg.LabelsOf(n)
		if _, ok := labels[corev1.LabelInstanceTypeStable]; !ok {
			add(corev1.LabelInstanceTypeStable, node.InstanceType)
		}
		for key, value := range labels {
			add(key, value)
		}
		add(placement.LabelCapacityType, nodeplan.Entry{Node: n}.CapacityType())
	}
	if cfg.AutoNodes == config.NodesAuto { // each is bought in one way
		add(placement.LabelCapacityType, config.OnDemand)
		add(placement.LabelCapacityType, config.Spot)
	}
	return rules
}

// Taint is that of the virtual node; nil where it has none.
func (o Options) Taint() (*corev1.Taint, error) {
	if o.DisableTaint {
		return nil, nil
	}
	t, err := node.TaintFromEnv(os.LookupEnv)
	return &t, err
}
