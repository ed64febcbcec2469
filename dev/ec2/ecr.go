package ec2

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

const (
	// ecrTarget begins the header that names an action of ECR's API.
	ecrTarget = "AmazonEC2ContainerRegistry_V20150921."
	// tokenLifetime is that of such a token (ECR API reference, "GetAuthorizationToken").
	tokenLifetime = 12 * time.Hour
)

// serveECR answers a call of ECR's API, in which a time is seconds.
func (m *registry) serveECR(w http.ResponseWriter, r *http.Request) {
	serveTarget(m.callers, w, r, jsonService{
		name:      "ecr",
		target:    ecrTarget,
		action:    "GetAuthorizationToken",
		malformed: "InvalidParameterException",
		message:   "message",
	}, m.authorizationToken)
}

func (m *registry) authorizationToken(r *request, _ struct{}) (any, error) {
	var password string
	var until time.Time
	err := m.sim.Take(r.ctx, sim.Call{Kind: cloud.CallPullCredentials}, func() error {
		password, until = m.newToken(r.policy)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"authorizationData": []any{map[string]any{
		"authorizationToken": base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + password)),
		"expiresAt":          float64(until.UnixMilli()) / 1000,
		"proxyEndpoint":      "https://" + RegistryHost(m.cfg.Account, m.cfg.Region),
	}}}, nil
}

// newToken makes one for the holder of a policy, and returns it as the registry takes it.
func (m *registry) newToken(policy *Policy) (password string, until time.Time) {
	password, until = rand.Text()+rand.Text(), m.model.Now().Add(tokenLifetime)
	m.tokens.Give(password, policy, until)
	return password, until
}
