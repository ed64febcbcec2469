package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/test/harness"
)

// roleVariable says what this binary plays, if not the tests.
const roleVariable = "CONFORMANCE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case "kip": // says something, and runs until it is told to end
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		fmt.Println("the words of", os.Args[1])
		<-asked
	case "kip-dev":
		if err := playKipDev(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "%s is %q: there is no such role\n", roleVariable, role)
		os.Exit(2)
	}
}

// playKipDev starts a Kip as kip-dev does, with its record and log, and an API
// server that has a ready node, until it is told to end.
func playKipDev(args []string) (err error) {
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	given := map[string]string{}
	for i, a := range args[1:] {
		given[args[i]] = a
	}
	state := given["--state"]
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/nodes/"+harness.Node {
			http.NotFound(w, r)
			return
		}
		node := corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: harness.Node},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		if err := json.NewEncoder(w).Encode(node); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}))
	defer api.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["a"] = &clientcmdapi.Cluster{Server: api.URL}
	config.Contexts["a"] = &clientcmdapi.Context{Cluster: "a"}
	config.CurrentContext = "a"
	for _, name := range []string{"kubeconfig", "kip.kubeconfig"} {
		if err := clientcmd.WriteToFile(*config, filepath.Join(state, name)); err != nil {
			return err
		}
	}
	log := filepath.Join(state, "kip.log")
	kip, err := child.Start(child.Spec{
		Path:    os.Args[0],
		Args:    []string{filepath.Base(log)},
		Env:     []string{roleVariable + "=kip"},
		LogFile: log,
		Record:  filepath.Join(state, "kip.json"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kip.Stop(context.Background())) }()
	for said := []byte(nil); len(said) == 0 && asked.Err() == nil; time.Sleep(10 * time.Millisecond) { // a Kip that is ready has said so
		if said, err = os.ReadFile(log); err != nil {
			return err
		}
	}
	fmt.Println("the cluster's words")
	if err := os.WriteFile(given["--ready-file"], nil, 0o600); err != nil {
		return err
	}
	<-asked.Done()
	return nil
}

// TestAKipThatIsKilledFailsTheRun kills a process once, in a run as make conformance does
// it: from the start of the cluster to the results, but for the programs that it runs.
func TestAKipThatIsKilledFailsTheRun(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range []string{"kip.json", ""} {
		o := options{root: t.TempDir(), mode: "kip", procs: 1, bridge: "kipconft0", cidr: "10.119.0.0/16", choice: choice{shard: shard{1, 1}}}
		t.Chdir(o.root)
		write(t, filepath.Join(o.root, "go.mod"), "module a")
		script(t, filepath.Join(o.root, "bin", "kip-dev"), roleVariable+"=kip-dev exec "+binary+` "$@"`)
		wait := "while :; do sleep 0.01; done\n"
		if record == "" { // none is killed, and all pass
			wait = strings.Replace(oneHasPassed, one, two, 1)
		}
		script(t, o.dir("bin", "ginkgo"), strings.TrimSuffix(oneHasPassed, "\n")+" '"+two+" [label]'\n"+wait)
		results, err := loadResults(o.results(), o.mode)
		if err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(o.root, ".kip", o.bridge)
		ctx, stop := context.WithTimeoutCause(t.Context(), time.Minute, errLimit) // of a runner that does not see it
		err = o.record(ctx, "c", []string{one, two}, &results, o.results(),
			func(ctx context.Context, specs []string, tell func(outcome)) error {
				return o.onCluster(ctx, specs, "images", func(out outcome) {
					tell(out)
					if out.spec == one && record != "" {
						killRecorded(t, filepath.Join(state, record))
					}
				})
			})
		stop()
		kept, globErr := filepath.Glob(o.dir(o.mode, "crash-*", "*.log"))
		if globErr != nil {
			t.Fatal(globErr)
		}
		saved, loadErr := loadResults(o.results(), o.mode)
		if loadErr != nil || len(saved.Runs) != 1 {
			t.Fatalf("its results are %+v, %v", saved, loadErr)
		}
		if record == "" {
			if err != nil || len(kept) > 0 || saved.Runs[0].Ended != complete || saved.passing([]string{one, two}) != 2 {
				t.Errorf("without a kill its error is %v, it kept %q, and its results are %+v", err, kept, saved)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), record+" ended by itself") {
			t.Errorf("%s: its error is %v, want one that says which Kip ended", record, err)
		}
		if !strings.Contains(saved.Runs[0].Ended, "ended by itself") || saved.Specs[two].State != interrupted || saved.checkEnds("c") == nil {
			t.Errorf("%s: its results are %+v, want a run that failed and a spec that was interrupted", record, saved)
		}
		all := ""
		for _, log := range kept {
			data, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			all += string(data)
		}
		for _, words := range []string{"the words of kip.log", "the cluster's words"} {
			if !strings.Contains(all, words) {
				t.Errorf("%s: it kept %q, without %q", record, kept, words)
			}
		}
	}
}

// killRecorded kills the process that a record names.
func killRecorded(t *testing.T, record string) {
	data, err := os.ReadFile(record)
	if err != nil {
		t.Error(err)
		return
	}
	var process struct{ PID int }
	if err := json.Unmarshal(data, &process); err != nil || process.PID < 2 {
		t.Errorf("%s has %q, %v: want a process", record, data, err)
		return
	}
	if err := syscall.Kill(process.PID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}
