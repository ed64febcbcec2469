//go:build e2e

// Package tutorial does what the README's first command, docs/first-pod.md and docs/aws.md tell
// a new user to do, with the commands as they stand there. It needs root.
package tutorial

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// Where the run is, beside any of the user's own. It is the one thing in which the
// commands differ from those of the page.
var (
	ownNetwork = harness.MustClaim("tutorial")
	state      = ".kip/" + filepath.Base(ownNetwork.State)
)

const patience = 5 * time.Minute

// step is what a block of the page is to show.
type step struct {
	begins string // the block
	// shows are expressions, each of which matches what the block prints.
	shows []string
	// fails are the commands that do, as they should.
	fails []string
	// again are the block's lines that are run until they print it: those which
	// tell of something that takes a moment.
	again string
	// rows is how many lines with a word they print in the end.
	rows map[string]int
}

var steps = []step{
	{begins: "export KUBECONFIG=", shows: []string{`(?m)^kip-0 +Ready `}},
	{begins: "kubectl apply -f - <<'END'\napiVersion: v1\nkind: Pod",
		shows: []string{`pod/web condition met`, `(?m)^pod/web .* Running `, `(?m)^cell\S*/cell-\S+ .*web.*micro`}},
	{begins: "kipctl why web", shows: []string{`micro`, `cell-`}},
	{
		begins: "kubectl logs web", fails: []string{`kubectl exec web -- sh -c 'exit 7'`},
		shows: []string{`(?m)^serving$`, `httpd -f -p 8080`, `(?m)^7$`, `(?m)^hello from web$`},
	},
	{begins: "kubectl apply -f - <<'END'\napiVersion: apps/v1", shows: []string{`deployment "sleepers" successfully rolled out`,
		`(?s)(sleepers-\S+.*){3}`, `deployment.apps/sleepers scaled`}, again: "kipctl get cells\n", rows: map[string]int{"sleepers-": 1}},
	{begins: "kubectl run huge", shows: []string{`pod/huge created`, `900Gi`, `Warning +\S+ .*kip`},
		again: "kipctl why huge\nkubectl describe pod huge\n"},
	{begins: "kubectl delete pod web huge", shows: []string{`pod "web" deleted`, `pod "huge" deleted`, `deployment.apps "sleepers" deleted`}},
}

// blocks are the page's commands, in order, without their indentation.
func blocks(page string) (all []string) {
	for i, part := range strings.Split(page, "\n```") {
		if i%2 == 1 {
			_, text, _ := strings.Cut(part, "\n")
			all = append(all, text+"\n")
		}
	}
	return all
}

// example is what `make run` shows of the example's pod.
var example = []string{"seen", "placed", "launched", "joined", "ready", "bound", "running", "succeeded", "terminated", "kubectl logs hello"}

// TestTheTutorialDoesWhatItSays runs `make run`, and meanwhile what the page tells
// to type in a second terminal; then it presses Ctrl-C.
func TestTheTutorialDoesWhatItSays(t *testing.T) {
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "first-pod.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := blocks(string(page))
	if len(commands) != len(steps)+1 || commands[0] != "make run\n" || !bytes.Contains(readme, []byte("\nmake run ")) {
		t.Fatalf("docs/first-pod.md has %d blocks, want make run and %d more; the first is %q", len(commands), len(steps), commands[0])
	}

	run, said := runUntil(t, root, "Kip is up.")
	for _, what := range example {
		if !strings.Contains(said(), what) {
			t.Errorf("make run does not say %q:\n%s", what, said())
		}
	}

	moved := strings.NewReplacer("$PWD/.kip/", "$PWD/"+state+"/")
	preamble := moved.Replace(strings.Split(commands[1], "\n")[0]) + "\n"
	for i, s := range steps {
		block := moved.Replace(commands[i+1])
		if !strings.HasPrefix(commands[i+1], s.begins) {
			t.Fatalf("block %d of docs/first-pod.md begins %q, want %q", i+2, strings.SplitAfter(commands[i+1], "\n")[:1], s.begins)
		}
		text, failed := bash(t, root, preamble+block)
		t.Logf("%s\n%s", strings.SplitN(block, "\n", 2)[0], text)
		if !slices.Equal(failed, s.fails) {
			t.Errorf("commands failed: %q, want %q:\n%s", failed, s.fails, text)
		}
		if s.again != "" && !strings.Contains(block, s.again) {
			t.Fatalf("block %d of docs/first-pod.md does not have the lines %q", i+2, s.again)
		}
		latest := text
		wait(t, "what "+s.begins+" shows", func() error {
			missing := s.missing(text, latest)
			if missing == nil {
				return nil
			}
			if s.again == "" {
				t.Fatalf("%v:\n%s", missing, text)
			}
			latest, _ = bash(t, root, preamble+s.again)
			text += latest
			return fmt.Errorf("%w:\n%s", missing, text)
		})
		if t.Failed() {
			break
		}
	}

	interrupt(t, root, run, said)
	if text := stop(t, root); strings.Contains(text, "removed") {
		t.Errorf("something was left:\n%s", text)
	}
}

