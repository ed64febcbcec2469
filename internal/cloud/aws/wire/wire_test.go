package wire

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// errs notes errors in place of failing.
type errs struct {
	testing.TB
	all []string
}

func (e *errs) Error(args ...any)            { e.all = append(e.all, fmt.Sprint(args...)) }
func (e *errs) Errorf(f string, args ...any) { e.all = append(e.all, fmt.Sprintf(f, args...)) }

func TestWhatTheSDKDoesNotReadIsAnError(t *testing.T) {
	const cores = "<cpuOptions><coreCount>2</coreCount></cpuOptions>"
	const group = "<item><groupId>sg-1</groupId><groupName>a</groupName></item>"
	instance := func(more string) string {
		return "<DescribeInstancesResponse><requestId>r</requestId><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId>" +
			"<launchTime>2026-11-28T10:00:00.000Z</launchTime><ebsOptimized>true</ebsOptimized>" + more +
			"</item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
	}
	const ec2 = "Action=DescribeInstances&Version=2016-11-15"
	for name, tc := range map[string]struct {
		target, call, answer string
		says                 string
	}{
		"all is read":                 {"", ec2, instance("<groupSet>" + group + "</groupSet>" + cores), ""},
		"a name that there is not":    {"", ec2, instance("<instanceIde>x</instanceIde>"), "instanceIde"},
		"a name at another's place":   {"", ec2, instance("<groupId>sg-1</groupId>"), "item>groupId"},
		"one of two":                  {"", ec2, instance("<groupSet>" + group + "</groupSet><networks>" + group + "</networks>"), "networks"},
		"a call that there is not":    {"", "Action=DescribeNothing&Version=2016-11-15", "<a/>", "no such call"},
		"no XML":                      {"", ec2, "<a>", "read the answer"},
		"a number that is none":       {"", ec2, instance("<amiLaunchIndex>many</amiLaunchIndex>"), "cannot read"},
		"all of a role":               {"", "Action=AssumeRole&Version=2011-06-15", role("Arn"), ""},
		"a role's name that is not":   {"", "Action=AssumeRole&Version=2011-06-15", role("ARNS"), "ARNS"},
		"all of a token in JSON":      {"AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", "{}", token("expiresAt"), ""},
		"a field that is not in JSON": {"AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", "{}", token("expiresOn"), "expiresOn"},
	} {
		t.Run(name, func(t *testing.T) {
			said := &errs{TB: t}
			api := Checked(said, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tc.answer) }))
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tc.call))
			if tc.target != "" {
				r.Header.Set("X-Amz-Target", tc.target)
				r.Header.Set("Content-Type", "application/x-amz-json-1.1")
			}
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r)
			if w.Body.String() != tc.answer || len(said.all) > 1 || (len(said.all) == 0) != (tc.says == "") ||
				len(said.all) == 1 && !strings.Contains(said.all[0], tc.says) {
				t.Errorf("it says %q, want %q, and answers %s", said.all, tc.says, w.Body)
			}
		})
	}
}

func role(arn string) string {
	return "<AssumeRoleResponse><AssumeRoleResult><AssumedRoleUser><" + arn + ">arn:1</" + arn + ">" +
		"</AssumedRoleUser></AssumeRoleResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></AssumeRoleResponse>"
}

func token(expires string) string {
	return `{"authorizationData":[{"authorizationToken":"dA==","` + expires + `":1795256955.5,"proxyEndpoint":"https://r.test"}]}`
}
