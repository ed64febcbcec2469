package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/disks"
	"github.com/elotl/kip/internal/agent/firstboot"
	"github.com/elotl/kip/internal/agent/kernel"
	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agent/plugins"
	"github.com/elotl/kip/internal/agent/upgrade"
	"github.com/elotl/kip/internal/agentapi"
)

// maxConfigBytes bounds the body of a PUT of the configuration.
const maxConfigBytes = 1 << 20

// Handler is the HTTP API that itzo serves to Kip, and to nobody else, on the
// tunnel.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+agentapi.PathConfig, a.putConfig)
	mux.HandleFunc("PUT "+agentapi.PathCloudInit, a.putCloudInit)
	mux.HandleFunc("PUT "+agentapi.PathAgent, a.putAgent)
	mux.HandleFunc("GET "+agentapi.PathCloudInit, a.getCloudInit)
	mux.HandleFunc("PUT "+agentapi.PathDisks, a.putDisks)
	mux.HandleFunc("PUT "+agentapi.PathPlugins, a.putPlugins)
	mux.HandleFunc("PUT "+agentapi.PathKernel, a.putKernel)
	mux.HandleFunc("GET "+agentapi.PathStatus, a.getStatus)
	mux.HandleFunc("PUT "+agentapi.PathFirewall, a.putFirewall)
	mux.HandleFunc("GET "+agentapi.PathFirewall, a.getFirewall)
	mux.HandleFunc("POST "+agentapi.PathExec, a.access.Exec)
	mux.HandleFunc("GET "+agentapi.PathLogs+"/{log}", a.access.Logs)
	mux.Handle(agentapi.PathKubelet+"/", a.pki.KubeletProxy(agentapi.PathKubelet, localapi.KubeletAddress, a.o.Log))
	return mux
}

// notRunning is what is said before it is known what an earlier run had, and at the end.
const notRunning = "itzo is starting or stopping"

