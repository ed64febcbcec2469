package ec2

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/elotl/kip/dev/cloudmodel"
)

// byWebIdentity is the action that takes a token instead of a key.
const byWebIdentity = "AssumeRoleWithWebIdentity"

// providerName is what IAM calls an identity provider of the account (IAM User Guide, "Create an OpenID Connect (OIDC) identity provider
// in IAM").
func providerName(p cloudmodel.Provider) string { return strings.TrimPrefix(p.Issuer, "https://") }

// webIdentity is the answer.
type webIdentity struct {
	Credentials credentials
	ARN         string `xml:"AssumedRoleUser>Arn"`
	Subject     string `xml:"SubjectFromWebIdentityToken"`
	Audience    string
	Provider    string
}

// assumeRoleWithWebIdentity makes a session of a role for who has a token that the role trusts.
// No key is asked for.
func (m *stsService) assumeRoleWithWebIdentity(r *request) (any, error) {
	token := r.text("WebIdentityToken")
	wanted, err := wishOf(r)
	if err != nil {
		return nil, err
	}
	by, claims, err := m.identify(r.ctx, token)
	if err != nil {
		return nil, err
	}
	of, provider := m.roles.role(wanted.role), m.arnOf("iam", "", m.cfg.Account, "oidc-provider/"+providerName(by))
	about := map[string][]string{providerName(by) + ":sub": {claims.Subject}, providerName(by) + ":aud": claims.Audience}
	if of.trust == nil || !of.trust.allows("sts:"+byWebIdentity, provider, about) {
		return nil, &apiError{http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:" + byWebIdentity}
	}
	policy, err := wanted.mayDo(of.policy)
	if err != nil {
		return nil, err
	}
	return webIdentity{
		Credentials: m.callers.begin(policy, wanted.lifetime),
		ARN:         wanted.arn(),
		Subject:     claims.Subject,
		Audience:    strings.Join(claims.Audience, " "),
		Provider:    provider,
	}, nil
}

// algorithms are those that IAM takes of a provider (IAM User Guide, "Create an OpenID Connect
// (OIDC) identity provider in IAM").
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// identify finds who issued a token and for whom. Errors are those of STS' API reference.
func (m *stsService) identify(ctx context.Context, token string) (cloudmodel.Provider, jwt.Claims, error) {
	by, claims, err := cloudmodel.Identify(ctx, token, m.cfg.Providers, algorithms, m.model.Now())
	switch {
	case errors.Is(err, cloudmodel.ErrNoKeys):
		err = bad("IDPCommunicationError", "Couldn't retrieve verification key from your identity provider: %v", err)
	case errors.Is(err, cloudmodel.ErrTokenExpired):
		err = bad("ExpiredTokenException", "Token expired: current date/time must be before the expiration date/time")
	case err != nil:
		err = bad("InvalidIdentityToken", "%v", err)
	}
	return by, claims, err
}
