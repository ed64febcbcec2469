package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agentapi"
)

const (
	// servicesGate opens when kube-proxy has written its rules for the first
	// time since the kubelet was started: a pod does not start before its Services
	// work.
	servicesGate = "services"
	// syncPoll is how often kube-proxy is asked until then.
	syncPoll = 50 * time.Millisecond
	// syncAnswer bounds one such question.
	syncAnswer = 2 * time.Second
	// maxHealthBytes bounds what is read of an answer.
	maxHealthBytes = 64 << 10
)

// serviceFamilies are the IP families in which Services are to work on a cell.
func serviceFamilies(c agentapi.Config) []string {
	if c.NodeIPv6.IsValid() {
		return []string{"IPv4", "IPv6"}
	}
	return []string{"IPv4"}
}

// openServices opens the gate once kube-proxy has written its rules. They outlive
// kube-proxy, so the gate stays open when it ends.
func (a *Agent) openServices(ctx context.Context, families []string) {
	client := &http.Client{Timeout: syncAnswer, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	began := a.o.Clock.Now()
	for {
		synced, err := rulesWritten(ctx, client, a.o.ProxyHealth, families)
		if synced {
			if err = network.Open(a.gateDir(), servicesGate); err == nil {
				a.o.Log.Info("Services work", "after", a.o.Clock.Since(began).Round(time.Millisecond))
				return
			}
			a.o.Log.Error("let pods know that Services work", "err", err)
		} else if err != nil && ctx.Err() == nil {
			a.o.Log.Debug("kube-proxy does not say whether Services work", "err", err)
		}
		timer := a.o.Clock.NewTimer(syncPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// rulesWritten asks kube-proxy's health at address whether it has written its rules
// of all families.
// Its metrics tell that, too, but they are the kubelet's as well, some hundred
// kilobytes.
func rulesWritten(ctx context.Context, client *http.Client, address string, families []string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/livez", nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	// Unhealthy is who is late with later rules: the first ones are written.
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return false, fmt.Errorf("kube-proxy's health: %s", resp.Status)
	}
	var health struct {
		// By IP family; only families whose rules have been written are there.
		Status map[string]struct {
			LastUpdated time.Time `json:"lastUpdated"`
		} `json:"status"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxHealthBytes)).Decode(&health); err != nil {
		return false, fmt.Errorf("kube-proxy's health: %w", err)
	}
	late := func(family string) bool { return health.Status[family].LastUpdated.IsZero() }
	return !slices.ContainsFunc(families, late), nil
}