// args are those of `make run` and `make stop`.
func args(more ...string) string {
	where := []string{"--state=" + state, "--bridge=" + ownNetwork.Bridge, "--cidr=" + ownNetwork.CIDR.String()}
	return "ARGS=" + strings.Join(append(where, more...), " ")
}

// stop runs `make stop` and returns what it prints.
func stop(t *testing.T, root string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "stop", args())
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("make stop: %v\n%s", err, text)
	}
	return string(text)
}

// interrupt presses Ctrl-C, and checks how a run ends.
func interrupt(t *testing.T, root string, run *child.Process, said func() string) {
	t.Helper()
	if err := syscall.Kill(-run.PID(), syscall.SIGINT); err != nil { // as a terminal sends it
		t.Fatal(err)
	}
	wait(t, "make run ends", func() error {
		select {
		case <-run.Done():
			return nil
		default:
			return errors.New("it does not:\n" + said())
		}
	})
	if !strings.Contains(said(), "stopped; nothing left behind") {
		t.Errorf("make run ended with %v and said\n%s", run.Err(), said())
	}
	noneCrashed(t, root)
}

// noneCrashed looks at what the Kip of a run that has ended logged.
func noneCrashed(t *testing.T, root string) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(root, state, "kip.log"))
	if err != nil {
		t.Error(err)
	}
	if amiss := harness.Amiss(log); len(amiss) > 0 {
		t.Errorf("Kip's log has %q", amiss)
	}
}

