package plugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/atomicfile"
)

// Set is the plugins of one machine.
type Set struct {
	root string // of the machine: "/"
	log  *slog.Logger
	mu   sync.Mutex
}

// New returns the plugins of the machine whose root directory is root.
func New(root string, log *slog.Logger) *Set { return &Set{root: root, log: log} }

// ErrInUse says that the kubelet has a volume of the driver.
var ErrInUse = errors.New("it is in use")

// suffix of the files of static pods.
const suffix = ".json"

// drivers have names that are DNS subdomains.
var drivers = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Validate says which of the plugins cannot be one.
func Validate(list []agentapi.Plugin) error {
	for i, p := range list {
		if len(p.Driver) > 63 || !drivers.MatchString(p.Driver) { // the most that CSI allows
			return fmt.Errorf("plugins[%d].driver is %q: want the name of a CSI driver such as nfs.csi.k8s.io", i, p.Driver)
		}
		var pod struct {
			Metadata struct{ Namespace, Name string }
		}
		if err := json.Unmarshal(p.Pod, &pod); err != nil {
			return fmt.Errorf("plugins[%d].pod is not a pod: %w", i, err)
		}
		if pod.Metadata.Namespace != agentapi.PluginNamespace || pod.Metadata.Name != agentapi.PluginPod(p.Driver) {
			return fmt.Errorf("plugins[%d].pod is %s/%s: want %s/%s", i, pod.Metadata.Namespace, pod.Metadata.Name, agentapi.PluginNamespace,
				agentapi.PluginPod(p.Driver))
		}
	}
	return nil
}

// Apply gives the kubelet exactly these plugins. One of another driver goes when
// the kubelet has no volume of it any more: ErrInUse means that the call is to be
// repeated. So it does without any plugin as long as the kubelet has a volume of a
// driver: a pod beside that of the cell may serve it.
func (s *Set) Apply(list []agentapi.Plugin) error {
	if err := Validate(list); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := filepath.Join(s.root, configs.StaticPodDir)
	wanted := map[string]json.RawMessage{}
	for _, p := range list {
		wanted[p.Driver+suffix] = p.Pod
	}
	has, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list the static pods: %w", err)
	}
	var surplus []string
	for _, e := range has {
		if _, keep := wanted[e.Name()]; !keep && strings.HasSuffix(e.Name(), suffix) && !strings.HasPrefix(e.Name(), ".") {
			surplus = append(surplus, e.Name())
		}
	}
	if len(surplus) > 0 || len(wanted) == 0 {
		if err := s.unused(wanted); err != nil {
			return err
		}
	}
	for _, name := range surplus {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take a plugin from the kubelet: %w", err)
		}
		s.log.Info("a CSI driver's plugin goes", "driver", strings.TrimSuffix(name, suffix))
	}
	for name, pod := range wanted {
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == string(pod) {
			continue
		}
		if err := write(path, pod); err != nil {
			return fmt.Errorf("give the kubelet a plugin: %w", err)
		}
		s.log.Info("a CSI driver's plugin is the kubelet's", "driver", strings.TrimSuffix(name, suffix))
	}
	return nil
}

// volumes are the folders that the kubelet makes before it asks a driver for a
// volume, and removes when the driver has let go of it: a pod's volumes and block
// devices, and what is staged for all pods.
var volumes = []string{
	"pods/*/volumes/kubernetes.io~csi/*",
	"pods/*/volumeDevices/kubernetes.io~csi/*",
	"plugins/kubernetes.io/csi/*/*",
}

// unused returns ErrInUse when the kubelet has a volume of a driver that is not
// wanted.
func (s *Set) unused(wanted map[string]json.RawMessage) error {
	for _, pattern := range volumes {
		found, err := filepath.Glob(filepath.Join(s.root, configs.KubeletRoot, pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			if driver := driverOf(path); driver == "" || wanted[driver+suffix] == nil {
				return fmt.Errorf("%w: %s", ErrInUse, path)
			}
		}
	}
	return nil
}

// driverOf reads whose volume the kubelet has in a folder; "" where it does not
// say.
func driverOf(dir string) string {
	for _, file := range []string{"vol_data.json", "data/vol_data.json"} {
		var data struct {
			Driver string `json:"driverName"`
		}
		if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil && json.Unmarshal(b, &data) == nil && data.Driver != "" {
			return data.Driver
		}
	}
	return ""
}

// write replaces a file as a whole, under a name that the kubelet passes over.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}
