package ec2

import (
	"crypto/rand"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
)

var accessKey = regexp.MustCompile(`Credential=([^/,]+)/`)

// sessionHeader has the token of a session.
const sessionHeader = "X-Amz-Security-Token"

// sessionKey begins the access key of a session (IAM User Guide, "IAM identifiers").
const sessionKey = "ASIA"

// callers are who makes calls: holders of keys, and of sessions.
type callers struct {
	*base

	sessions cloudmodel.Grants[*Policy] // by sessionSecret: what the role may do, and the session's own policy allows
}

// callerOf returns who signed a call, with a session's token if the key is one's.
func (m *callers) callerOf(r *http.Request) (caller, error) {
	c := caller{}
	if key := accessKey.FindStringSubmatch(r.Header.Get("Authorization")); key != nil {
		c.key = key[1]
	}
	var err error
	switch {
	case strings.HasPrefix(c.key, sessionKey):
		c.policy, err = m.sessionOf(c.key, r.Header.Get(sessionHeader))
	case m.cfg.Policies == nil:
	case m.cfg.Policies[c.key] == nil:
		err = errStranger
	default:
		c.policy = m.cfg.Policies[c.key]
	}
	return c, err
}

// credentials are those of a session.
type credentials struct {
	KeyID      string `xml:"AccessKeyId"`
	Secret     string `xml:"SecretAccessKey"`
	Token      string `xml:"SessionToken"`
	Expiration string
}

// begin makes a session.
func (m *callers) begin(policy *Policy, lifetime time.Duration) credentials {
	key, token, until := sessionKey+rand.Text()[:16], rand.Text(), m.model.Now().Add(lifetime)
	m.sessions.Give(sessionSecret(key, token), policy, until)
	return credentials{
		KeyID:      key,
		Secret:     rand.Text(),
		Token:      token,
		Expiration: until.UTC().Format(time.RFC3339),
	}
}

// sessionSecret is what the holder of a session shows.
func sessionSecret(key, token string) string { return key + " " + token }

// sessionOf is what the holder of a session's key may do.
func (m *callers) sessionOf(key, token string) (*Policy, error) {
	policy, err := m.sessions.Of(sessionSecret(key, token), m.model.Now())
	switch {
	case errors.Is(err, cloudmodel.ErrGrantOver):
		return nil, &apiError{http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired"}
	case err != nil:
		return nil, errStranger
	}
	return policy, nil
}