// runUntil starts `make run` with more variables of make's, waits until it says
// something, and returns it and what reads all that it has said.
func runUntil(t *testing.T, root, until string, variables ...string) (run *child.Process, said func() string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run.log")
	run = start(t, root, out, append([]string{"run", args()}, variables...)...)
	said = func() string {
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	wait(t, "make run says "+until, func() error {
		select {
		case <-run.Done():
			t.Fatalf("make run ended: %v\n%s", run.Err(), said())
		default:
		}
		if !strings.Contains(said(), until) {
			return errors.New("it does not:\n" + said())
		}
		return nil
	})
	return run, said
}

// TestARunOnEC2WithANodeEndsAfterTheExample runs what the pages say of NODES=1, of CLOUD=aws and of
// ARGS=--once together.
func TestARunOnEC2WithANodeEndsAfterTheExample(t *testing.T) {
	tier.All(t)
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	tells(t, root, "docs/first-pod.md", "`make run ARGS=--once` ends here instead", "`make run NODES=1` adds an ordinary node, `node-1`")
	tells(t, root, "README.md", "\nmake run NODES=1 ")
	tells(t, root, "docs/aws.md", "`ARGS=--once` ends it after the example")
	out := filepath.Join(t.TempDir(), "run.log")
	run := start(t, root, out, "run", "NODES=1", "CLOUD=aws", args("--once"))
	<-run.Done()
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	said := string(text)
	if run.Err() != nil {
		t.Errorf("it ended with %v", run.Err())
	}
	for _, what := range append(slices.Clone(example), `until node kip-0 and 1 more are Ready`,
		`starting a model of EC2, with cells behind its instances`, `(?m)^ok: pod hello succeeded on cell cell-\S+ .*; cell terminated; nothing left behind$`) {
		if !regexp.MustCompile(what).MatchString(said) {
			t.Errorf("it does not show %s", what)
		}
	}
	if strings.Contains(said, "Kip is up.") {
		t.Error("it stays up")
	}
	if t.Failed() {
		t.Log(said)
	}
	noneCrashed(t, root)
	if text := stop(t, root); strings.Contains(text, "removed") {
		t.Errorf("something was left:\n%s", text)
	}
}

// TestARunOnEC2ShowsHowToLookAtIt runs `make run CLOUD=aws`, and what that prints to be typed: who has
// no aws sees what it would be told.
func TestARunOnEC2ShowsHowToLookAtIt(t *testing.T) {
	tier.All(t)
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	tells(t, root, "docs/aws.md", "\nsudo make run CLOUD=aws\n", "It prints an `aws --endpoint-url … ec2 describe-instances`",
		"`curl -d JSON http://127.0.0.1:5080/_model/NAME`")
	run, said := runUntil(t, root, "Kip is up.", "CLOUD=aws")
	printed := func(line string) []string {
		t.Helper()
		found := regexp.MustCompile(`(?m)^  ` + line + `$`).FindStringSubmatch(said())
		if found == nil {
			t.Fatalf("it does not print %s:\n%s", line, said())
		}
		return found[1:]
	}
	look := printed(`AWS_ACCESS_KEY_ID=(\S+) AWS_SECRET_ACCESS_KEY=(\S+) aws --endpoint-url (\S+) --region (\S+) ec2 describe-instances`)
	if look[3] != machines.Region {
		t.Errorf("it is to look in %s, and the account is in %s", look[3], machines.Region)
	}
	type instance struct {
		State     string `xml:"instanceState>name"`
		Lifecycle string `xml:"instanceLifecycle"`
	}
	instances := func() []instance {
		t.Helper()
		const form = "Action=DescribeInstances&Version=2016-11-15"
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, look[2], strings.NewReader(form))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+look[0]+"/"+look[1]) // the model looks at no signature
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var all struct {
			Instances []instance `xml:"reservationSet>item>instancesSet>item"`
		}
		if err := xml.NewDecoder(answer.Body).Decode(&all); err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("EC2 answers %s, %v", answer.Status, err)
		}
		return all.Instances
	}
	for _, command := range []string{`(\S+ --kubeconfig \S+ run spot .*)`, `(\S+ --kubeconfig \S+ run private .*)`} {
		line := printed(command)[0]
		text, failed := bash(t, root, strings.Replace(line, " -it --rm ", " ", 1))
		if failed != nil {
			t.Fatalf("%q failed:\n%s", failed, text)
		}
	}
	kubectl := strings.Fields(printed(`(\S+ --kubeconfig \S+) run spot .*`)[0])
	tell := func(args string) string {
		text, _ := bash(t, root, strings.Join(kubectl, " ")+" "+args+"\n")
		return text
	}
	wait(t, "the pods' instances run, one of them spot", func() error {
		all := instances()
		if !slices.Contains(all, instance{State: "running", Lifecycle: "spot"}) {
			return fmt.Errorf("EC2 shows %d instances, none spot:\n%s", len(all), tell("describe pods"))
		}
		if text := tell("get pods"); !regexp.MustCompile(`(?m)^spot +1/1 +Running `).MatchString(text) {
			return errors.New(text)
		}
		if text := tell("get events --field-selector involvedObject.name=private"); !strings.Contains(text, "Pulled") {
			return errors.New(text)
		}
		return nil
	})
	order := printed(`curl -d '(\{\})' (http://\S+/interrupt)`)
	answer, err := http.Post(order[1], "application/x-www-form-urlencoded", strings.NewReader(order[0])) // as curl does
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("the interruption is answered with %s", answer.Status)
	}
	wait(t, "the pod is told of it", func() error {
		if text := tell("describe pod spot"); !strings.Contains(text, "the cloud takes instance") {
			return errors.New(text)
		}
		return nil
	})
	interrupt(t, root, run, said)
}

