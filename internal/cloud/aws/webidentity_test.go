package aws

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// What EKS' webhook gives a pod by its service account, Kip itself may have, too.
func TestKipIsTheRoleThatItsServiceAccountsTokenAssumes(t *testing.T) {
	const (
		issuer   = "https://issuer.example.com"
		role     = "arn:aws:iam::123456789012:role/kip"
		audience = "sts.amazonaws.com"
	)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cfg := anAccount(sim.Knobs{})
	cfg.Policies = map[string]*ec2.Policy{} // no key is anybody's
	cfg.Providers = []cloudmodel.Provider{{
		Issuer:    issuer,
		Audiences: []string{audience},
		Keys: func(context.Context) (*jose.JSONWebKeySet, error) {
			return &jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one"}}}, nil
		},
	}}
	model, url := serve(t, cfg)
	if err := model.Roles.PutRole(ec2.Role{ARN: role, Policy: Policy(), Trust: []byte(`{"Version": "2012-10-17", "Statement": [{"Sid": "T",
		"Effect": "Allow", "Principal": {"Federated": "arn:aws:iam::123456789012:oidc-provider/issuer.example.com"},
		"Action": "sts:AssumeRoleWithWebIdentity",
		"Condition": {"StringEquals": {"issuer.example.com:sub": "system:serviceaccount:kube-system:kip"}}}]}`)}); err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "one"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	t.Setenv("AWS_ROLE_ARN", role)
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS"} {
		t.Setenv(name, "")
	}
	for account, want := range map[string]error{"kip": nil, "other": cloud.ErrUnauthorised} {
		now := time.Now()
		token, err := jwt.Signed(signer).Claims(jwt.Claims{
			Issuer:   issuer,
			Subject:  "system:serviceaccount:kube-system:" + account,
			Audience: jwt.Audience{audience},
			IssuedAt: jwt.NewNumericDate(now),
			Expiry:   jwt.NewNumericDate(now.Add(time.Hour)),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		keyless := settings(url)
		keyless.AccessKeyID, keyless.SecretAccessKey = "", ""
		if _, err := open(t, keyless).List(t.Context(), owner); !errors.Is(err, want) {
			t.Errorf("a list as %s: %v, want %v", account, err, want)
		}
	}
}
