package ec2

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
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

// registryToken is a right to pull.
type registryToken struct {
	policy *Policy // nil for everything
	until  time.Time
}

// serveECR answers a call of ECR's API, in which a time is seconds.
func (m *Model) serveECR(w http.ResponseWriter, r *http.Request) {
	m.serveJSON(w, r, ecrTarget, "message", m.authorizationToken)
}

func (m *Model) authorizationToken(r *http.Request, action string) (any, error) {
	if action != "GetAuthorizationToken" {
		return nil, bad("UnknownOperationException", "%s", action)
	}
	var sent map[string]any
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || len(sent) > 0 {
		return nil, bad("InvalidParameterException", "the body is %v, %v: want {}", sent, err)
	}
	policy, err := m.policyOf(r.Header.Get("Authorization"), r.Header.Get(sessionHeader))
	if err != nil {
		return nil, &apiError{http.StatusBadRequest, "UnrecognizedClientException", "The security token included in the request is invalid."}
	}
	asked := &request{ctx: r.Context(), action: action, policy: policy}
	if m.may(asked, "ecr:"+action, "*", nil) != nil {
		return nil, bad("AccessDeniedException", "User is not authorized to perform: ecr:%s on resource: *", action)
	}
	var password string
	var until time.Time
	err = m.sim.Take(r.Context(), sim.Call{Kind: cloud.CallPullCredentials}, func() error {
		password, until = m.newToken(policy)
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
func (m *Model) newToken(policy *Policy) (password string, until time.Time) {
	password, until = rand.Text()+rand.Text(), m.now().Add(tokenLifetime)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[password] = registryToken{policy, until}
	return password, until
}
