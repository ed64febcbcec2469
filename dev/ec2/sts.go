package ec2

import (
	"cmp"
	"net/http"
	"regexp"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Bounds of a session (STS API reference, "AssumeRole"). A role's own longest session is an
// hour unless it says otherwise.
const (
	shortestSession, usualSession = 900, 3600
	maxSessionPolicy              = 2048
)

var sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

const stsVersion = "2011-06-15"

// stsService is AWS Security Token Service.
type stsService struct {
	*base
	callers *callers
	roles   *roles
}

// sts is AWS Security Token Service.
func (m *stsService) service() *queryService {
	return younger("sts", stsVersion, byWebIdentity, map[string]func(*request) (any, error){
		byWebIdentity:                m.assumeRoleWithWebIdentity,
		"AssumeRole":                 m.assumeRole,
		"DecodeAuthorizationMessage": m.decodeAuthorizationMessage,
		"GetCallerIdentity":          m.getCallerIdentity,
	})
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
func (m *stsService) getCallerIdentity(r *request) (any, error) {
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

// assumeRole makes a session of a role, limited by the policy that the call brings.
func (m *stsService) assumeRole(r *request) (any, error) {
	wanted, err := wishOf(r)
	if err != nil {
		return nil, err
	}
	of := m.roles.role(wanted.role)
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
		given = m.callers.begin(policy, wanted.lifetime)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return assumedRole{Credentials: given, ARN: wanted.arn()}, nil
}