// TestMakeStopRemovesWhatAKilledRunLeft kills a run with a pod and a node.
func TestMakeStopRemovesWhatAKilledRunLeft(t *testing.T) {
	tier.All(t)
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	tells(t, root, "docs/first-pod.md", "If it was killed instead, the next `make run` clears\nup, or `make stop` does.")
	run, said := runUntil(t, root, "Kip is up.", "NODES=1")
	kubectl := "bin/kubectl --kubeconfig " + state + "/kubeconfig "
	text, failed := bash(t, root, kubectl+"get nodes\n"+kubectl+"run left --image busybox:1.36 --overrides '{\"spec\":{\"nodeSelector\":{\"type\":\"virtual-kubelet\"}}}' -- sleep 1000\n"+
		kubectl+"wait --for=condition=Ready pod/left --timeout=5m\n")
	if failed != nil || !regexp.MustCompile(`(?m)^node-1 +Ready `).MatchString(text) || !strings.Contains(text, "pod/left condition met") {
		t.Errorf("%q failed:\n%s\n%s", failed, text, said())
	}
	pids, err := child.Of(run.PID())
	if err != nil || len(pids) != 1 {
		t.Fatalf("make has the processes %v, %v; want kip-dev", pids, err)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-run.Done()
	here := local.Config{Config: host.Config{
		StateDir: filepath.Join(root, state, "cloud"),
		Bridge:   ownNetwork.Bridge,
		CIDR:     ownNetwork.CIDR,
	}}
	left, err := local.Leftovers(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"process ", "folder ", "network device ", "cgroup "} {
		if !slices.ContainsFunc(left, func(what string) bool { return strings.HasPrefix(what, kind) }) {
			t.Errorf("a killed run leaves %q, and no %s: what is removed?", left, kind)
		}
	}
	if text := stop(t, root); !regexp.MustCompile(`(?m)^removed what an earlier run left: .*process`).MatchString(text) {
		t.Errorf("make stop says %q", text)
	}
	if left, err := local.Leftovers(t.Context(), here); err != nil || len(left) > 0 {
		t.Errorf("after make stop there are %q, %v", left, err)
	}
	if text := stop(t, root); strings.Contains(text, "removed") {
		t.Errorf("make stop, once more, says %q", text)
	}
}

// tells fails if a document does not have these words: the tests here do what it says.
func tells(t *testing.T, root, document string, words ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		if !strings.Contains(string(text), w) {
			t.Errorf("%s does not say %q", document, w)
		}
	}
}

// missing says what of a step's is not in all that was printed, or in the latest.
func (s step) missing(all, latest string) error {
	for _, want := range s.shows {
		if !regexp.MustCompile(want).MatchString(all) {
			return fmt.Errorf("it does not show %s", want)
		}
	}
	for word, want := range s.rows {
		got := 0
		for line := range strings.Lines(latest) {
			if strings.Contains(line, word) {
				got++
			}
		}
		if got != want {
			return fmt.Errorf("it shows %d lines with %s, want %d", got, word, want)
		}
	}
	return nil
}

// bash runs a script as somebody types it: a command that fails does not end it. It
// returns what is printed, and the commands that failed.
func bash(t *testing.T, root, script string) (out string, failed []string) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "failed")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", "trap 'echo \"$BASH_COMMAND\" >>"+report+"' ERR\n"+script)
	cmd.Dir = root
	cmd.WaitDelay = time.Second
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("it does not end (%v):\n%s\n%s", err, script, text)
	}
	list, err := os.ReadFile(report)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		failed = append(failed, strings.TrimSpace(line))
	}
	return string(text), failed
}

func wait(t *testing.T, what string, check func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// start starts make in a process group of its own, which ends with the test, at the
// latest.
func start(t *testing.T, dir, log string, args ...string) *child.Process {
	t.Helper()
	name, err := exec.LookPath("make")
	if err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(child.Spec{Path: name, Args: args, Dir: dir, LogFile: log, Death: syscall.SIGTERM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.Done():
		default:
			_ = syscall.Kill(-p.PID(), syscall.SIGINT) // it may have ended meanwhile
			<-p.Done()
		}
	})
	return p
}
