package ec2

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/elotl/kip/dev/cloudmodel"
)

const (
	issuer     = "https://issuer.example.com/id"
	podsRole   = "arn:aws:iam::123456789012:role/pods"
	account    = "system:serviceaccount:shop:web"
	audience   = "sts.amazonaws.com"
	podsPolicy = `{"Version": "2012-10-17", "Statement": [{"Sid": "A", "Effect": "Allow", "Action": "ecr:*", "Resource": "*"}]}`
)

// trusting trusts one account of a provider's.
func trusting(provider, account string) string {
	return `{"Version": "2012-10-17", "Statement": [{"Sid": "T", "Effect": "Allow",
		"Principal": {"Federated": "arn:aws:iam::123456789012:oidc-provider/` + provider + `"},
		"Action": "sts:AssumeRoleWithWebIdentity", "Condition": {"StringEquals": {
			"` + provider + `:sub": "` + account + `", "` + provider + `:aud": "` + audience + `"}}}]}`
}

// issuing is an account that knows an issuer of tokens.
type issuing struct {
	*asker
	key   *ecdsa.PrivateKey
	asked error // what asking the issuer fails with
}

func newIssuing(t *testing.T) *issuing {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuing{asker: newAsker(t), key: key}
	i.model.base.cfg.Providers = []cloudmodel.Provider{{
		Issuer:    issuer,
		Audiences: []string{audience},
		Keys: func(context.Context) (*jose.JSONWebKeySet, error) {
			return &jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one", Use: "sig"}}}, i.asked
		},
	}}
	provider := strings.TrimPrefix(issuer, "https://")
	if err := i.model.Roles.PutRole(Role{ARN: podsRole, Policy: []byte(podsPolicy), Trust: []byte(trusting(provider, account))}); err != nil {
		t.Fatal(err)
	}
	return i
}

// good are the claims of a token of the account.
func (i *issuing) good() jwt.Claims {
	now := i.clock.Now()
	return jwt.Claims{
		Issuer:   issuer,
		Subject:  account,
		Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(now),
		Expiry:   jwt.NewNumericDate(now.Add(time.Hour)),
	}
}

func (i *issuing) signed(claims jwt.Claims, alg jose.SignatureAlgorithm, key any, id string) string {
	i.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", id))
	if err != nil {
		i.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		i.Fatal(err)
	}
	return token
}

