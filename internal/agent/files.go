package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/disks"
	"github.com/elotl/kip/internal/agent/kernel"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/credentialproviders"
)

// shimName is the file that containerd looks for to run io.containerd.runc.v2.
const shimName = "containerd-shim-runc-v2"

// hostsMark is the first line of the registry files that are ours to remove.
const hostsMark = "# Written by itzo from Kip's cells.registryMirrors.\n"

// writeContainerdConfig writes what containerd needs before Kip has said anything.
func (a *Agent) writeContainerdConfig() error {
	if err := os.MkdirAll(a.binDir(), 0o755); err != nil {
		return fmt.Errorf("make the folder of links: %w", err)
	}
	for _, name := range []string{shimName, configs.CNIPlugin, disks.LosetupProgram} {
		path := filepath.Join(a.binDir(), name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if err := os.Symlink(a.o.Self, path); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	pause := configs.PauseImage
	if _, err := os.Stat(a.o.PauseArchive); errors.Is(err, fs.ErrNotExist) {
		pause = ""
	}
	return a.write(configs.ContainerdConfig, []byte(configs.Containerd(a.host, a.binDir(), pause)), 0o644)
}

// gateDir holds the gates that a pod's network waits for. They end with the
// machine.
func (a *Agent) gateDir() string { return filepath.Join(a.o.RunDir, "gates") }

// gates must be open before a pod has its network.
var gates = []string{policyGate, servicesGate}

// configFile keeps the last configuration.
func (a *Agent) configFile() string { return filepath.Join(a.o.StateDir, "config.json") }

func (a *Agent) storedConfig() (agentapi.Config, error) {
	var c agentapi.Config
	b, err := os.ReadFile(a.configFile())
	if err != nil {
		return c, fmt.Errorf("read the stored configuration: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read the stored configuration %s: %w", a.configFile(), err)
	}
	return c, configs.Validate(c)
}

// apply brings a valid configuration into force: it is stored, the files are
// written and the kubelet is started, or started again when it was another one
// or when programs of credential providers have come or gone. The caller holds the lock.
func (a *Agent) apply(c agentapi.Config) error {
	_, lack := a.runnableProviders(c)
	if a.config != nil && a.kubelet != nil && reflect.DeepEqual(*a.config, c) && maps.Equal(a.providers.lack, lack) {
		return nil
	}
	if err := a.guard(a.running); err != nil {
		return err // no kubelet, so no pod, without it
	}
	if err := a.o.Prepare(c); err != nil {
		return fmt.Errorf("prepare the network for the pod: %w", err)
	}
	stored, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("store the configuration: %w", err)
	}
	if err := writeFile(a.configFile(), stored, 0o600); err != nil {
		return fmt.Errorf("store the configuration: %w", err)
	}
	if err := a.writeHosts(c.RegistryMirrors, c.Registries); err != nil {
		return err
	}
	cni, err := configs.CNI(c, a.gateDir(), gates)
	if err != nil {
		return err
	}
	if c.Plugins {
		// Before the kubelet, which looks for it again only after a while.
		if err := os.MkdirAll(filepath.Join(a.o.Root, configs.StaticPodDir), 0o700); err != nil {
			return fmt.Errorf("make the folder of static pods: %w", err)
		}
	}
	if err := a.makeSwap(c); err != nil {
		return err
	}
	machine := configs.Machine{GPUs: a.gpus().Present(), Swap: a.swap.bytes > 0, Tasks: a.host.Tasks, Processors: runtime.NumCPU()}
	if a.logind != nil {
		machine.PodGrace, machine.PluginGrace = podGrace, pluginGrace
	}
	kubelet, err := configs.Kubelet(c, a.pki.Files, machine)
	if err != nil {
		return err
	}
	proxy, err := configs.KubeProxy(c, configs.OwnsConntrack(a.o.Root))
	if err != nil {
		return err
	}
	kubeconfig, err := configs.KubeconfigFile(a.api.URL(), a.pki.Files)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path    string
		content []byte
	}{
		{configs.CNIConfFile, cni},
		{configs.KubeletConfig, kubelet},
		{configs.Kubeconfig, kubeconfig},
		{configs.KubeProxyConfig, proxy},
	} {
		if err := a.write(f.path, f.content, 0o600); err != nil {
			return err
		}
	}
	if err := a.writeImageProviders(c); err != nil {
		return err
	}
	a.kubelet.stop()
	a.kubelet = nil
	if err := a.reservePages(c); err != nil {
		return err
	}
	if err := a.startKubelet(c); err != nil {
		return err
	}
	a.config = &c
	return nil
}

// reservePages has the kernel reserve the huge pages of a configuration. What the machine cannot have is no error: Kip is told of it,
// and decides. The caller holds the lock.
func (a *Agent) reservePages(c agentapi.Config) error {
	a.pages = reservedPages{}
	if len(c.HugePages) == 0 {
		return nil
	}
	has, err := a.kernel.Reserve(c.HugePages, c.ReservedMemoryBytes)
	switch {
	case errors.Is(err, kernel.ErrRefused):
		a.pages.refused = err.Error()
	case err != nil:
		return err
	}
	a.pages.has = has
	a.o.Log.Info("huge pages", "asked", c.HugePages, "has", has, "refused", a.pages.refused)
	return nil
}

