package ec2

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud/sim"
)

// EKS looks at the role when an association is made.
func TestAnAssociationNeedsARoleThatTrustsEKSPodIdentity(t *testing.T) {
	const arn = "arn:aws:iam::123456789012:role/kip"
	const pods = `{"Effect": "Allow", "Principal": {"Service": "pods.eks.amazonaws.com"}, "Action": ["sts:AssumeRole", "sts:TagSession"]}`
	const tokens = `{"Effect": "Allow", "Principal": {"Federated": "arn:aws:iam::123456789012:oidc-provider/x"}, "Action": "sts:AssumeRoleWithWebIdentity"}`
	m, err := New(Config{Sim: sim.Config{Catalogue: aCatalogue()}, Clusters: []Cluster{{Name: "kip"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	call := func(method, path, body string) (int, string) {
		answer := httptest.NewRecorder()
		m.ServeHTTP(answer, httptest.NewRequest(method, "/clusters/kip/pod-identity-associations"+path, strings.NewReader(body)))
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Code, string(text)
	}
	create := func(trust string) (int, string) {
		if trust != "" {
			if err := m.Roles.PutIAMRole(IAMRole{ARN: arn, Trust: `{"Statement": [` + trust + `]}`}); err != nil {
				t.Fatal(err)
			}
		}
		return call(http.MethodPost, "",
			`{"namespace": "kip", "serviceAccount": "kip-provider", "roleArn": "`+arn+`", "disableSessionTags": true}`)
	}
	const invalid = "Trust policy of the role provided is invalid"
	for _, tc := range []struct{ trust, says string }{
		{"", "Role provided in the request does not exist"},
		{tokens, invalid},
		{strings.Replace(pods, `["sts:AssumeRole", "sts:TagSession"]`, `"sts:AssumeRole"`, 1), invalid},
	} {
		if code, said := create(tc.trust); code != http.StatusBadRequest || !strings.Contains(said, "InvalidParameterException") ||
			!strings.Contains(said, tc.says) {
			t.Errorf("a role with the trust %q: %d %s, want %q", tc.trust, code, said, tc.says)
		}
	}
	code, said := create(tokens + ", " + pods)
	var made struct{ Association associationJSON }
	err = json.Unmarshal([]byte(said), &made)
	if err != nil || code != http.StatusOK || made.Association.Role != arn || !made.Association.NoTags {
		t.Fatalf("%d %s", code, said)
	}
	if code, said := call(http.MethodGet, "/"+made.Association.ID, ""); code != http.StatusOK || !strings.Contains(said, arn) {
		t.Errorf("it is shown as %d %s", code, said)
	}
	if code, said := call(http.MethodGet, "?namespace=kip&serviceAccount=kip-provider", ""); code != http.StatusOK ||
		!strings.Contains(said, made.Association.ID) {
		t.Errorf("it is listed as %d %s", code, said)
	}
	if code, said := create(""); code != http.StatusConflict {
		t.Errorf("a second one: %d %s", code, said)
	}
}
