package kip

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/registries"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/test/journal"
)

// asPlugin says in the environment that the test's own program is to be the kubelet's plugin.
const asPlugin = "KIP_TEST_IMAGE_PLUGIN"

const (
	ecrRegistry = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
	ecrRole     = "arn:aws:iam::123456789012:role/kip-images"
)

// ecrWorld is a cell with its pod, a Kip and a model of AWS, with real connections between
// them.
type ecrWorld struct {
	*testing.T
	model *ec2.Model
	url   string // of the model
	args  []string
	way   http.RoundTripper // from the cell to Kip
	log   *journal.Log

	mu   sync.Mutex
	told []string
}

func (w *ecrWorld) Event(pod apiv1.PodReference, e events.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprintf("%s %s %s", pod.Name, e.Reason, e.Message))
}

// events are those that the pod's owner was told.
func (w *ecrWorld) events() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

func (w *ecrWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// runs has f run until the test ends, before what was cleaned up for earlier.
func (w *ecrWorld) runs(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	w.Cleanup(func() { cancel(); <-done })
}

// lends is the cloud of a Kip at the model, in its turn.
func (w *ecrWorld) lends(role string) cloud.Registries {
	policy, err := ec2.ParsePolicy(aws.Policy())
	w.must(err)
	may, err := ec2.ParsePolicy(aws.ImagePolicy(true))
	w.must(err)
	w.model, err = ec2.New(ec2.Config{
		Sim: sim.Config{Catalogue: []catalog.InstanceType{{
			Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 << 30, Arch: "amd64",
			Offerings: []catalog.PurchaseOption{{Zone: "us-east-1a", Subnet: "subnet-1"}},
		}}},
		Subnets:      []ec2.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "us-east-1a"}},
		Policies:     map[string]*ec2.Policy{"AKIAKIP": policy},
		Roles:        map[string]*ec2.Policy{ecrRole: may},
		Repositories: []string{"team/app", "team/side", "others/app"},
	})
	w.must(err)
	server := httptest.NewServer(w.model)
	w.url = server.URL
	for _, repository := range []string{"team/app", "team/side", "others/app"} {
		w.must(w.model.Registry.Push(w.Context(), server.Listener.Addr().String(), repository+":1", empty.Image))
	}
	w.Cleanup(func() {
		if err := w.model.Close(); err != nil {
			w.Error(err)
		}
		server.Close()
	})
	w.Setenv("AWS_CONFIG_FILE", "/dev/null")
	w.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	machines, err := aws.New(w.Context(), aws.Config{
		Region:          "us-east-1",
		AccessKeyID:     "AKIAKIP",
		SecretAccessKey: "secret",
		VPC:             "vpc-1",
		Endpoint:        server.URL,
		ImageRole:       role,
	})
	w.must(err)
	return pipe.New(pipe.Config{Cloud: machines, Clock: clock.RealClock{}}).Optional().Registries
}

// newECRWorld starts all with a pod of these images, and a Kip with this role.
func newECRWorld(t *testing.T, role string, images ...string) *ecrWorld {
	t.Helper()
	w := &ecrWorld{T: t, log: &journal.Log{}}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	lent := registries.New(registries.Config{Cloud: w.lends(role), Clock: clock.RealClock{}, Log: log})
	t.Cleanup(lent.Close)

	// Kip's cell API, before an API server of which only the pod is known.
	refuses := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(refuses.Close)
	source := fcache.NewFakeControllerSource()
	t.Cleanup(source.Shutdown)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid"}, Spec: corev1.PodSpec{NodeName: "kip-0"}}
	for n, image := range images {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", n), Image: image})
	}
	source.Add(pod)
	pods := cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, nil)
	w.runs(pods.RunWithContext)
	api, err := cellapi.New(cellapi.Config{
		NodeName: "kip-0",
		Node:     &rest.Config{Host: refuses.URL},
		Own:      &rest.Config{Host: refuses.URL},
		Pods:     pods,
		Images:   lent,
		Events:   w,
		Log:      log,
	})
	w.must(err)
	w.runs(func(ctx context.Context) {
		if err := api.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	served := api.AddCell("c-1", cellapi.CellInfo{NodeIP: netip.MustParseAddr("10.0.0.5"), PodIP: netip.MustParseAddr("10.0.128.5")})
	w.must(served.Bind("shop", "web", "uid"))
	w.connect(served, log)
	return w
}

// connect makes the cell's agent, and Kip's way to it.
func (w *ecrWorld) connect(served http.Handler, log *slog.Logger) {
	authority, err := pki.New(time.Now)
	w.must(err)
	token := pki.NewToken()
	cell, err := tunnel.NewCell(tunnel.CellConfig{
		UserData: agentapi.UserData{CellID: "c-1", CAHash: authority.Hash(), Token: token.Reveal()},
		StateDir: w.TempDir(),
		Handler:  http.NotFoundHandler(),
		Log:      log,
	})
	w.must(err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.runs(func(ctx context.Context) { _ = cell.Serve(ctx, lis) }) // ends with ctx
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: log})
	w.must(err)
	session, err := dialer.Keep(context.Background(), tunnel.Target{
		CellID: "c-1",
		Addr:   netip.MustParseAddrPort(lis.Addr().String()),
		Token:  token,
	}, served, func(context.Context, string) error { return nil })
	w.must(err)
	w.Cleanup(session.Close)
	select {
	case <-session.Ready():
	case <-time.After(patience):
		w.Fatalf("the tunnel is not there after %s: %v", patience, session.LastError())
	}
	w.way = cell.RoundTripper()

	own, err := localapi.NewPKI(filepath.Join(w.TempDir(), "pki"), time.Now())
	w.must(err)
	local, err := own.Listen("127.0.0.1:0", w.way, log)
	w.must(err)
	w.runs(func(ctx context.Context) {
		if err := local.Serve(ctx); err != nil {
			w.Error(err)
		}
	})
	file, err := configs.ImageProvidersFile(agentapi.Config{ImagesOfCloud: []string{"*.example.com"}}, local.URL(), own.Files)
	w.must(err)
	var providers struct{ Providers []struct{ Args []string } }
	w.must(json.Unmarshal(file, &providers))
	w.args = providers.Providers[0].Args
}