// makeSwap makes the swap of a configuration, before a kubelet starts that counts it. What the machine cannot have is no error, as in
// reservePages. The caller holds the lock.
func (a *Agent) makeSwap(c agentapi.Config) error {
	a.swap = madeSwap{}
	if c.SwapBytes == 0 {
		return nil
	}
	switch err := a.kernel.Swap(c.SwapBytes); {
	case errors.Is(err, kernel.ErrRefused):
		a.swap.refused = err.Error()
	case err != nil:
		return err
	default:
		a.swap.bytes = c.SwapBytes
	}
	a.o.Log.Info("swap", "asked", c.SwapBytes, "has", a.swap.bytes, "refused", a.swap.refused)
	return nil
}

// providerDir holds the credential providers that the kubelet asks.
func (a *Agent) providerDir() string { return filepath.Join(a.o.RunDir, "credential-providers") }

// imageProviders are the credential providers of a configuration.
type imageProviders struct {
	dir  string            // that holds them; "" where the kubelet asks none
	lack map[string]string // of each of the operator's: why the kubelet does without it, or ""
}

// writeImageProviders writes for which images the kubelet asks which credential providers. The kubelet does not start with one that is not
// valid or whose program is missing, so it is left out, and Kip is told. The caller holds the lock.
func (a *Agent) writeImageProviders(c agentapi.Config) error {
	a.providers = imageProviders{}
	if err := os.RemoveAll(a.providerDir()); err != nil {
		return fmt.Errorf("remove the credential providers of an earlier configuration: %w", err)
	}
	links := map[string]string{}
	if len(c.ImagesOfCloud) > 0 {
		links[configs.ImagePlugin] = a.o.Self
	}
	c.CredentialProviders, a.providers.lack = a.runnableProviders(c)
	for _, p := range c.CredentialProviders {
		links[p.Name] = a.providerProgram(p)
	}
	if len(links) == 0 {
		return nil
	}
	file, err := configs.ImageProvidersFile(c, a.api.URL(), a.pki.Files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.providerDir(), 0o755); err != nil {
		return fmt.Errorf("make the folder of credential providers: %w", err)
	}
	for name, program := range links {
		if err := os.Symlink(program, filepath.Join(a.providerDir(), name)); err != nil {
			return fmt.Errorf("link the credential provider %s: %w", name, err)
		}
	}
	a.providers.dir = a.providerDir()
	return a.write(configs.ImageProviders, file, 0o600)
}

// runnableProviders returns the operator's credential providers with which the kubelet starts, and for each of all of them why the kubelet
// does without it, or "".
func (a *Agent) runnableProviders(c agentapi.Config) (runnable []credentialproviders.Provider, lack map[string]string) {
	if len(c.CredentialProviders) == 0 {
		return nil, nil
	}
	valid, lack := credentialproviders.Valid(c.CredentialProviders)
	for _, p := range valid {
		why := whyNoProgram(a.providerProgram(p))
		if why == "" {
			runnable = append(runnable, p)
		}
		if _, twice := lack[p.Name]; !twice {
			lack[p.Name] = why
		}
	}
	return runnable, lack
}

// providerProgram returns the program of a credential provider of the operator's.
func (a *Agent) providerProgram(p credentialproviders.Provider) string {
	return filepath.Join(a.o.Root, credentialproviders.Dir, p.Name)
}

// whyNoProgram returns why a file cannot be run; "" if it can.
func whyNoProgram(path string) string {
	is, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no file " + path
	case err != nil:
		return err.Error()
	case !is.Mode().IsRegular():
		return path + " is no file"
	case is.Mode().Perm()&0o111 == 0:
		return path + " is not executable"
	}
	return ""
}

// writeHosts writes containerd's registry files, which it reads at every pull,
// and removes those of an earlier configuration.
func (a *Agent) writeHosts(mirrors map[string][]string, registries []agentapi.Registry) error {
	files, err := configs.RegistryHosts(mirrors, registries)
	if err != nil {
		return err
	}
	dir := filepath.Join(a.o.Root, configs.RegistryDir)
	old, err := filepath.Glob(filepath.Join(dir, "*", "hosts.toml"))
	if err != nil {
		return fmt.Errorf("list registry files: %w", err)
	}
	for _, path := range old {
		if _, keep := files[filepath.Base(filepath.Dir(path))]; keep {
			continue
		}
		if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), hostsMark) {
			continue // somebody else's
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove a registry file of an earlier configuration: %w", err)
		}
		for _, name := range []string{configs.RegistryCA, configs.RegistryCert, configs.RegistryKey} {
			if err := os.Remove(filepath.Join(filepath.Dir(path), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a registry file of an earlier configuration: %w", err)
			}
		}
	}
	for path, text := range configs.RegistryFiles(registries) {
		if err := a.write(filepath.Join(configs.RegistryDir, path), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for host, text := range files {
		if err := a.write(filepath.Join(configs.RegistryDir, host, "hosts.toml"), []byte(hostsMark+text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// write writes a file of the machine, below the root.
func (a *Agent) write(path string, content []byte, mode fs.FileMode) error {
	if err := writeFile(filepath.Join(a.o.Root, path), content, mode); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// writeFile replaces a file as a whole, so that nobody reads half of it.
func writeFile(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, content, mode)
}
