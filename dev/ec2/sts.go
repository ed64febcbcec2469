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

// sessionKey begins the access key of a session (IAM User Guide, "IAM identifiers").
const sessionKey = "ASIA"

var sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

// session is what somebody has who assumed a role.
type session struct {
	policy *Policy // what the role may do, and the session's own policy allows
	token  string
	until  time.Time
}

const stsVersion = "2011-06-15"

// credentials are those of a session.
type credentials struct {
	KeyID      string `xml:"AccessKeyId"`
	Secret     string `xml:"SecretAccessKey"`
	Token      string `xml:"SessionToken"`
	Expiration string
}

// assumedRole is the answer.
type assumedRole struct {
	XMLName     xml.Name    `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleResponse"`
	Credentials credentials `xml:"AssumeRoleResult>Credentials"`
	ARN         string      `xml:"AssumeRoleResult>AssumedRoleUser>Arn"`
	RequestID   string      `xml:"ResponseMetadata>RequestId"`
}

// queryFailure is how STS and IAM say no, each in its namespace.
type queryFailure struct {
	XMLName xml.Name
	Type    string `xml:"Error>Type"`
	Code    string `xml:"Error>Code"`
	Message string `xml:"Error>Message"`
	ID      string `xml:"RequestId"`
}

// refuse answers a call of STS or IAM with an error; one that is none of the API's drops the connection.
func refuse(w http.ResponseWriter, namespace string, err error) {
	e := apiErrorOf(err)
	if e == nil {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(e.status)
	_ = xml.NewEncoder(w).Encode(queryFailure{ // or the caller is gone
		XMLName: xml.Name{Space: namespace, Local: "ErrorResponse"},
		Type:    "Sender",
		Code:    e.code,
		Message: e.message,
		ID:      requestID,
	})
}

// serveSTS answers a call of STS.
func (m *Model) serveSTS(w http.ResponseWriter, r *request, authorization string) {
	m.count(r.action)
	answer, err := m.sts(r, authorization)
	w.Header().Set("Content-Type", "text/xml")
	if err != nil {
		refuse(w, "https://sts.amazonaws.com/doc/2011-06-15/", err)
		return
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

func (m *Model) sts(r *request, authorization string) (any, error) {
	if r.action == byWebIdentity { // which the token alone allows
		return m.assumeRoleWithWebIdentity(r)
	}
	do := map[string]func(*request) (any, error){
		"AssumeRole":                 m.assumeRole,
		"DecodeAuthorizationMessage": m.decodeAuthorizationMessage,
		"GetCallerIdentity":          m.getCallerIdentity,
	}[r.action]
	if do == nil {
		return nil, bad("InvalidAction", "Could not find operation %s for version %s", r.action, stsVersion)
	}
	var err error
	if r.policy, err = m.policyOf(authorization, r.sessionToken); err != nil {
		return nil, &apiError{http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid."}
	}
	r.key = keyOf(authorization)
	return do(r)
}

// callerIdentity is the answer to who asks.
type callerIdentity struct {
	XMLName   xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ GetCallerIdentityResponse"`
	ARN       string   `xml:"GetCallerIdentityResult>Arn"`
	UserID    string   `xml:"GetCallerIdentityResult>UserId"`
	Account   string   `xml:"GetCallerIdentityResult>Account"`
	RequestID string   `xml:"ResponseMetadata>RequestId"`
}

// getCallerIdentity needs no right (STS API reference, "GetCallerIdentity").
func (m *Model) getCallerIdentity(r *request) (any, error) {
	if err := r.done(); err != nil {
		return nil, err
	}
	return callerIdentity{ARN: m.caller(), UserID: r.key, Account: m.cfg.Account, RequestID: requestID}, nil
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
	key, s := sessionKey+rand.Text()[:16], session{policy: policy, token: rand.Text(), until: m.now().Add(lifetime)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[key] = s
	return credentials{
		KeyID:      key,
		Secret:     rand.Text(),
		Token:      s.token,
		Expiration: s.until.UTC().Format(time.RFC3339),
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
	return assumedRole{Credentials: given, ARN: wanted.arn(), RequestID: requestID}, nil
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
