package aws

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// limited is a driver whose policy lacks some statements and has others besides.
type limited struct {
	*Cloud
	model *ec2.Model
	clock *testingclock.FakeClock
	log   *bytes.Buffer
}

func newLimited(t *testing.T, without []string, more ...statement) limited {
	t.Helper()
	doc := policyOf(permissions)
	doc.Statement = slices.DeleteFunc(doc.Statement, func(s statement) bool { return slices.Contains(without, s.Sid) })
	doc.Statement = append(doc.Statement, more...)
	policy, err := ec2.ParsePolicy(doc.text())
	if err != nil {
		t.Fatal(err)
	}
	l := limited{clock: testingclock.NewFakeClock(time.Now()), log: &bytes.Buffer{}}
	account := anAccount(sim.Knobs{})
	account.Sim.Clock = l.clock
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	model, url := serve(t, account)
	cfg := settings(url)
	cfg.Clock, cfg.Log = l.clock, slog.New(slog.NewTextHandler(l.log, nil))
	l.model, l.Cloud = model, open(t, cfg)
	return l
}

// deny is a statement.
func deny(sid, action, resource string) statement {
	return statement{Sid: sid, Effect: "Deny", Action: []string{action}, Resource: []string{resource}}
}

func TestARefusalNamesActionResourceAndTheStatementThatDenies(t *testing.T) {
	profile := request("p", 1)
	profile.InstanceProfile = "arn:aws:iam::123456789012:instance-profile/x"
	for name, tc := range map[string]struct {
		in    limited
		ask   func(limited) error
		want  string
		cause cloud.Cause
	}{
		"a launch that nothing allows": {
			newLimited(t, []string{"KipLaunchesFrom"}),
			func(l limited) error { return runLaunch(t.Context(), l, request("a", 2)).Err() },
			"no policy allows ec2:RunInstances on arn:aws:ec2:us-east-1:", cloud.ErrUnauthorised,
		},
		"a launch that is denied": {
			newLimited(t, nil, deny("NoDisks", "ec2:RunInstances", resource("volume"))),
			func(l limited) error { return runLaunch(t.Context(), l, request("a", 2)).Err() },
			"ec2:RunInstances on arn:aws:ec2:us-east-1:123456789012:volume/* is denied by statement NoDisks", cloud.ErrUnauthorised,
		},
		"a role that may not be passed": {
			newLimited(t, []string{"KipPassesRoles"}),
			func(l limited) error { return runLaunch(t.Context(), l, profile).Err() },
			":role/x; see KipPassesRoles in docs/aws-permissions.md", cloud.ErrRefused, // the pod's own fault
		},
		"a list": {
			newLimited(t, nil, deny("Blind", "ec2:DescribeInstances", "*")),
			func(l limited) error { _, err := l.List(t.Context(), owner); return err },
			"ec2:DescribeInstances on * is denied by statement Blind", cloud.ErrUnauthorised,
		},
	} {
		err := tc.ask(tc.in)
		text := fmt.Sprint(err)
		if !strings.Contains(text, tc.want) || !strings.Contains(text, "UnauthorizedOperation: You are not authorized") ||
			cloud.CauseOf(err) != tc.cause {
			t.Errorf("%s: %q is %v, want %q and %v", name, cloud.CauseOf(err), err, tc.cause, tc.want)
		}
		for _, secret := range []string{"Encoded", "AKIATESTS", "user/kip", "principal", "RequestedRegion"} {
			if all := text + tc.in.log.String(); strings.Contains(all, secret) {
				t.Errorf("%s: %q is told: %s", name, secret, all)
			}
		}
	}
}

