package config

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheFileOf2020IsRewrittenAsTodays(t *testing.T) {
	old, err := os.ReadFile("testdata/kip-2020.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Migrate("provider.yaml", old)
	if err != nil || !m.Changed {
		t.Fatalf("changed: %t, %v", m != nil && m.Changed, err)
	}
	want, err := os.ReadFile("testdata/kip-2020.migrated.yaml")
	if err != nil && !*update {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/kip-2020.migrated.yaml", m.YAML, 0o600); err != nil {
			t.Fatal(err)
		}
	} else if string(m.YAML) != string(want) {
		t.Errorf("it is\n%s\nwant\n%s", m.YAML, want)
	}
	if _, warnings, err := Parse("provider.yaml", m.YAML); err != nil || len(warnings) != 0 {
		t.Errorf("today's file: %v, warnings %v", err, warnings)
	}
	if pods := m.Config.Kubelet.Capacity["pods"]; pods.Value() != 200 {
		t.Errorf("the node has %s pods", pods.String())
	}
	fates := map[string]MigratedKey{}
	for _, k := range m.Keys {
		fates[k.Key] = k
	}
	for key, want := range map[string]MigratedKey{
		"apiVersion":                         {Line: 2, Fate: Same},
		"cloud.aws.ecsClusterName":           {Line: 12, Fate: Gone, Why: "Fargate is not supported"},
		"cells.standbyCells":                 {Line: 23, Fate: Same},
		"cells.extraCIDRs":                   {Line: 33, Fate: Same},
		"cells.cellConfig.itzoFlag-use-anka": {Line: 48, Fate: Gone, Why: insteadOf("itzoFlag-use-anka")},
		"kubelet.memory":                     {Line: 54, Fate: Renamed, To: "kubelet.capacity.memory"},
		"kubelet.labels.team":                {Line: 57, Fate: Same},
	} {
		want.Key = key
		if got := fates[key]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	again, err := Migrate("provider.yaml", m.YAML)
	if err != nil || again.Changed || string(again.YAML) != string(m.YAML) {
		t.Errorf("the second time: changed %t, %v", again != nil && again.Changed, err)
	}
}

// Whatever is renamed or gone in this package is migrated.
func TestEachKeyThatIsNotTodaysIsMigrated(t *testing.T) {
	n := 0
	for _, k := range keys {
		if k.deprecated == "" {
			continue
		}
		n++
		parts := strings.Split(k.path, ".")
		text := `"1"`
		for i := len(parts) - 1; i >= 1; i-- {
			text = fmt.Sprintf("{%s: %s}", parts[i], text)
		}
		file := "cells: {defaultInstanceType: t3.nano}\n"
		if parts[0] != "cloud" {
			file += "cloud: {aws: {}}\n"
		}
		m, err := Migrate("p.yaml", []byte(file+parts[0]+": "+text+"\n"))
		if err != nil || !m.Changed || len(m.Warnings) != 0 {
			t.Errorf("%s: %+v, %v", k.path, m, err)
		}
	}
	if n != 4 {
		t.Errorf("there are %d such keys: want all that docs/kip-2020.md has", n)
	}
}

func TestWhatIsTodaysIsLeftAsItIs(t *testing.T) {
	text := "# mine\n\n" + full + "\n\n# the end\n"
	m, err := Migrate("p.yaml", []byte(text))
	if err != nil || m.Changed || string(m.YAML) != text {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestNothingIsRewrittenWhoseMeaningIsNotKnown(t *testing.T) {
	for what, tc := range map[string]struct{ text, want string }{
		"an unknown key":  {least + "kubelet: {cpu: 5, cpus: 6}", "kubelet.cpus: no such key"},
		"a wrong value":   {least + "  statusInterval: 0\nkubelet: {cpu: 5}", "cells.statusInterval: \"0\" is not valid"},
		"both names":      {least + "kubelet: {cpu: 5, capacity: {cpu: 6}}", "kubelet.cpu: kubelet.capacity.cpu is there too"},
		"no digest":       {least + "  itzo: {version: latest, url: 'https://example.com'}\nkubelet: {cpu: 5}", "cells.itzo.sha256"},
		"no YAML":         {"a: [", "no valid YAML"},
		"a merged key":    {least + "kubelet: {<<: {cpu: 5}}", "kubelet.<<: no such key"},
		"a shared anchor": {"cloud: {aws: {}}\ncells: {defaultInstanceType: x}\nkubelet: {cpu: 1, capacity: &c {memory: 1Gi}}\nnodes: [{capacity: *c}]", "would not mean the same"},
	} {
		m, err := Migrate("p.yaml", []byte(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want %q", what, m, err, tc.want)
		}
	}
}
