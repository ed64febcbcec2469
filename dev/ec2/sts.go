package ec2

import (
	"cmp"
	"crypto/rand"
	"encoding/xml"
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

// session is what somebody has who assumed a role.
type session struct {
	policy *Policy // what the role may do, and the session's own policy allows
	token  string
	until  time.Time
}

const stsVersion = "2011-06-15"

// assumedRole is the answer.
type assumedRole struct {
	XMLName    xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleResponse"`
	KeyID      string   `xml:"AssumeRoleResult>Credentials>AccessKeyId"`
	Secret     string   `xml:"AssumeRoleResult>Credentials>SecretAccessKey"`
	Token      string   `xml:"AssumeRoleResult>Credentials>SessionToken"`
	Expiration string   `xml:"AssumeRoleResult>Credentials>Expiration"`
	ARN        string   `xml:"AssumeRoleResult>AssumedRoleUser>Arn"`
	RequestID  string   `xml:"ResponseMetadata>RequestId"`
}

// stsFailure is how STS says no.
type stsFailure struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
	Type    string   `xml:"Error>Type"`
	Code    string   `xml:"Error>Code"`
	Message string   `xml:"Error>Message"`
	ID      string   `xml:"RequestId"`
}

// serveSTS answers a call of STS.
func (m *Model) serveSTS(w http.ResponseWriter, r *request, authorization string) {
	m.count(r.action)
	answer, err := m.callSTS(r, authorization)
	w.Header().Set("Content-Type", "text/xml")
	if err != nil {
		e := apiErrorOf(err)
		if e == nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(e.status)
		_ = xml.NewEncoder(w).Encode(stsFailure{ // or the caller is gone
			Type:    "Sender",
			Code:    e.code,
			Message: e.message,
			ID:      requestID,
		})
		return
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

func (m *Model) callSTS(r *request, authorization string) (any, error) {
	do := map[string]func(*request) (any, error){
		"AssumeRole":                 m.assumeRole,
		"DecodeAuthorizationMessage": m.decodeAuthorizationMessage,
	}[r.action]
	if do == nil {
		return nil, bad("InvalidAction", "Could not find operation %s for version %s", r.action, stsVersion)
	}
	var err error
	if r.policy, err = m.policyOf(authorization, r.sessionToken); err != nil {
		return nil, &apiError{http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid."}
	}
	return do(r)
}

// assumeRole makes a session of a role, limited by the policy that the call brings.
func (m *Model) assumeRole(r *request) (any, error) {
	arn, name, document := r.text("RoleArn"), r.text("RoleSessionName"), r.text("Policy")
	seconds := cmp.Or(r.number("DurationSeconds"), usualSession)
	if err := r.done(); err != nil {
		return nil, err
	}
	switch {
	case !sessionName.MatchString(name):
		return nil, bad("ValidationError", "Value '%s' at 'roleSessionName' failed to satisfy constraint", name)
	case seconds < shortestSession || seconds > usualSession:
		return nil, bad("ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	case len(document) > maxSessionPolicy:
		return nil, bad("ValidationError", "Value at 'policy' failed to satisfy constraint: length less than or equal to %d", maxSessionPolicy)
	}
	denied := &apiError{http.StatusForbidden, "AccessDenied", "User is not authorized to perform: sts:AssumeRole on resource: " + arn}
	role := m.cfg.Roles[arn]
	if role == nil || m.may(r, "sts:AssumeRole", arn, nil) != nil {
		return nil, denied
	}
	if document != "" {
		limit, err := ParsePolicy([]byte(document))
		if err != nil {
			return nil, bad("MalformedPolicyDocument", "%v", err)
		}
		role = role.within(limit)
	}
	key, s := "ASIA"+rand.Text()[:16], session{policy: role, token: rand.Text()}
	err := m.sim.Take(r.ctx, sim.Call{Kind: cloud.CallPullCredentials}, func() error {
		s.until = m.now().Add(time.Duration(seconds) * time.Second)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sessions[key] = s
		return nil
	})
	if err != nil {
		return nil, err
	}
	return assumedRole{
		KeyID:      key,
		Secret:     rand.Text(),
		Token:      s.token,
		Expiration: s.until.UTC().Format(time.RFC3339),
		ARN:        arn + "/" + name,
		RequestID:  requestID,
	}, nil
}

// sessionOf is what the holder of a session's key may do.
func (m *Model) sessionOf(key, token string) (*Policy, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.sessions[key]
	switch {
	case !ok || s.token != token:
		return nil, &apiError{http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials"}
	case !m.now().Before(s.until):
		return nil, &apiError{http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired"}
	}
	return s.policy, nil
}
