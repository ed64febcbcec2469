//go:build e2e

package aws

import (
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/test/tier"
)

const webIdentityRole = "arn:aws:iam::" + machines.Account + ":role/reader"

// asReader is a pod with what EKS' webhook adds to those of a service account with the annotation
// eks.amazonaws.com/role-arn, and with another token.
func asReader(sts string) string {
	return `apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeSelector: {type: virtual-kubelet}
  serviceAccountName: reader
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    env:
    - {name: AWS_ROLE_ARN, value: ` + webIdentityRole + `}
    - {name: AWS_WEB_IDENTITY_TOKEN_FILE, value: /var/run/secrets/eks.amazonaws.com/serviceaccount/token}
    - {name: AWS_ENDPOINT_URL_STS, value: "` + sts + `"}
    volumeMounts:
    - {name: aws-iam-token, mountPath: /var/run/secrets/eks.amazonaws.com/serviceaccount, readOnly: true}
    resources: {requests: {cpu: 10m, memory: 16Mi}}
  volumes:
  - name: aws-iam-token
    projected: {sources: [{serviceAccountToken: {audience: sts.amazonaws.com, expirationSeconds: 86400, path: token}}]}
`
}

// trust lets a service account of the namespace assume a role.
func (s *space) trust(account string) json.RawMessage {
	s.Helper()
	text, err := world.Admin.Discovery().RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	var cluster struct{ Issuer string }
	if err := json.Unmarshal(text, &cluster); err != nil || cluster.Issuer == "" {
		s.Fatalf("the cluster names no issuer: %s, %v", text, err)
	}
	provider := strings.TrimPrefix(cluster.Issuer, "https://")
	return json.RawMessage(`{"Version": "2012-10-17", "Statement": [{"Sid": "T", "Effect": "Allow",
		"Principal": {"Federated": "arn:aws:iam::` + machines.Account + `:oidc-provider/` + provider + `"},
		"Action": "sts:AssumeRoleWithWebIdentity", "Condition": {"StringEquals": {
			"` + provider + `:sub": "system:serviceaccount:` + s.NS + `:` + account + `",
			"` + provider + `:aud": "sts.amazonaws.com"}}}]}`)
}

// assume has the pod ask STS for a role, by the token in a file.
func (s *space) assume(role, file string) (answer string, code int, said string) {
	s.Helper()
	return s.Try("exec", "web", "--", "sh", "-c", `printf 'Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=web&RoleArn=%s&WebIdentityToken=%s' \
		"`+role+`" "$(cat `+file+`)" >/tmp/asked && exec wget -q -O - --post-file /tmp/asked "$AWS_ENDPOINT_URL_STS"/`)
}

// It asks nothing of Kip's: it runs beside what waits.
func TestAPodAssumesTheRoleOfItsServiceAccount(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	mayPull := json.RawMessage(`{"Version": "2012-10-17", "Statement": [
		{"Sid": "T", "Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
		{"Sid": "P", "Effect": "Allow", "Action": "ecr:BatchGetImage", "Resource": "arn:aws:ecr:*:*:repository/` + closed + `"}]}`)
	s.order("role", ec2.Role{ARN: webIdentityRole, Policy: mayPull, Trust: s.trust("reader")})
	s.order("role", ec2.Role{ARN: webIdentityRole + "-of-others", Policy: mayPull, Trust: s.trust("default")})
	s.Apply(asReader(s.onBridge()))
	s.WaitReady("web")

	const token = "$AWS_WEB_IDENTITY_TOKEN_FILE"
	answer, code, said := s.assume("$AWS_ROLE_ARN", token)
	var session struct {
		ID      string `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
		Token   string `xml:"AssumeRoleWithWebIdentityResult>Credentials>SessionToken"`
		Subject string `xml:"AssumeRoleWithWebIdentityResult>SubjectFromWebIdentityToken"`
	}
	if err := xml.Unmarshal([]byte(answer), &session); err != nil || code != 0 || session.Subject != "system:serviceaccount:"+s.NS+":reader" {
		t.Fatalf("STS answers the pod %q: exit %d, %s (%v)", answer, code, said, err)
	}
	password := s.ecrToken(session.ID, session.Token)
	for repository, want := range map[string]int{closed: http.StatusOK, own: http.StatusForbidden} {
		if got := s.pulls(password, repository); got != want {
			t.Errorf("the role's session pulls %s: %d, want %d", repository, got, want)
		}
	}

	for name, one := range map[string]struct{ role, file, want string }{
		"a role of another account's":  {"$AWS_ROLE_ARN-of-others", token, "403 Forbidden"},
		"its token for Kubernetes":     {"$AWS_ROLE_ARN", "/var/run/secrets/kubernetes.io/serviceaccount/token", "400 Bad Request"},
		"what nobody signed, at least": {"$AWS_ROLE_ARN", "/etc/passwd", "400 Bad Request"},
	} {
		if answer, code, said := s.assume(one.role, one.file); code == 0 || !strings.Contains(said, one.want) {
			t.Errorf("%s: exit %d, %s%s; want %s", name, code, answer, said, one.want)
		}
	}
}

// ecrToken is the password that a session has of ECR.
func (s *space) ecrToken(key, token string) string {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.model.URL, strings.NewReader("{}"))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+key+"/20260101/"+machines.Region+"/ecr/aws4_request")
	req.Header.Set("X-Amz-Security-Token", token)
	req.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	var answer struct {
		AuthorizationData []struct{ AuthorizationToken string }
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.AuthorizationData) != 1 {
		s.Fatalf("ECR answers the session %d %s, %v", resp.StatusCode, text, err)
	}
	plain, err := base64.StdEncoding.DecodeString(answer.AuthorizationData[0].AuthorizationToken)
	_, password, found := strings.Cut(string(plain), ":")
	if err != nil || !found {
		s.Fatalf("ECR's token is no name and password (%v)", err)
	}
	return password
}