// assumeBy assumes a role by a token, without a key, and returns the code of a refusal, or "".
func (i *issuing) assumeBy(token, role string, more ...string) (k keys, subject, code string) {
	i.Helper()
	form := url.Values{
		"Action": {byWebIdentity}, "Version": {stsVersion}, "RoleArn": {role}, "RoleSessionName": {"one"}, "WebIdentityToken": {token},
	}
	for _, m := range more {
		name, value, _ := strings.Cut(m, "=")
		form.Set(name, value)
	}
	status, text := i.send("", "", func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}, http.MethodPost, "/", form.Encode())
	var answer struct {
		Code    string `xml:"Error>Code"`
		ID      string `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
		Token   string `xml:"AssumeRoleWithWebIdentityResult>Credentials>SessionToken"`
		Subject string `xml:"AssumeRoleWithWebIdentityResult>SubjectFromWebIdentityToken"`
	}
	if err := xml.Unmarshal([]byte(text), &answer); err != nil || (status == http.StatusOK) != (answer.Code == "") {
		i.Fatalf("%d %s, %v", status, text, err)
	}
	return keys{answer.ID, answer.Token}, answer.Subject, answer.Code
}

func TestATokenOfAProviderAssumesTheRoleThatTrustsIt(t *testing.T) {
	i := newIssuing(t)
	k, subject, code := i.assumeBy(i.signed(i.good(), jose.ES256, i.key, "one"), podsRole)
	if code != "" || subject != account {
		t.Fatalf("%q, of %q", code, subject)
	}
	password, code := i.token(k)
	if code != "" || i.pull(password, "a/b/manifests/1") != http.StatusOK {
		t.Errorf("the session may not what the role may: %q", code)
	}
	k, _, code = i.assumeBy(i.signed(i.good(), jose.ES256, i.key, "one"), podsRole, limit("arn:aws:ecr:us-east-1:123456789012:repository/c"))
	if code != "" {
		t.Fatal(code)
	}
	password, _ = i.token(k)
	if got := i.pull(password, "a/b/manifests/1"); got != http.StatusForbidden {
		t.Errorf("the session may what its policy does not allow: %d", got)
	}
}

func TestATokenIsBelievedOnlyIfItsIssuerSignedItForTheAccountsAudience(t *testing.T) {
	i := newIssuing(t)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*jwt.Claims)) string {
		claims := i.good()
		change(&claims)
		return i.signed(claims, jose.ES256, i.key, "one")
	}
	in := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(i.clock.Now().Add(d)) }
	good := i.signed(i.good(), jose.ES256, i.key, "one")
	head, rest, _ := strings.Cut(good, ".")
	_, signature, _ := strings.Cut(rest, ".")
	_, otherBody, _ := strings.Cut(with(func(c *jwt.Claims) { c.Subject = "system:serviceaccount:shop:root" }), ".")
	otherBody, _, _ = strings.Cut(otherBody, ".")
	for name, one := range map[string]struct{ token, role, want string }{
		"as it may":              {good, podsRole, ""},
		"no token":               {"", podsRole, "InvalidIdentityToken"},
		"no JWT":                 {"a.b.c", podsRole, "InvalidIdentityToken"},
		"unsigned":               {"eyJhbGciOiJub25lIn0." + rest[:strings.IndexByte(rest, '.')] + ".", podsRole, "InvalidIdentityToken"},
		"another's body":         {head + "." + otherBody + "." + signature, podsRole, "InvalidIdentityToken"},
		"another's key":          {i.signed(i.good(), jose.ES256, other, "one"), podsRole, "InvalidIdentityToken"},
		"a key of another name":  {i.signed(i.good(), jose.ES256, i.key, "two"), podsRole, "InvalidIdentityToken"},
		"another algorithm":      {i.signed(i.good(), jose.PS256, weak, "one"), podsRole, "InvalidIdentityToken"},
		"a secret as the key":    {i.signed(i.good(), jose.HS256, make([]byte, 32), "one"), podsRole, "InvalidIdentityToken"},
		"another issuer":         {with(func(c *jwt.Claims) { c.Issuer += "/x" }), podsRole, "InvalidIdentityToken"},
		"another audience":       {with(func(c *jwt.Claims) { c.Audience = jwt.Audience{"kubernetes"} }), podsRole, "InvalidIdentityToken"},
		"no audience":            {with(func(c *jwt.Claims) { c.Audience = nil }), podsRole, "InvalidIdentityToken"},
		"no end":                 {with(func(c *jwt.Claims) { c.Expiry = nil }), podsRole, "InvalidIdentityToken"},
		"over":                   {with(func(c *jwt.Claims) { c.Expiry = in(-2 * time.Second) }), podsRole, "ExpiredTokenException"},
		"not yet":                {with(func(c *jwt.Claims) { c.NotBefore = in(time.Minute) }), podsRole, "InvalidIdentityToken"},
		"of another account":     {with(func(c *jwt.Claims) { c.Subject += "-2" }), podsRole, "AccessDenied"},
		"for a role of Kip's":    {good, role, "AccessDenied"},
		"for a role not there":   {good, podsRole + "-2", "AccessDenied"},
		"of nobody in the shop":  {with(func(c *jwt.Claims) { c.Subject = "" }), podsRole, "InvalidIdentityToken"},
		"one of several readers": {with(func(c *jwt.Claims) { c.Audience = jwt.Audience{"x", audience} }), podsRole, ""},
	} {
		if _, _, code := i.assumeBy(one.token, one.role); code != one.want {
			t.Errorf("%s: %q, want %q", name, code, one.want)
		}
	}
	i.asked = errors.New("away")
	if _, _, code := i.assumeBy(good, podsRole); code != "IDPCommunicationError" {
		t.Errorf("without the issuer's keys: %q", code)
	}
}

func TestARoleIsRefusedWithWhatIsWrongWithIt(t *testing.T) {
	i := newIssuing(t)
	trust := trusting("issuer.example.com/id", account)
	for name, one := range map[string]struct{ arn, policy, trust, want string }{
		"another account": {"arn:aws:iam::210987654321:role/x", podsPolicy, trust, "the field ARN"},
		"a policy":        {podsRole, "x", trust, "the field Policy"},
		"a trust":         {podsRole, podsPolicy, strings.Replace(trust, "Federated", "AWS", 1), "the field Trust"},
		"a trust of all":  {podsRole, podsPolicy, strings.Replace(trust, `"Principal"`, `"Resource"`, 1), "the field Trust"},
	} {
		err := i.model.Roles.PutRole(Role{ARN: one.arn, Policy: []byte(one.policy), Trust: []byte(one.trust)})
		if got := fmt.Sprint(err); !strings.Contains(got, one.want) {
			t.Errorf("%s: %s, want %s", name, got, one.want)
		}
	}
}
