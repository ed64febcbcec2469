package ec2

import (
	"cmp"
	"crypto/rand"
	"errors"
	"net/http"
	"regexp"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Bounds of a session (STS API reference, "AssumeRole"). A role's own longest session is an
// hour unless it says otherwise.
const (
	shortestSession, usualSession = 900, 3600
	maxSessionPolicy              = 2048
)

// sessionKey begins the access key of a session (IAM User Guide, "IAM identifiers").
const sessionKey = "ASIA"

var sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

const stsVersion = "2011-06-15"

// sts is AWS Security Token Service.
func (m *Model) sts() *queryService {
	return younger("sts", stsVersion, byWebIdentity, map[string]func(*request) (any, error){
		byWebIdentity:                m.assumeRoleWithWebIdentity,
		"AssumeRole":                 m.assumeRole,
		"DecodeAuthorizationMessage": m.decodeAuthorizationMessage,
		"GetCallerIdentity":          m.getCallerIdentity,
	})
}

// credentials are those of a session.
type credentials struct {
	KeyID      string `xml:"AccessKeyId"`
	Secret     string `xml:"SecretAccessKey"`
	Token      string `xml:"SessionToken"`
	Expiration string
}

// assumedRole is the answer.
type assumedRole struct {
	Credentials credentials
	ARN         string `xml:"AssumedRoleUser>Arn"`
}

// callerIdentity is the answer to who asks.
type callerIdentity struct {
	ARN     string `xml:"Arn"`
	UserID  string `xml:"UserId"`
	Account string
}

// getCallerIdentity needs no right (STS API reference, "GetCallerIdentity").
func (m *Model) getCallerIdentity(r *request) (any, error) {
	if err := r.done(); err != nil {
		return nil, err
	}
	return callerIdentity{ARN: m.callerARN(), UserID: r.key, Account: m.cfg.Account}, nil
}

// wish is what is asked for by who assumes a role.
type wish struct {
	role, name string
	limit      string // the session's own policy; "" for none
	lifetime   time.Duration
}

// wishOf reads the parameters, all but those that were read before.
func wishOf(r *request) (wish, error) {
	wanted := wish{role: r.text("RoleArn"), name: r.text("RoleSessionName"), limit: r.text("Policy")}
	seconds := cmp.Or(r.number("DurationSeconds"), usualSession)
	wanted.lifetime = time.Duration(seconds) * time.Second
	if err := r.done(); err != nil {
		return wish{}, err
	}
	switch {
	case !sessionName.MatchString(wanted.name):
		return wish{}, bad("ValidationError", "Value '%s' at 'roleSessionName' failed to satisfy constraint", wanted.name)
	case seconds < shortestSession || seconds > usualSession:
		return wish{}, bad("ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	case len(wanted.limit) > maxSessionPolicy:
		return wish{}, bad("ValidationError", "Value at 'policy' failed to satisfy constraint: length less than or equal to %d", maxSessionPolicy)
	}
	return wanted, nil
}

// arn is that of the session.
func (w wish) arn() string { return w.role + "/" + w.name }

// mayDo is what a session may do of what the role may.
func (w wish) mayDo(role *Policy) (*Policy, error) {
	if w.limit == "" {
		return role, nil
	}
	limit, err := ParsePolicy([]byte(w.limit))
	if err != nil {
		return nil, bad("MalformedPolicyDocument", "%v", err)
	}
	return role.within(limit), nil
}

// begin makes a session.
func (m *Model) begin(policy *Policy, lifetime time.Duration) credentials {
	key, token, until := sessionKey+rand.Text()[:16], rand.Text(), m.Now().Add(lifetime)
	m.sessions.Give(sessionSecret(key, token), policy, until)
	return credentials{
		KeyID:      key,
		Secret:     rand.Text(),
		Token:      token,
		Expiration: until.UTC().Format(time.RFC3339),
	}
}

// assumeRole makes a session of a role, limited by the policy that the call brings.
func (m *Model) assumeRole(r *request) (any, error) {
	wanted, err := wishOf(r)
	if err != nil {
		return nil, err
	}
	of := m.role(wanted.role)
	if of.policy == nil || m.may(r, "sts:AssumeRole", wanted.role, nil) != nil {
		return nil, &apiError{http.StatusForbidden, "AccessDenied",
			"User is not authorized to perform: sts:AssumeRole on resource: " + wanted.role}
	}
	policy, err := wanted.mayDo(of.policy)
	if err != nil {
		return nil, err
	}
	var given credentials
	err = m.sim.Take(r.ctx, sim.Call{Kind: cloud.CallPullCredentials}, func() error {
		given = m.begin(policy, wanted.lifetime)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return assumedRole{Credentials: given, ARN: wanted.arn()}, nil
}

// sessionSecret is what the holder of a session shows.
func sessionSecret(key, token string) string { return key + " " + token }

// sessionOf is what the holder of a session's key may do.
func (m *Model) sessionOf(key, token string) (*Policy, error) {
	policy, err := m.sessions.Of(sessionSecret(key, token), m.Now())
	switch {
	case errors.Is(err, cloudmodel.ErrGrantOver):
		return nil, &apiError{http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired"}
	case err != nil:
		return nil, errStranger
	}
	return policy, nil
}
