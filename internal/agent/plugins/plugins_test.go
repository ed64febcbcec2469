package plugins

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
)

func plugin(driver, more string) agentapi.Plugin {
	return agentapi.Plugin{Driver: driver, Pod: json.RawMessage(`{"metadata":{"namespace":"kube-system","name":"csi-plugin-` + driver +
		`"}` + more + `}`)}
}

func machine(t *testing.T) (*Set, string) {
	t.Helper()
	root := t.TempDir()
	return New(root, slog.New(slog.DiscardHandler)), root
}

func shown(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, configs.StaticPodDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestTheKubeletHasExactlyThePluginsOfTheCell(t *testing.T) {
	s, root := machine(t)
	for _, step := range []struct {
		plugins []agentapi.Plugin
		want    []string
	}{
		{nil, nil},
		{[]agentapi.Plugin{plugin("nfs.csi.k8s.io", ""), plugin("smb.csi.k8s.io", "")}, []string{"nfs.csi.k8s.io.json", "smb.csi.k8s.io.json"}},
		{[]agentapi.Plugin{plugin("nfs.csi.k8s.io", `,"spec":{}`)}, []string{"nfs.csi.k8s.io.json"}},
		{nil, nil},
	} {
		for range 2 {
			if err := s.Apply(step.plugins); err != nil {
				t.Fatal(err)
			}
			if len(step.want) == 0 && step.plugins == nil {
				if _, err := os.Stat(filepath.Join(root, configs.StaticPodDir)); os.IsNotExist(err) {
					continue
				}
			}
			if got := shown(t, root); !slices.Equal(got, step.want) {
				t.Errorf("the kubelet has %q: want %q", got, step.want)
			}
		}
		for _, p := range step.plugins {
			if got, err := os.ReadFile(filepath.Join(root, configs.StaticPodDir, p.Driver+".json")); err != nil || string(got) != string(p.Pod) {
				t.Errorf("the plugin of %s is %q (%v)", p.Driver, got, err)
			}
		}
	}
}

func TestAPluginStaysAsLongAsTheKubeletHasAVolumeOfIt(t *testing.T) {
	for name, dir := range map[string]string{
		"a volume":     "pods/uid/volumes/kubernetes.io~csi/pv",
		"a device":     "pods/uid/volumeDevices/kubernetes.io~csi/pv",
		"staged":       "plugins/kubernetes.io/csi/nfs.csi.k8s.io/0123",
		"staged block": "plugins/kubernetes.io/csi/volumeDevices/pv",
	} {
		t.Run(name, func(t *testing.T) {
			s, root := machine(t)
			if err := s.Apply([]agentapi.Plugin{plugin("nfs.csi.k8s.io", ""), plugin("smb.csi.k8s.io", "")}); err != nil {
				t.Fatal(err)
			}
			volume := filepath.Join(root, configs.KubeletRoot, dir)
			if err := os.MkdirAll(volume, 0o755); err != nil {
				t.Fatal(err)
			}
			// Whose it is cannot be known.
			if err := s.Apply([]agentapi.Plugin{plugin("nfs.csi.k8s.io", "")}); !errors.Is(err, ErrInUse) {
				t.Errorf("%v: want ErrInUse", err)
			}
			if err := os.WriteFile(filepath.Join(volume, "vol_data.json"), []byte(`{"driverName":"nfs.csi.k8s.io"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := s.Apply([]agentapi.Plugin{plugin("nfs.csi.k8s.io", "")}); err != nil {
				t.Errorf("a plugin without volumes stays: %v", err)
			}
			if err := s.Apply(nil); !errors.Is(err, ErrInUse) || len(shown(t, root)) != 1 {
				t.Errorf("%v, left %q: want ErrInUse and the plugin", err, shown(t, root))
			}
			if err := os.RemoveAll(volume); err != nil {
				t.Fatal(err)
			}
			if err := s.Apply(nil); err != nil || len(shown(t, root)) != 0 {
				t.Errorf("%v, left %q: want none", err, shown(t, root))
			}
		})
	}
}

// A pod beside that of the cell serves it.
func TestACellWithoutPluginsStillLetsGoOfVolumes(t *testing.T) {
	s, root := machine(t)
	volume := filepath.Join(root, configs.KubeletRoot, "pods/uid/volumes/kubernetes.io~csi/v")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(nil); !errors.Is(err, ErrInUse) {
		t.Errorf("%v: want ErrInUse", err)
	}
	if err := os.Remove(volume); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(nil); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoPluginIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		plugin agentapi.Plugin
		want   string
	}{
		"a path":      {plugin("../x", ""), `plugins[0].driver is "../x"`},
		"no name":     {plugin("", ""), `plugins[0].driver is ""`},
		"a long name": {plugin(strings.Repeat("a", 64), ""), "plugins[0].driver"},
		"no JSON":     {agentapi.Plugin{Driver: "nfs", Pod: json.RawMessage("{")}, "plugins[0].pod is not a pod"},
		"another name": {agentapi.Plugin{Driver: "nfs", Pod: plugin("smb", "").Pod},
			"plugins[0].pod is kube-system/csi-plugin-smb: want kube-system/csi-plugin-nfs"},
	} {
		s, root := machine(t)
		if err := s.Apply([]agentapi.Plugin{tc.plugin}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", name, err, tc.want)
		}
		if _, err := os.Stat(filepath.Join(root, "etc")); !os.IsNotExist(err) {
			t.Errorf("%s: something was written (%v)", name, err)
		}
	}
}