func (a *Agent) putConfig(w http.ResponseWriter, r *http.Request) {
	came := a.o.SinceBoot()
	var c agentapi.Config
	body := http.MaxBytesReader(w, r.Body, maxConfigBytes)
	// Unknown keys are left alone: a newer Kip may talk to an older cell.
	d := json.NewDecoder(body)
	if err := d.Decode(&c); err != nil {
		http.Error(w, fmt.Sprintf("the configuration is not valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	if _, err := d.Token(); err != io.EOF {
		http.Error(w, "the configuration is not one JSON object", http.StatusBadRequest)
		return
	}
	if err := configs.Validate(c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		http.Error(w, notRunning, http.StatusServiceUnavailable)
		return
	}
	// A pod that it starts would end with this agent.
	if a.upgrade.UnderWay() {
		http.Error(w, "another agent is being fetched, and is to have the configuration", http.StatusServiceUnavailable)
		return
	}
	if err := a.apply(c); err != nil {
		a.o.Log.Error("apply Kip's configuration", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if a.o.Boot != (agentapi.Boot{}) && a.boot.Joined == 0 {
		a.boot = a.o.Boot
		a.boot.Joined = came
	}
	w.Header().Set("Content-Type", "application/json")
	// Who does not read it any more asks again.
	_ = json.NewEncoder(w).Encode(agentapi.Configured{
		Boot:  a.boot,
		Agent: agentapi.RunningAgent{Version: a.o.Version, SHA256: a.upgrade.Self()},

		HugePages:   a.pages.has,
		NoHugePages: a.pages.refused,

		CredentialProviders: a.providers.lack,
		SwapBytes:           a.swap.bytes,
		NoSwap:              a.swap.refused,
	})
}

func (a *Agent) putCloudInit(w http.ResponseWriter, r *http.Request) {
	var c agentapi.CloudInit
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfigBytes)).Decode(&c); err != nil {
		http.Error(w, "the cloud-init file is not in valid JSON", http.StatusBadRequest) // the parser's words may quote it
		return
	}
	done, err := a.machine.Apply(c.Document)
	a.answerCloudInit(w, done, err)
}

func (a *Agent) getCloudInit(w http.ResponseWriter, r *http.Request) {
	done, err := a.machine.Done(r.URL.Query().Get(agentapi.ParamDigest))
	a.answerCloudInit(w, done, err)
}

func (a *Agent) answerCloudInit(w http.ResponseWriter, done agentapi.CloudInitDone, err error) {
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(done) // who does not read it any more asks again
	case errors.Is(err, firstboot.ErrUnderWay):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.Is(err, firstboot.ErrNotBegun):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, firstboot.ErrRefused):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		a.o.Log.Error("carry out the cloud-init file", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (a *Agent) putAgent(w http.ResponseWriter, r *http.Request) {
	var wanted agentapi.Agent
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfigBytes)).Decode(&wanted); err != nil {
		http.Error(w, fmt.Sprintf("the agent is not named in valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	err := a.want(wanted)
	switch {
	case err == nil:
	case errors.Is(err, upgrade.ErrUnderWay), errors.Is(err, errNotRunning):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.Is(err, upgrade.ErrRefused):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		a.o.Log.Error("start another agent", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

var errNotRunning = errors.New(notRunning)

// want says which agent is to run, unless there may be a pod: under the lock by which a
// configuration is taken, so that one of both comes first.
func (a *Agent) want(wanted agentapi.Agent) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		return errNotRunning
	}
	return a.upgrade.Want(wanted, a.config != nil)
}

func (a *Agent) putDisks(w http.ResponseWriter, r *http.Request) {
	var d agentapi.Disks
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfigBytes)).Decode(&d); err != nil {
		http.Error(w, fmt.Sprintf("the list of disks is not valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	if err := disks.Validate(d.Disks); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err := a.disks.Apply(d.Disks)
	switch {
	case err == nil:
	case errors.Is(err, disks.ErrNotYet), errors.Is(err, disks.ErrInUse):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		a.o.Log.Error("bring the cell's disks into place", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (a *Agent) putPlugins(w http.ResponseWriter, r *http.Request) {
	var p agentapi.Plugins
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfigBytes)).Decode(&p); err != nil {
		http.Error(w, fmt.Sprintf("the list of plugins is not valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	if err := plugins.Validate(p.Plugins); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err := a.plugins.Apply(p.Plugins)
	switch {
	case err == nil:
	case errors.Is(err, plugins.ErrInUse):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		a.o.Log.Error("give the kubelet its plugins", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (a *Agent) putKernel(w http.ResponseWriter, r *http.Request) {
	var s agentapi.KernelSettings
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfigBytes)).Decode(&s); err != nil {
		http.Error(w, fmt.Sprintf("the kernel's settings are not valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	runs := a.kubelet != nil
	a.mu.Unlock()
	// kube-proxy sets sysctls before it writes rules.
	if open, err := network.IsOpen(a.gateDir(), servicesGate); err != nil || !runs || !open {
		http.Error(w, "kube-proxy has not set its own sysctls yet", http.StatusServiceUnavailable)
		return
	}
	err := a.kernel.Apply(r.Context(), s)
	switch {
	case err == nil:
	case errors.Is(err, kernel.ErrRefused):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		a.o.Log.Error("set the kernel's settings", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (a *Agent) getStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a.Status())
}

// Status reports how the cell's parts fare.
func (a *Agent) Status() agentapi.Status {
	a.mu.Lock()
	kubelet, devicePlugin := a.kubelet.status("kubelet"), a.devicePlugin
	a.mu.Unlock()
	s := agentapi.Status{
		CellID:     a.user.CellID,
		Version:    a.o.Version,
		Components: []agentapi.Component{a.containerd.Status(), kubelet},
	}
	if devicePlugin != nil {
		s.Components = append(s.Components, devicePlugin.Status())
	}
	return s
}
