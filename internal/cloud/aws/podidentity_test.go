package aws

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

// EKS has Kip's pod ask an agent on its node for credentials, with a token that the kubelet renews.
func TestKipHasItsRoleByPodIdentity(t *testing.T) {
	account := anAccount(sim.Knobs{})
	policy, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	account.Policies = map[string]*ec2.Policy{"AKIAOFTHEPOD": policy}
	_, url := serve(t, account)
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var asked atomic.Value
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(map[string]any{
			"AccessKeyId": "AKIAOFTHEPOD", "SecretAccessKey": "secret", "AccountId": "123456789012",
			"Expiration": time.Now().Add(time.Minute).UTC().Format(time.RFC3339), // so soon that the next call asks again
		}); err != nil {
			t.Error(err)
		}
	}))
	defer agent.Close()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL+"/v1/credentials")
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)
	write("first")
	s := settings(url)
	s.AccessKeyID, s.SecretAccessKey = "", ""
	c := open(t, s)
	if _, err := c.List(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	if got := asked.Load(); got != "first" {
		t.Errorf("the agent was asked with %q", got)
	}
	write("second")
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Error(err)
	}
	if got := asked.Load(); got != "second" {
		t.Errorf("once the token is renewed, the agent was asked with %q", got)
	}
}
