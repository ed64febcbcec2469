package imageproviders

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/plugin"
	"k8s.io/kubernetes/pkg/util/parsers"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/imageplugin"
	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/credentialproviders"
)

// asPlugin says in the environment that the test's own program is to be the plugin.
const asPlugin = "KIP_TEST_IMAGE_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		os.Exit(imageplugin.Run())
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) // the kubelet's packages start some
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ownProvider answers with its argument, its environment, and what it is given of the service account.
const ownProvider = `#!/bin/sh
asked=$(cat)
of() { printf %s "$asked" | sed "s,.*\"$1\":\"\\([^\"]*\\)\".*,\\1,"; }
printf '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry","auth":
{"registry.example.com:5000":{"username":"%s","password":"%s"}}}' "$1" "$WORD $(of serviceAccountToken) $(of example.com/id)"
`

func tokenOfAccount(namespace, name string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	r = r.DeepCopy()
	r.Status.Token = r.Spec.Audiences[0] + " " + namespace + "/" + name
	return r, nil
}

func accountOf(namespace, name string) (*corev1.ServiceAccount, error) {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "account",
		Annotations: map[string]string{"example.com/id": "17"}}}, nil
}

// A kubelet that does not take what it is told of plugins does not start.
func TestTheKubeletsOwnCodeTakesThePluginAndItsAnswers(t *testing.T) {
	asked := 0
	own, err := localapi.NewPKI(filepath.Join(t.TempDir(), "pki"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	kip, err := own.Listen("127.0.0.1:0", roundTrip(func(r *http.Request) (*http.Response, error) {
		asked++
		var one agentapi.ImageRequest
		if err := json.NewDecoder(r.Body).Decode(&one); err != nil {
			return nil, err
		}
		answer, err := json.Marshal(agentapi.ImageCredentials{Username: "AWS", Password: "for " + one.Image, KeepFor: time.Hour})
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(answer)))}, err
	}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- kip.Serve(t.Context()) }()
	t.Cleanup(func() { // t's context ends before
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	patterns := []string{"*.dkr.ecr.*.amazonaws.com", "*.dkr.ecr-fips.*.amazonaws.com", "*.dkr.ecr.*.amazonaws.com.cn", "*.dkr-ecr.*.on.aws"}
	all := agentapi.Config{ImagesOfCloud: patterns, CredentialProviders: []credentialproviders.Provider{{
		Name: "own", APIVersion: credentialproviders.V1, MatchImages: []string{"registry.example.com:5000/team"},
		DefaultCacheDuration: time.Minute, Args: []string{"puller"}, Env: []credentialproviders.EnvVar{{Name: "WORD", Value: "sesame"}},
		TokenAttributes: &credentialproviders.TokenAttributes{Audience: "registry", CacheType: credentialproviders.CacheForToken,
			RequireServiceAccount: true, RequiredAnnotations: []string{"example.com/id"}, OptionalAnnotations: []string{"example.com/more"}},
	}}}
	file, err := configs.ImageProvidersFile(all, kip.URL(), own.Files)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, bin := filepath.Join(dir, filepath.Base(configs.ImageProviders)), filepath.Join(dir, "bin")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.WriteFile(config, file, 0o600), os.Mkdir(bin, 0o700), os.Symlink(self, filepath.Join(bin, configs.ImagePlugin)),
		os.WriteFile(filepath.Join(bin, "own"), []byte(ownProvider), 0o700),
		plugin.RegisterCredentialProviderPlugins(config, bin, tokenOfAccount, accountOf),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(asPlugin, "1")
	for image, want := range map[string]bool{
		"123456789012.dkr.ecr.us-east-1.amazonaws.com/team/app":       true,
		"123456789012.dkr.ecr-fips.us-east-1.amazonaws.com/team/app":  true,
		"123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/team/app":   true,
		"123456789012.dkr-ecr.eu-west-1.on.aws/app":                   true,
		"docker.io/library/busybox":                                   false,
		"public.ecr.aws/x/y":                                          false,
		"123456789012.dkr.ecr.us-east-1.amazonaws.com.evil.example/x": false,
	} {
		for range 2 { // the second time the kubelet knows
			got, found := plugin.NewExternalCredentialProviderDockerKeyring("shop", "web", "uid", "default").Lookup(image)
			if found != want || found && (len(got) != 1 || got[0].Username != "AWS" || got[0].Password != "for "+image) {
				t.Errorf("%s: %d credentials, %v, want %v", image, len(got), found, want)
			}
		}
	}
	got, found := plugin.NewExternalCredentialProviderDockerKeyring("shop", "web", "uid", "clerk").Lookup("registry.example.com:5000/team/app")
	if want := "sesame registry shop/clerk 17"; !found || len(got) != 1 || got[0].Username != "puller" || got[0].Password != want {
		t.Errorf("of the operator's own plugin: %v, %v: want %q", got, found, want)
	}
	if asked != 4 {
		t.Errorf("Kip was asked %d times for four images", asked)
	}
}

// Whatever Kip takes the kubelet has to take: else it refuses all of the file, and does not start.
func TestTheKubeletTakesEachProviderThatKipTakes(t *testing.T) {
	dir := t.TempDir()
	config, bin := filepath.Join(dir, "config.json"), filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	taken := 0
	try := func(change func(*credentialproviders.Provider)) {
		t.Helper()
		p := credentialproviders.Provider{Name: fmt.Sprintf("p%d", taken), APIVersion: credentialproviders.V1, MatchImages: []string{"a.example"},
			TokenAttributes: &credentialproviders.TokenAttributes{Audience: "x", CacheType: credentialproviders.CacheForToken,
				RequireServiceAccount: true}}
		change(&p)
		if valid, _ := credentialproviders.Valid([]credentialproviders.Provider{p}); len(valid) == 0 {
			return
		}
		taken++
		file, err := configs.ImageProvidersFile(agentapi.Config{CredentialProviders: []credentialproviders.Provider{p}}, "", configs.Files{})
		for _, err := range []error{
			err, os.WriteFile(config, file, 0o600), os.WriteFile(filepath.Join(bin, p.Name), []byte("#!/bin/sh\n"), 0o700),
			plugin.RegisterCredentialProviderPlugins(config, bin, tokenOfAccount, accountOf),
		} {
			if err != nil {
				t.Errorf("Kip takes %+v, %+v: %v", p, *p.TokenAttributes, err)
			}
		}
	}
	long := strings.Repeat("a", 63)
	for _, m := range []string{"*", "**", "a", "A.Example", "a..b", "-a", "a-", "*.*.a", "a:1", "a:99999", "a:", "a:b", "a/",
		"a//b", "a/../b", "a/*", "a/%zz", "[a]", "[::1]", "a b", "a?b", "a#b", "a@b", "a/b?c", "a\\b", "*[a", ""} {
		try(func(p *credentialproviders.Provider) { p.MatchImages = []string{m} })
	}
	for _, k := range []string{"a", "A/B", "a..b/c", "a.-b/c", "a-.b/c", "-a", "a/", "/a", "a/b/c", long, long + "a", long + "/" + long,
		strings.Repeat("a.", 126) + "a/b", strings.Repeat("a.", 127) + "a/b", long + "a/b",
		"a_b/c", "a/b_c", "a b", "ä", "a/ä", "\u212a", "a\n"} {
		try(func(p *credentialproviders.Provider) { p.TokenAttributes.RequiredAnnotations = []string{k} })
		try(func(p *credentialproviders.Provider) { p.TokenAttributes.OptionalAnnotations = []string{k, "b"} })
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Microsecond, math.MaxInt64} {
		try(func(p *credentialproviders.Provider) { p.DefaultCacheDuration = d })
	}
	for _, v := range []string{"", "v1", credentialproviders.V1 + "beta1", credentialproviders.V1 + "alpha1", credentialproviders.V1} {
		try(func(p *credentialproviders.Provider) { p.APIVersion = v })
	}
	for _, n := range []string{".", "..", "a b", "a/b", "A.b_c-d", "..."} {
		try(func(p *credentialproviders.Provider) { p.Name = n })
	}
	for _, text := range []string{"", "Token", "ServiceAccount", "token", "\xff", "<&>\u2028"} {
		try(func(p *credentialproviders.Provider) { p.TokenAttributes.CacheType = text })
		try(func(p *credentialproviders.Provider) { p.TokenAttributes.Audience = text })
		try(func(p *credentialproviders.Provider) { p.Args = []string{text} })
	}
	if taken < 40 {
		t.Errorf("Kip takes %d: nothing is proved", taken)
	}
}

// The cell API gives tokens for the images for which the kubelet asks.
func TestKipMatchesImagesAsTheKubeletDoes(t *testing.T) {
	matched := 0
	for _, image := range []string{"busybox", "busybox:1", "team/app", "team/app:1", "docker.io/busybox", "docker.io/team/app",
		"index.docker.io/busybox",
		"localhost/app", "localhost:5000/app:1", "host:5000/app", "a.example/app", "b.a.example/app:v1", "b.a.example/team/app",
		"b.a.example:5000/team/app", "A.Example/app", "Host/app", "a.example/app@sha256:" + strings.Repeat("0", 64),
		"a.example/app:1@sha256:" + strings.Repeat("0", 64), "c.b.a.example/team/app"} {
		repository, _, _, err := parsers.ParseImageName(image)
		if err != nil {
			t.Fatal(err)
		}
		for _, glob := range []string{"*", "docker.io", "*.io", "docker.io/library", "docker.io/team", "index.docker.io", "localhost",
			"localhost:5000", "*:5000",
			"a.example", "*.example", "*.a.example", "b.*.example", "b.a.example/team", "b.a.example:5000/t", "*.a.example/*", "b*.a*.*",
			"A.Example",
			"Host", "**.example", "-.example", "c.b.a.example/team/app", "a.example/"} {
			want, err := credentialprovider.URLsMatchStr(glob, repository)
			if got := (credentialproviders.Provider{MatchImages: []string{"x.invalid", glob}}).Matches(image); err != nil || got != want {
				t.Errorf("%s of %s: %v, the kubelet says %v, %v", image, glob, got, want, err)
			}
			if want {
				matched++
			}
		}
	}
	if matched < 30 {
		t.Errorf("%d match: nothing is proved", matched)
	}
}
