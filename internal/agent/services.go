package agent

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agent/supervise"
)

const (
	// servicesGate opens when kube-proxy has written its rules for the first
	// time since the agent started: a pod does not start before its Services work.
	servicesGate = "services"
	// syncPoll is how often kube-proxy is asked until then.
	syncPoll = 50 * time.Millisecond
	// syncAnswer bounds one such question.
	syncAnswer = 2 * time.Second
)

// syncedMetric is the time, in Unix seconds, at which kube-proxy last wrote its
// rules of a family; 0 or absent before.
const syncedMetric = `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=%q} `

// serveServices starts kube-proxy, or starts it again when its configuration is
// another one. Services are to work in families. The caller holds the lock.
func (a *Agent) serveServices(config []byte, families ...string) error {
	if a.proxy != nil && bytes.Equal(a.proxy.config, config) {
		return nil
	}
	a.proxy.stop()
	a.proxy = nil
	if err := network.Close(a.gateDir(), servicesGate); err != nil {
		return err
	}
	p, err := a.process(supervise.Spec{Name: "kube-proxy", Args: configs.KubeProxyArgs()})
	if err != nil {
		return err
	}
	a.proxy = a.startComponent(p, config, func(ctx context.Context) { a.openServices(ctx, families) })
	return nil
}

// openServices opens the gate once kube-proxy has written its rules. They outlive
// kube-proxy, so the gate stays open when it ends.
func (a *Agent) openServices(ctx context.Context, families []string) {
	client := &http.Client{Timeout: syncAnswer, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	began := a.o.Clock.Now()
	for {
		synced, err := rulesWritten(ctx, client, a.o.ProxyMetrics, families)
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

// rulesWritten asks kube-proxy's metrics at address whether it has written its rules
// of all families.
func rulesWritten(ctx context.Context, client *http.Client, address string, families []string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("kube-proxy's metrics: %s", resp.Status)
	}
	lines := bufio.NewScanner(resp.Body) // to its end, so that the connection can be used again
	metrics := make([]string, len(families))
	for i, family := range families {
		metrics[i] = fmt.Sprintf(syncedMetric, family)
	}
	written := 0
	for lines.Scan() {
		for _, metric := range metrics {
			value, ok := strings.CutPrefix(lines.Text(), metric)
			if !ok {
				continue
			}
			at, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return false, fmt.Errorf("kube-proxy's metrics: %w", err)
			}
			if at > 0 {
				written++
			}
		}
	}
	return lines.Err() == nil && written == len(families), lines.Err()
}
