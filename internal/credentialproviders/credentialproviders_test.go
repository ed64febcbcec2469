package credentialproviders

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func valid() Provider {
	return Provider{
		Name:                 "acr-credential-provider",
		APIVersion:           V1,
		MatchImages:          []string{"*.azurecr.io", "registry.example.com:5000/team/*", "*"},
		DefaultCacheDuration: time.Minute,
		Args:                 []string{"/etc/azure.json"},
		Env:                  []EnvVar{{"AUDIENCE", ""}},
		TokenAttributes: &TokenAttributes{Audience: "https://registry.example.com", CacheType: CacheForToken, RequireServiceAccount: true,
			RequiredAnnotations: []string{"example.com/client-id"}, OptionalAnnotations: []string{"tenant"}},
	}
}

func TestWhatAKubeletWouldNotStartWithIsNamed(t *testing.T) {
	long := strings.Repeat("x", maxProviderText+1)
	annotated := func(keys ...string) func(*Provider) {
		return func(p *Provider) { p.TokenAttributes.RequiredAnnotations = keys }
	}
	for name, tc := range map[string]struct {
		change func(*Provider)
		want   string // one key and its problem, or nothing
	}{
		"all is well":              {func(*Provider) {}, ""},
		"no name":                  {func(p *Provider) { p.Name = "" }, `[0].name: "" is not valid`},
		"a path":                   {func(p *Provider) { p.Name = "../x" }, `[0].name: "../x" is not valid`},
		"Kip's own":                {func(p *Provider) { p.Name = OfCloud }, "[0].name: itzo-image-credentials is Kip's own"},
		"a version":                {func(p *Provider) { p.APIVersion, p.TokenAttributes = "v1", nil }, `[0].apiVersion: "v1" is not valid`},
		"no images":                {func(p *Provider) { p.MatchImages = nil }, "[0].matchImages: there is no value"},
		"a URL":                    {func(p *Provider) { p.MatchImages = []string{"https://a.b"} }, `[0].matchImages[0]: "https://a.b"`},
		"a negative duration":      {func(p *Provider) { p.DefaultCacheDuration = -1 }, "[0].defaultCacheDuration: -1ns"},
		"a long argument":          {func(p *Provider) { p.Args = []string{long} }, "[0].args[0]: it is not valid"},
		"many arguments":           {func(p *Provider) { p.Args = make([]string, 65) }, "[0].args: there are 65"},
		"a variable":               {func(p *Provider) { p.Env[0].Name = "1=2" }, `[0].env[0].name: "1=2"`},
		"a long value":             {func(p *Provider) { p.Env[0].Value = long }, "[0].env[0].value: it is not valid"},
		"a token of old":           {func(p *Provider) { p.APIVersion = providerVersions[1] }, "[0].tokenAttributes: it is there with the apiVersion"},
		"no audience":              {func(p *Provider) { p.TokenAttributes.Audience = "" }, "[0].tokenAttributes.serviceAccountTokenAudience: it has 0"},
		"a kind of cache":          {func(p *Provider) { p.TokenAttributes.CacheType = "Pod" }, `[0].tokenAttributes.cacheType: "Pod"`},
		"annotations of nobody":    {func(p *Provider) { p.TokenAttributes.RequireServiceAccount = false }, "[0].tokenAttributes.requireServiceAccount: false"},
		"an annotation":            {func(p *Provider) { p.TokenAttributes.OptionalAnnotations = []string{"a b"} }, `optionalServiceAccountAnnotationKeys[0]: "a b"`},
		"a prefix with ..":         {annotated("a..b/c"), `requiredServiceAccountAnnotationKeys[0]: "a..b/c"`},
		"a prefix with .-":         {annotated("a.-b/c"), `requiredServiceAccountAnnotationKeys[0]: "a.-b/c"`},
		"a long prefix":            {annotated(strings.Repeat("a", 254) + "/c"), `requiredServiceAccountAnnotationKeys[0]: "aaa`},
		"capitals":                 {annotated("JFrogExchange", "Example.com/ID"), ""},
		"an annotation of both":    {func(p *Provider) { p.TokenAttributes.OptionalAnnotations = p.TokenAttributes.RequiredAnnotations }, "is there already, in required"},
		"a token without anything": {func(p *Provider) { p.TokenAttributes = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := valid()
			tc.change(&p)
			var got []string
			Check([]Provider{p}, func(key, problem string) { got = append(got, key+": "+problem) })
			text := strings.ToLower(strings.Join(got, "\n"))
			if n := min(len(tc.want), 1); len(got) != n || !strings.Contains(text, strings.ToLower(tc.want)) {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if strings.Contains(text, "xxx") {
				t.Errorf("it quotes a value: %.200s", text)
			}
		})
	}
	var got []string
	if ok, why := Valid([]Provider{valid(), {Name: "../x"}, valid()}); len(ok) != 1 || len(why) != 2 ||
		!strings.HasPrefix(why["../x"], `name: "../x" is not valid`) {
		t.Errorf("valid: %v; else %q", ok, why)
	}
	large := valid()
	large.Args, got = slices.Repeat([]string{strings.Repeat("<", maxProviderText)}, 6), nil // of six bytes each, in JSON
	Check([]Provider{large}, func(key, problem string) { got = append(got, key+": "+problem) })
	if len(got) != 1 || !strings.HasPrefix(got[0], ": they have 147") || !strings.HasSuffix(got[0], " want at most 131072") {
		t.Errorf("of many bytes: %q", got)
	}
	if ok, why := Valid([]Provider{large}); len(ok) != 0 || !strings.Contains(why[large.Name], "bytes together") {
		t.Errorf("of many bytes: %v; else %q", ok, why)
	}
	got = nil
	Check([]Provider{valid(), valid()}, func(key, problem string) { got = append(got, key+": "+problem) })
	if ok, why := Valid(make([]Provider, 17)); len(ok) != 0 || !strings.Contains(why[""], "there are 17 providers") {
		t.Errorf("of 17: %v; else %q", ok, why)
	}
	if want := []string{`[1].name: "acr-credential-provider" is there already: [0] has it`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
