package kip

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/test/journal"
)

func TestTheSchedulerDecidesAboutLabelsThatNodesHave(t *testing.T) {
	const family = "karpenter.k8s.aws/instance-family"
	for says, c := range map[string]struct {
		cfg  config.Config
		want map[string][]string
	}{
		"one node": {config.Config{}, map[string][]string{corev1.LabelInstanceTypeStable: {"kip"}}},
		"one that is labelled": {config.Config{Kubelet: config.Kubelet{Labels: map[string]string{
			family: "c5", corev1.LabelInstanceTypeStable: "x",
		}}}, map[string][]string{family: {"c5"}, corev1.LabelInstanceTypeStable: {"x"}}},
		"spot beside others": {config.Config{Nodes: []config.Node{
			{LaunchTypes: []string{config.Spot}, Labels: map[string]string{family: "m5"}}, {LaunchTypes: []string{config.OnDemand, config.Spot}}, {},
		}}, map[string][]string{placement.LabelCapacityType: {"spot"}, family: {"m5"}, corev1.LabelInstanceTypeStable: {"kip"}}},
		"auto": {config.Config{AutoNodes: config.NodesAuto}, map[string][]string{placement.LabelCapacityType: {"on-demand", "spot"},
			corev1.LabelInstanceTypeStable: {"kip"}}},
	} {
		rules := admissionRules(&c.cfg, "me", []string{"kip-0", "kip-0-1"}, nil)
		c.want[corev1.LabelHostname], c.want[apiv1.LabelController] = []string{"kip-0", "kip-0-1"}, []string{"me"}
		for _, key := range []string{corev1.LabelHostname, apiv1.LabelController,
			placement.LabelCapacityType, family, corev1.LabelInstanceTypeStable} {
			if got := rules.NodeLabels[key]; !slices.Equal(got, c.want[key]) {
				t.Errorf("%s: nodes have %s of %q, want %q", says, key, got, c.want[key])
			}
		}
	}
}

func TestAReplicaThatStandsByAnswersByTheNodesInForce(t *testing.T) {
	const family = "karpenter.k8s.aws/instance-family"
	file := filepath.Join(t.TempDir(), "provider.yaml")
	write := func(more string) {
		t.Helper()
		text := fmt.Sprintf("cloud: {sim: {socket: /none}}\ncells: {defaultInstanceType: small}\netcd: {internal: {dataDir: %s}}\n%s\n",
			filepath.Dir(file), more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		log := &journal.Log{}
		write("")
		began, _, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		k := &process{
			Options: Options{NodeName: "kip-0", ProviderConfig: file, Log: slog.New(slog.NewTextHandler(log, nil))},
			cfg:     began,
			api:     &apiServer{nodeConfig: &rest.Config{}},
			clock:   clock.RealClock{},
			role:    &role{},
		}
		own := store.Memory(nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.followOthers(ctx, own) }()
		revision := int64(0)
		leads := func(list ...config.Node) { // what a leader does with a file
			t.Helper()
			var entries []nodeplan.Entry
			for i, n := range list {
				entries = append(entries, nodeplan.Entry{Number: i + 1, Node: n})
			}
			entries = append(entries, nodeplan.Entry{Number: 9, Removed: true, Node: config.Node{Labels: map[string]string{family: "gone"}}})
			if revision, err = own.Put(ctx, nodes.Key, entries, revision); err != nil {
				t.Fatal(err)
			}
		}
		want := func(when string, names int, families, ways []string) {
			t.Helper()
			time.Sleep(nodes.LookEvery)
			synctest.Wait()
			cfg := k.configNow()
			rules := admissionRules(cfg, "me", namesOf(cfg, k.NodeName), nil)
			slices.Sort(rules.NodeLabels[family])
			if got := rules.NodeLabels; len(got[corev1.LabelHostname]) != names || !slices.Equal(got[family], families) ||
				!slices.Equal(got[placement.LabelCapacityType], ways) {
				t.Errorf("%s: %d names, families %q, bought as %q: want %d, %q, %q", when, len(got[corev1.LabelHostname]), got[family],
					got[placement.LabelCapacityType], names, families, ways)
			}
		}
		asks := func(when string, want ...string) {
			t.Helper()
			list, err := k.nodesToAsk(ctx, own)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range list {
				got = append(got, n.Name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: it asks as %q, want %q", when, got, want)
			}
		}
		all := config.MaxNodes + 1
		want("at first", 1, nil, nil)
		asks("at first", "kip-0")
		write("kubelet: {labels: {" + family + ": c5}}")
		want("labelled", 1, []string{"c5"}, nil)
		two := "nodes: [{zones: [a], launchTypes: [spot], labels: {" + family + ": m5}}, {zones: [b]}]\nkubelet: {labels: {" + family + ": c5}}"
		write(two)
		want("with nodes that no leader has taken", 1, []string{"c5"}, nil)
		leads(config.Node{Zones: []string{"a"}, LaunchTypes: []string{config.Spot}, Labels: map[string]string{family: "m5"}},
			config.Node{Zones: []string{"b"}})
		want("with nodes", all, []string{"c5", "m5"}, []string{"spot"})
		asks("with nodes", "kip-0-1", "kip-0-2", "kip-0-9") // the last has pods yet
		write("kubelet: {label: {}}")
		want("wrong", all, []string{"c5", "m5"}, []string{"spot"})
		if !log.Says("provider.yaml:4: kubelet.label") {
			t.Error("the mistake is not told")
		}
		write("nodes: auto")
		leads(config.Node{LaunchTypes: []string{config.OnDemand}})
		want("by itself", all, nil, []string{"on-demand"})

		k.role.elected.Store(true) // what it takes from now on is its own
		leads(config.Node{LaunchTypes: []string{config.Spot}})
		want("while it begins to lead", all, nil, []string{"on-demand"})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
