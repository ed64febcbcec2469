package cloudmodel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Provider is an issuer of OpenID Connect whose tokens say who somebody is: a cluster's, of its service accounts.
type Provider struct {
	Issuer string // https://…, as in its tokens
	// Audiences are those of which a token has to name one.
	Audiences []string
	// Keys are those that the issuer signs with now, as its jwks_uri has them.
	Keys func(context.Context) (*jose.JSONWebKeySet, error)
}

// Why a token says nothing, for which clouds have codes of their own. Of any other error of Identify the token is not valid.
var (
	ErrTokenExpired = errors.New("the token has expired")
	ErrNoKeys       = errors.New("the keys of the token's issuer are not to be had")
)

// Identify returns who issued a token, and its claims. It believes the token only if its issuer is one of these and signed it by one of
// the algorithms, for an audience of theirs, and it is good now.
func Identify(ctx context.Context, token string, by []Provider, algorithms []jose.SignatureAlgorithm, now time.Time) (
	issuer Provider, claims jwt.Claims, err error,
) {
	read, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return Provider{}, jwt.Claims{}, fmt.Errorf("the token is no valid JWT: %w", err)
	}
	var says jwt.Claims
	if err := read.UnsafeClaimsWithoutVerification(&says); err != nil {
		return Provider{}, jwt.Claims{}, fmt.Errorf("the token is no valid JWT: %w", err)
	}
	n := slices.IndexFunc(by, func(p Provider) bool { return p.Issuer == says.Issuer })
	if n < 0 {
		return Provider{}, jwt.Claims{}, fmt.Errorf("the account has no provider %s", says.Issuer)
	}
	issuer = by[n]
	keys, err := issuer.Keys(ctx)
	if err != nil {
		return Provider{}, jwt.Claims{}, fmt.Errorf("%w: %w", ErrNoKeys, err)
	}
	if err := read.Claims(*keys, &claims); err != nil {
		return Provider{}, jwt.Claims{}, fmt.Errorf("the token's signature is none of %s: %w", issuer.Issuer, err)
	}
	if claims.Subject == "" || claims.Expiry == nil || claims.IssuedAt == nil {
		return Provider{}, jwt.Claims{}, errors.New("the token lacks a claim: want sub, iat and exp")
	}
	err = claims.ValidateWithLeeway(jwt.Expected{Issuer: issuer.Issuer, AnyAudience: issuer.Audiences, Time: now}, 0)
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return Provider{}, jwt.Claims{}, ErrTokenExpired
	case err != nil:
		return Provider{}, jwt.Claims{}, fmt.Errorf("the token is not valid: %w", err)
	}
	return issuer, claims, nil
}
