package imageplugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agentapi"
)

const image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/app"

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// says answers all with a status and a text.
func says(code int, text string) roundTrip {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: code,
			Header:     http.Header{"Content-Type": {"application/json"}},
			Body:       io.NopCloser(strings.NewReader(text)),
		}, nil
	}
}

// argsOf are the plugin's arguments, as the kubelet is told them, at a real endpoint before
// kip.
func argsOf(t *testing.T, kip http.RoundTripper) []string {
	t.Helper()
	p, err := localapi.NewPKI(filepath.Join(t.TempDir(), "pki"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e, err := p.Listen("127.0.0.1:0", kip, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Serve(t.Context()) }()
	t.Cleanup(func() { // t's context ends before
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	file, err := configs.ImageProvidersFile(agentapi.Config{ImagesOfCloud: []string{"*.example.com"}}, e.URL(), p.Files)
	if err != nil {
		t.Fatal(err)
	}
	var providers struct{ Providers []struct{ Args []string } }
	if err := json.Unmarshal(file, &providers); err != nil || len(providers.Providers) != 1 {
		t.Fatal(string(file), err)
	}
	return providers.Providers[0].Args
}

// asks is what the kubelet sends.
func asks(t *testing.T, image string) []byte {
	t.Helper()
	text, err := json.Marshal(credentialproviderv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: credentialproviderv1.SchemeGroupVersion.String(), Kind: "CredentialProviderRequest"},
		Image:    image,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheProgramAnswersTheKubeletWithWhatKipSays(t *testing.T) {
	var asked agentapi.ImageRequest
	args := argsOf(t, roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodPost || r.URL.Path != agentapi.PathImageCredentials {
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		answer, err := json.Marshal(agentapi.ImageCredentials{Username: "AWS", Password: "very-secret", KeepFor: 50*time.Minute + 1})
		if err != nil {
			return nil, err
		}
		return says(http.StatusOK, string(answer))(r)
	}))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// By a link of the name, as the kubelet starts it.
	path := filepath.Join(t.TempDir(), configs.ImagePlugin)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env, cmd.Stdin = []string{asPlugin + "=1", "HTTPS_PROXY=http://127.0.0.1:1"}, bytes.NewReader(asks(t, image))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got credentialproviderv1.CredentialProviderResponse
	strict := json.NewDecoder(bytes.NewReader(out))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&got); err != nil {
		t.Fatalf("the kubelet would refuse %s: %v", out, err)
	}
	if got.APIVersion != credentialproviderv1.SchemeGroupVersion.String() || got.Kind != "CredentialProviderResponse" ||
		got.CacheKeyType != credentialproviderv1.ImagePluginCacheKeyType || got.CacheDuration == nil ||
		got.CacheDuration.Duration != 50*time.Minute || len(got.Auth) != 1 ||
		got.Auth[image] != (credentialproviderv1.AuthConfig{Username: "AWS", Password: "very-secret"}) {
		t.Errorf("%s", out)
	}
	if asked.Image != image {
		t.Errorf("asked for %q", asked.Image)
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "secret") }) {
		t.Errorf("arguments %q", args)
	}
}

func TestWhatIsNoAnswerIsAnErrorThatShowsNoPassword(t *testing.T) {
	const secret = "very-secret"
	for name, one := range map[string]struct {
		kip  roundTrip
		in   []byte
		want string
	}{
		"a refusal": {says(http.StatusForbidden, `{"kind":"Status","message":"its pod does not name it"}`), nil,
			"its pod does not name it"},
		"no Status":       {says(http.StatusServiceUnavailable, secret), nil, "no Status"},
		"no JSON":         {says(http.StatusOK, `{"username":"AWS","password":"`+secret), nil, "not a name and a password"},
		"no password":     {says(http.StatusOK, `{"username":"AWS","password":""}`), nil, "not a name and a password"},
		"no number":       {says(http.StatusOK, `{"username":"AWS","password":"`+secret+`","keepFor":"x"}`), nil, "not a name and a password"},
		"too long":        {says(http.StatusOK, strings.Repeat(secret, maxAnswer)), nil, "longer than"},
		"no tunnel":       {func(*http.Request) (*http.Response, error) { return nil, errors.New("not connected") }, nil, "not connected"},
		"another request": {says(http.StatusOK, "{}"), []byte(`{"kind":"Pod","apiVersion":"v1"}`), "want a CredentialProviderRequest"},
		"an older request": {says(http.StatusOK, "{}"), []byte(`{"kind":"CredentialProviderRequest","apiVersion":"x/v1alpha1","image":"a"}`),
			"v1alpha1"},
		"no image":       {says(http.StatusOK, "{}"), asks(t, ""), "with an image"},
		"no request":     {says(http.StatusOK, "{}"), []byte("x"), "not JSON"},
		"a long request": {says(http.StatusOK, "{}"), asks(t, strings.Repeat("a", maxRequest)), "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			in := one.in
			if in == nil {
				in = asks(t, image)
			}
			var out bytes.Buffer
			err := run(t.Context(), argsOf(t, one.kip), bytes.NewReader(in), &out)
			if err == nil || !strings.Contains(err.Error(), one.want) || strings.Contains(err.Error(), secret) || len(err.Error()) > 2<<10 {
				t.Errorf("%v, want %s", err, one.want)
			}
			if out.Len() > 0 {
				t.Errorf("answered %s", out.Bytes())
			}
		})
	}
}

func TestTheKubeletKeepsWhatItMay(t *testing.T) {
	for keep, want := range map[time.Duration]time.Duration{
		-time.Hour:              0,
		0:                       0,
		1500 * time.Millisecond: time.Second,
		1000 * time.Hour:        longestKept,
	} {
		answer, err := json.Marshal(agentapi.ImageCredentials{Username: "u", Password: "p", KeepFor: keep})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := run(t.Context(), argsOf(t, says(http.StatusOK, string(answer))), bytes.NewReader(asks(t, image)), &out); err != nil {
			t.Fatal(err)
		}
		var got credentialproviderv1.CredentialProviderResponse
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.CacheDuration == nil || got.CacheDuration.Duration != want {
			t.Errorf("%v: %s, %v", keep, out.Bytes(), err)
		}
	}
}

func TestFilesThatAreNotThereAreNamed(t *testing.T) {
	args := argsOf(t, says(http.StatusOK, "{}"))
	for n, name := range []string{configs.ImagePluginCA, configs.ImagePluginCert, configs.ImagePluginKey} {
		other := slices.Clone(args)
		other[n+1] = "--" + name + "=/nowhere/" + name
		err := run(t.Context(), other, bytes.NewReader(asks(t, image)), io.Discard)
		if err == nil || !strings.Contains(err.Error(), "/nowhere/"+name) {
			t.Errorf("%v", err)
		}
	}
}
