package ec2

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// byWebIdentity is the action that takes a token instead of a key.
const byWebIdentity = "AssumeRoleWithWebIdentity"

// Provider is an identity provider of the account, whose tokens assume the roles that trust it
// (IAM User Guide, "Create an OpenID Connect (OIDC) identity provider in IAM").
type Provider struct {
	Issuer string // https://…, as in its tokens
	// Audiences are those of which a token has to name one.
	Audiences []string
	// Keys are those that the issuer signs with now, as its jwks_uri has them.
	Keys func(context.Context) (*jose.JSONWebKeySet, error)
}

// name is what IAM calls it.
func (p Provider) name() string { return strings.TrimPrefix(p.Issuer, "https://") }

// assumable is a role.
type assumable struct {
	policy *Policy // what it may do
	trust  *Policy // who may assume it by a token: of a provider, as the resource; nil for nobody
}

// Role is one that is made while a model runs.
type Role struct {
	ARN string
	// Policy is what it may do, Trust who may assume it by AssumeRoleWithWebIdentity: documents
	// of IAM's.
	Policy, Trust json.RawMessage
}

// PutRole makes a role, or changes it for those who assume it from now on.
func (m *Model) PutRole(r Role) error {
	if prefix := m.arnOf("iam", "", m.cfg.Account, "role/"); !strings.HasPrefix(r.ARN, prefix) {
		return fmt.Errorf("the field ARN is %q: want one that begins with %s", r.ARN, prefix)
	}
	policy, err := ParsePolicy(r.Policy)
	if err != nil {
		return fmt.Errorf("the field Policy: %w", err)
	}
	trust, err := ParseTrust(r.Trust)
	if err != nil {
		return fmt.Errorf("the field Trust: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.roles[r.ARN] = assumable{policy, trust}
	shown := IAMRole{ARN: r.ARN, Trust: string(r.Trust), Inline: map[string]string{"kip": string(r.Policy)}}
	m.iamRoles[shown.name()] = shown
	return nil
}

func (m *Model) role(arn string) assumable {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.roles[arn]
}

// webIdentity is the answer.
type webIdentity struct {
	XMLName     xml.Name    `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
	Credentials credentials `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	ARN         string      `xml:"AssumeRoleWithWebIdentityResult>AssumedRoleUser>Arn"`
	Subject     string      `xml:"AssumeRoleWithWebIdentityResult>SubjectFromWebIdentityToken"`
	Audience    string      `xml:"AssumeRoleWithWebIdentityResult>Audience"`
	Provider    string      `xml:"AssumeRoleWithWebIdentityResult>Provider"`
	RequestID   string      `xml:"ResponseMetadata>RequestId"`
}

// assumeRoleWithWebIdentity makes a session of a role for who has a token that the role trusts.
// No key is asked for.
func (m *Model) assumeRoleWithWebIdentity(r *request) (any, error) {
	token := r.text("WebIdentityToken")
	wanted, err := wishOf(r)
	if err != nil {
		return nil, err
	}
	by, claims, err := m.identify(r.ctx, token)
	if err != nil {
		return nil, err
	}
	of, provider := m.role(wanted.role), m.arnOf("iam", "", m.cfg.Account, "oidc-provider/"+by.name())
	about := map[string][]string{by.name() + ":sub": {claims.Subject}, by.name() + ":aud": claims.Audience}
	if of.trust == nil || !of.trust.allows("sts:"+byWebIdentity, provider, about) {
		return nil, &apiError{http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:" + byWebIdentity}
	}
	policy, err := wanted.mayDo(of.policy)
	if err != nil {
		return nil, err
	}
	return webIdentity{
		Credentials: m.begin(policy, wanted.lifetime),
		ARN:         wanted.arn(),
		Subject:     claims.Subject,
		Audience:    strings.Join(claims.Audience, " "),
		Provider:    provider,
		RequestID:   requestID,
	}, nil
}

// algorithms are those that IAM takes of a provider (IAM User Guide, "Create an OpenID Connect
// (OIDC) identity provider in IAM").
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// identify finds who issued a token and for whom, and believes it only if that one signed it, for
// an audience of the account's, and it is good now. Errors are those of STS' API reference.
func (m *Model) identify(ctx context.Context, token string) (by Provider, claims jwt.Claims, err error) {
	invalid := func(format string, args ...any) (Provider, jwt.Claims, error) {
		return Provider{}, jwt.Claims{}, bad("InvalidIdentityToken", format, args...)
	}
	read, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return invalid("The ID Token provided is not a valid JWT.")
	}
	var says jwt.Claims
	if err := read.UnsafeClaimsWithoutVerification(&says); err != nil {
		return invalid("The ID Token provided is not a valid JWT.")
	}
	n := slices.IndexFunc(m.cfg.Providers, func(p Provider) bool { return p.Issuer == says.Issuer })
	if n < 0 {
		return invalid("No OpenIDConnect provider found in your account for %s", says.Issuer)
	}
	by = m.cfg.Providers[n]
	keys, err := by.Keys(ctx)
	if err != nil {
		return Provider{}, jwt.Claims{}, bad("IDPCommunicationError", "Couldn't retrieve verification key from your identity provider: %v", err)
	}
	if err := read.Claims(*keys, &claims); err != nil {
		return invalid("The token's signature is none of %s: %v", by.Issuer, err)
	}
	if claims.Subject == "" || claims.Expiry == nil || claims.IssuedAt == nil {
		return invalid("Missing a required claim: want sub, iat and exp")
	}
	err = claims.ValidateWithLeeway(jwt.Expected{Issuer: by.Issuer, AnyAudience: by.Audiences, Time: m.now()}, 0)
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return Provider{}, jwt.Claims{}, bad("ExpiredTokenException", "Token expired: current date/time must be before the expiration date/time")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return invalid("Incorrect token audience")
	case err != nil:
		return invalid("%v", err)
	}
	return by, claims, nil
}
