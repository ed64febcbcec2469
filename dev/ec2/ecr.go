package ec2

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

const (
	// ecrTarget begins the header that names an action of ECR's API.
	ecrTarget = "AmazonEC2ContainerRegistry_V20150921."
	// registryPath is where images are (OCI Distribution Specification).
	registryPath = "/v2/"
	// registryUser has every token of ECR's as its password.
	registryUser = "AWS"
	// tokenLifetime is that of such a token (ECR API reference, "GetAuthorizationToken").
	tokenLifetime = 12 * time.Hour
)

// registryToken is a right to pull.
type registryToken struct {
	policy *Policy // nil for everything
	until  time.Time
}

// serveECR answers a call of ECR's API: JSON, in which a time is seconds.
func (m *Model) serveECR(w http.ResponseWriter, r *http.Request) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), ecrTarget)
	m.count(action)
	answer, err := m.authorizationToken(r, action)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if err != nil {
		e := apiErrorOf(err)
		if e == nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(e.status)
		answer = map[string]string{"__type": e.code, "message": e.message}
	}
	_ = json.NewEncoder(w).Encode(answer) // or the caller is gone
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
	password := rand.Text() + rand.Text()
	t := registryToken{policy: policy}
	err = m.sim.Take(r.Context(), sim.Call{Kind: cloud.CallPullCredentials}, func() error {
		t.until = m.now().Add(tokenLifetime)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.tokens[password] = t
		return nil
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"authorizationData": []any{map[string]any{
		"authorizationToken": base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + password)),
		"expiresAt":          float64(t.until.UnixMilli()) / 1000,
		"proxyEndpoint":      "https://" + m.cfg.Account + ".dkr.ecr." + m.cfg.Region + ".amazonaws.com",
	}}}, nil
}

// rightsOf are those that ECR asks for what is done with an image, by the method and the part
// of its path. Source: Amazon ECR User Guide, "Private registry permissions".
var rightsOf = map[string]string{
	"GET manifests": "ecr:BatchGetImage",
	"GET blobs":     "ecr:GetDownloadUrlForLayer",
	"PUT manifests": "ecr:PutImage",
}

// serveRegistry answers who pulls an image of the account, or pushes its manifest: with a line
// for each manifest and each blob, whatever its name. What is pushed is dropped, since what
// matters here is who may.
func (m *Model) serveRegistry(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code, format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="`+m.cfg.Account+`",service="ecr.amazonaws.com"`)
		}
		w.WriteHeader(status)
		said := map[string]string{"code": code, "message": fmt.Sprintf(format, args...)}
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{said}})
	}
	user, password, _ := r.BasicAuth()
	m.mu.Lock()
	token, known := m.tokens[password]
	m.mu.Unlock()
	if user != registryUser || !known || !m.now().Before(token.until) {
		refuse(http.StatusUnauthorized, "UNAUTHORIZED", "Your authorization token is unknown or has expired")
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, registryPath), "/")
	n := max(0, len(parts)-2)
	repository, what := strings.Join(parts[:n], "/"), parts[n]
	right := rightsOf[r.Method+" "+what]
	if right == "" || repository == "" {
		refuse(http.StatusNotFound, "UNSUPPORTED", "the model does not know %s %s", r.Method, r.URL.Path)
		return
	}
	arn := "arn:aws:ecr:" + m.cfg.Region + ":" + m.cfg.Account + ":repository/" + repository
	open := m.cfg.RepositoryPolicies[repository]
	let := token.policy != nil && open != nil && open.allows(right, arn, nil) && !token.policy.denies(right, arn, nil)
	if !let && m.may(&request{ctx: r.Context(), action: right, policy: token.policy}, right, arn, nil) != nil {
		refuse(http.StatusForbidden, "DENIED", "User is not authorized to perform: %s on resource: %s", right, arn)
		return
	}
	if !slices.Contains(m.cfg.Repositories, repository) {
		refuse(http.StatusNotFound, "NAME_UNKNOWN", "The repository with name '%s' does not exist in the registry", repository)
		return
	}
	if r.Method == http.MethodPut {
		w.WriteHeader(http.StatusCreated)
	}
	fmt.Fprintf(w, "%s of %s\n", what, repository)
}
