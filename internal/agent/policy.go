package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"time"

	"github.com/elotl/kip/internal/agent/firewall"
	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agentapi"
)

const (
	// policyGate opens when Kip's rules for the pod are in force: a policy that
	// was there before the pod holds for its first packet.
	policyGate = "policy"
	// nftTimeout bounds one change of the firewall: 0.1 s for ten thousand
	// peers on an idle core.
	nftTimeout = 20 * time.Second
	// nftOutput bounds what is read of nft's output.
	nftOutput = 256 << 10
	// maxFirewallBytes bounds the body of a PUT of the firewall: more than a
	// hundred thousand peers.
	maxFirewallBytes = 8 << 20
)

// guard closes the firewall, if it is not there yet. Nothing of a pod's starts
// before that. The caller holds the lock, or is alone.
func (a *Agent) guard(ctx context.Context) error {
	digest, err := a.firewall.Begin(ctx)
	if err != nil {
		return err
	}
	if digest == "" {
		return network.Close(a.gateDir(), policyGate)
	}
	return network.Open(a.gateDir(), policyGate)
}

func (a *Agent) putFirewall(w http.ResponseWriter, r *http.Request) {
	encoded, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFirewallBytes))
	if err != nil {
		http.Error(w, fmt.Sprintf("read the firewall's rules: %v", err), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	running, config := a.running, a.config
	a.mu.Unlock()
	if running == nil || config == nil {
		http.Error(w, "itzo has no configuration yet, or is stopping", http.StatusServiceUnavailable)
		return
	}
	if r.Context().Err() != nil {
		return // a Kip that is gone may have newer rules by now
	}
	// Not the request's context: what was begun is finished, or its outcome
	// would be unknown.
	err = a.firewall.Apply(running, config.PodIP, config.PodIPv6, config.Routes, encoded)
	if err == nil {
		err = a.namePod(encoded)
	}
	if err == nil {
		err = network.Open(a.gateDir(), policyGate)
	}
	switch {
	case errors.As(err, new(firewall.ErrInvalid)):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		a.o.Log.Error("bring Kip's firewall rules into force", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// namePod has the CNI plugin know the pod among those that run beside it, as rules that are in force say.
func (a *Agent) namePod(encoded []byte) error {
	var fw agentapi.Firewall
	if err := json.Unmarshal(encoded, &fw); err != nil {
		return fmt.Errorf("read the pod's UID of the firewall's rules: %w", err)
	}
	if fw.Beside == nil {
		return network.NamePod(a.gateDir(), "")
	}
	return network.NamePod(a.gateDir(), fw.Beside.PodUID)
}

func (a *Agent) getFirewall(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(agentapi.FirewallStatus{
		Digest: a.firewall.Digest(),
		Beside: true,
		PodUID: network.NamedPod(a.gateDir()),
	})
}

// nft runs the program nft and returns what it printed.
func (a *Agent) nft(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	return a.run(ctx, nftOutput, a.o.Nft, append([]string{"nft"}, args...)...)
}

// programPath finds a program of the machine.
func programPath(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return "/usr/sbin/" + name // the first process of a machine has no PATH
}