// plugin runs the kubelet's plugin, a process of its own, and returns the password that it
// gives the kubelet, or what it says on its standard error.
func (w *ecrWorld) plugin(image string) (password, said string) {
	w.Helper()
	self, err := os.Executable()
	w.must(err)
	path := filepath.Join(w.TempDir(), configs.ImagePlugin)
	w.must(os.Symlink(self, path))
	cmd := exec.CommandContext(w.Context(), path, w.args...)
	cmd.Env = []string{asPlugin + "=1"}
	cmd.Stdin = strings.NewReader(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderRequest","image":"` + image + `"}`)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if cmd.Run() != nil {
		return "", errs.String()
	}
	var got struct {
		Auth map[string]struct{ Username, Password string }
	}
	w.must(json.Unmarshal(out.Bytes(), &got))
	if got.Auth[image].Username != "AWS" {
		w.Errorf("the plugin gives the kubelet %d, of user %q", len(got.Auth), got.Auth[image].Username)
	}
	return got.Auth[image].Password, errs.String()
}

// ask sends what asks for an image's credentials by the tunnel, and again where that fails: on a
// machine that is busy one end may take the other for dead.
func (w *ecrWorld) ask(body string) *http.Response {
	w.Helper()
	for end := time.Now().Add(patience); ; {
		req, err := http.NewRequestWithContext(w.Context(), http.MethodPost, "https://kip"+agentapi.PathImageCredentials, strings.NewReader(body))
		w.must(err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := w.way.RoundTrip(req)
		if err == nil {
			return resp
		}
		if time.Now().After(end) {
			w.Fatal(err)
		}
	}
}

// pull reads an image's manifest of the model.
func (w *ecrWorld) pull(password, repository string) int {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.url+"/v2/"+repository+"/manifests/1", nil)
	w.must(err)
	req.SetBasicAuth("AWS", password)
	resp, err := http.DefaultClient.Do(req)
	w.must(err)
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestAKubeletIsGivenWhatPullsItsPodsImagesOfECRAndNoOther(t *testing.T) {
	w := newECRWorld(t, ecrRole, ecrRegistry+"/team/app:1", ecrRegistry+"/team/side@sha256:"+strings.Repeat("a", 64), "busybox")
	password, said := w.plugin(ecrRegistry + "/team/app")
	if password == "" {
		t.Fatalf("the plugin says %q", said)
	}
	for repository, want := range map[string]int{
		"team/app":   http.StatusOK,
		"team/side":  http.StatusOK,
		"others/app": http.StatusForbidden,
	} {
		if status := w.pull(password, repository); status != want {
			t.Errorf("%s: %d, want %d", repository, status, want)
		}
	}
	if other, said := w.plugin(ecrRegistry + "/others/app"); other != "" || !strings.Contains(said, "its pod does not name the image") {
		t.Errorf("an image that the pod does not name: %d bytes of a password, %q", len(other), said)
	}

	// Root on the cell asks a thousand times, for all sorts of things.
	body := func(image string) string { return `{"image":"` + image + `"}` }
	statuses := map[int]int{}
	for n := range 1000 {
		image := []string{"/team/app", "/others/app", "/*", "/team/side", fmt.Sprintf("/team/app%d", n)}[n%5]
		resp := w.ask(body(ecrRegistry + image))
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		statuses[resp.StatusCode]++
	}
	if statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusServiceUnavailable] > 0 {
		t.Errorf("answers by status: %v", statuses)
	}
	// Both in one session, since one pod names them.
	if n := w.model.Calls(); n["AssumeRole"] != 1 || n["GetAuthorizationToken"] != 1 {
		t.Errorf("AWS was asked %v", n)
	}
	if told := w.events(); len(told) > 0 {
		t.Errorf("told %q", told)
	}
	if log := w.log.String(); strings.Contains(log, password) {
		t.Errorf("the password is in the log: %s", log)
	}
}

func TestAnAgentTakesWhatItIsToldOfTheImagesOfECR(t *testing.T) {
	told := agentapi.Config{
		NodeName:      "kip-0",
		NodeIP:        netip.MustParseAddr("10.0.0.5"),
		PodIP:         netip.MustParseAddr("10.0.128.5"),
		ImagesOfCloud: (&aws.Cloud{}).Images(),
	}
	if err := configs.Validate(told); err != nil || len(told.ImagesOfCloud) == 0 {
		t.Errorf("%q: %v", told.ImagesOfCloud, err)
	}
}

func TestWithoutARoleAnEventOfThePodNamesTheKey(t *testing.T) {
	w := newECRWorld(t, "", ecrRegistry+"/team/app:1")
	if password, said := w.plugin(ecrRegistry + "/team/app"); password != "" || !strings.Contains(said, "an Event of the pod says why") {
		t.Errorf("%d bytes of a password, %q", len(password), said)
	}
	if told := w.events(); len(told) != 1 || !strings.HasPrefix(told[0], "web NoImageCredentials ") ||
		!strings.Contains(told[0], "cloud.aws.ecr.roleARN: there is no value") {
		t.Errorf("told %q", told)
	}
	if n := w.model.Calls(); n["AssumeRole"] != 0 {
		t.Errorf("AWS was asked %v", n)
	}
}