func TestTheSameRefusalIsDecodedOnceAMinute(t *testing.T) {
	l := newLimited(t, []string{"KipLaunchesFrom"})
	const want = "no policy allows ec2:RunInstances on"
	launch := func(token string) {
		t.Helper()
		if err := runLaunch(t.Context(), l, request(token, 1+len(token)%2)).Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	decoded := func() int { return l.model.Calls()["DecodeAuthorizationMessage"] }
	for n := range 20 {
		launch(fmt.Sprintf("t%d", n*n))
	}
	if n := decoded(); n > 2 { // of one, and of two in one call
		t.Errorf("STS was asked %d times", n)
	}
	before := decoded()
	l.clock.Step(refusalKept)
	launch("later")
	if n := decoded(); n != before+1 {
		t.Errorf("after a minute STS was asked %d times more, want once", n-before)
	}
	// Not for whatever number of kinds.
	l.clock.Step(refusalKept)
	before = decoded()
	for n := range 3 * maxRefusals {
		r := request(fmt.Sprintf("u%d", n), 1)
		r.RootDiskBytes = int64(n+10) * gibi
		if err := runLaunch(t.Context(), l, r).Err(); err == nil || strings.Contains(err.Error(), want) != (n < maxRefusals) {
			t.Errorf("the %dth kind: %v", n, err)
		}
	}
	if n := decoded() - before; n != maxRefusals {
		t.Errorf("STS was asked %d times for %d kinds, want %d", n, 3*maxRefusals, maxRefusals)
	}
}

func TestWithoutTheRightToDecodeARefusalIsToldAsItIs(t *testing.T) {
	l := newLimited(t, []string{"KipLaunchesFrom", "KipReadsRefusals"})
	launch := func(token string) {
		t.Helper()
		err := runLaunch(t.Context(), l, request(token, 1)).Err()
		if text := fmt.Sprint(err); cloud.CauseOf(err) != cloud.ErrUnauthorised || !strings.Contains(text, "You are not authorized") ||
			strings.Contains(text, "Encoded") || strings.Contains(text, "no policy allows") {
			t.Errorf("%v", err)
		}
	}
	for n := range 5 {
		launch(fmt.Sprint(n))
		l.clock.Step(refusalKept)
	}
	if n := l.model.Calls()["DecodeAuthorizationMessage"]; n != 1 {
		t.Errorf("STS was asked %d times, want once", n)
	}
	l.clock.Step(refusalPause)
	launch("later")
	if n := l.model.Calls()["DecodeAuthorizationMessage"]; n != 2 {
		t.Errorf("after an hour STS was asked %d times, want twice", n)
	}
	if n := strings.Count(l.log.String(), "may not have STS decode"); n != 1 {
		t.Errorf("it is told %d times: %s", n, l.log)
	}
}

// Whatever STS answers, the error is told that EC2 has given.
func TestASTSThatFailsHidesNoRefusal(t *testing.T) {
	const answer = "<DecodeAuthorizationMessageResponse><DecodeAuthorizationMessageResult><DecodedMessage>%s</DecodedMessage>" +
		"</DecodeAuthorizationMessageResult></DecodeAuthorizationMessageResponse>"
	for name, do := range map[string]http.HandlerFunc{
		"it fails":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"it ends":         func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"it says nothing": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, answer, "") },
		"it says more":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, answer, strings.Repeat("[", 1<<20)) },
	} {
		sts := httptest.NewServer(do)
		defer sts.Close()
		t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
		l := newLimited(t, []string{"KipLaunchesFrom"})
		err := runLaunch(t.Context(), l, request("a", 1)).Err()
		if cloud.CauseOf(err) != cloud.ErrUnauthorised || !strings.Contains(fmt.Sprint(err), "You are not authorized") ||
			len(fmt.Sprint(err)) > 2*maxMessage || l.log.Len() == 0 {
			t.Errorf("%s: %v; the log is %s", name, err, l.log)
		}
	}
}

func TestOnlyWhatIsAskedForIsShownOfARefusal(t *testing.T) {
	message := func(action, resource string, deny bool, statements ...string) string {
		items := []any{}
		for n := 0; n+1 < len(statements); n += 2 {
			items = append(items, map[string]any{"effect": statements[n], "statementId": statements[n+1]})
		}
		text, err := json.Marshal(map[string]any{
			"explicitDeny":      deny,
			"matchedStatements": map[string]any{"items": items},
			"context": map[string]any{
				"action": action, "resource": resource, "principal": map[string]any{"arn": "secret"},
				"conditions": map[string]any{"items": []any{map[string]any{"key": "secret"}}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const (
		run     = "ec2:RunInstances"
		unnamed = run + " on arn:x is denied by a statement without a name"
	)
	long := strings.Repeat("x", 10_000)
	for text, want := range map[string]string{
		message(run, "arn:x", false):                             "no policy allows " + run + " on arn:x",
		message(run, "", false):                                  "no policy allows " + run + " on *",
		message(run, "arn:x", false, "ALLOW", "Some"):            "no policy allows " + run + " on arn:x",
		message(run, "arn:x", true, "ALLOW", "A", "DENY", "B"):   run + " on arn:x is denied by statement B",
		message(run, "arn:x", true):                              unnamed,
		message(run, "arn:x", true, "DENY", ""):                  unnamed,
		message(run, "arn:x", true, "DENY", "odd\x1b[31m words"): unnamed,
		message(run, "a\n\x1b[31mb", false):                      "no policy allows " + run + " on a??[31mb",
		message(run, long, false):                                "no policy allows " + run + " on " + long[:maxResource],
		message("secret words", "arn:x", false):                  "",
		message(long+":"+long, "", false):                        "",
		"":                                                       "",
		"null":                                                   "",
		"{}":                                                     "",
		"[]":                                                     "",
		`{"context`:                                              "",
	} {
		if got := readRefusal(text); got != want {
			t.Errorf("%.200s is told as %q, want %q", text, got, want)
		}
	}
}
