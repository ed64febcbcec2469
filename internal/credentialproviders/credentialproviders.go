package credentialproviders

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// OfCloud is the name under which the agent itself is the credential provider of the cloud's images.
	OfCloud = "itzo-image-credentials"
	// Dir has the programs of the others on the machine.
	Dir = "/opt/kip/credential-providers"
	// V1 is what credential providers speak, unless another version is named.
	V1 = "credentialprovider.kubelet.k8s.io/v1"
)

// What of Provider.TokenAttributes.CacheType there is.
const (
	CacheForToken          = "Token"
	CacheForServiceAccount = "ServiceAccount"
)

const (
	// maxProviders, maxProviderList and maxProviderText bound credential providers: how many there are, how long each of their lists is,
	// and the bytes of each text.
	maxProviders, maxProviderList, maxProviderText = 16, 64, 4096
	// maxBytes bounds all of them together, in JSON: agents read 1 MiB of configuration.
	maxBytes = 128 << 10
)

// Provider is a program that the kubelet asks for what pulls images: an entry of its CredentialProviderConfig.
type Provider struct {
	Name                 string           `json:"name"` // of its file in Dir
	APIVersion           string           `json:"apiVersion"`
	MatchImages          []string         `json:"matchImages"`
	DefaultCacheDuration time.Duration    `json:"defaultCacheDuration"`
	Args                 []string         `json:"args,omitempty"`
	Env                  []EnvVar         `json:"env,omitempty"`
	TokenAttributes      *TokenAttributes `json:"tokenAttributes,omitempty"`
}

// EnvVar is a variable of a credential provider's environment.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TokenAttributes say which token of the pod's service account a credential provider is given.
type TokenAttributes struct {
	Audience              string   `json:"serviceAccountTokenAudience"`
	CacheType             string   `json:"cacheType"`
	RequireServiceAccount bool     `json:"requireServiceAccount"`
	RequiredAnnotations   []string `json:"requiredServiceAccountAnnotationKeys,omitempty"`
	OptionalAnnotations   []string `json:"optionalServiceAccountAnnotationKeys,omitempty"`
}

var (
	providerNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	// providerImages is HOST, HOST:PORT and each of these with a path; * stands for a part of the host or of the path.
	providerImages = regexp.MustCompile(`^[A-Za-z0-9*][A-Za-z0-9.*-]*(:[0-9]{1,5})?(/[A-Za-z0-9._*/-]*)?$`)
	envNames       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// providerVersions are those that kubelets speak.
	providerVersions = []string{V1, "credentialprovider.kubelet.k8s.io/v1beta1", "credentialprovider.kubelet.k8s.io/v1alpha1"}
)

// Check calls bad for each key of providers, such as [0].name, with which a kubelet would not start. No problem quotes
// an argument or a value of the environment.
func Check(all []Provider, bad func(key, problem string)) {
	check(all, func(i int, key, problem string) {
		if i >= 0 {
			key = fmt.Sprintf("[%d]%s", i, key)
		}
		bad(key, problem)
	})
}

// Valid returns the providers with which a kubelet starts, in their order, and for the name of each other one the first thing that is
// wrong with it. It returns none if something is wrong with all of them together.
func Valid(all []Provider) (valid []Provider, invalid map[string]string) {
	invalid = map[string]string{}
	refused := map[int]bool{}
	note := func(i int, why string) {
		if !refused[i] {
			refused[i], invalid[all[i].Name] = true, why
		}
	}
	check(all, func(i int, key, problem string) {
		if i >= 0 {
			note(i, strings.TrimPrefix(key, ".")+": "+problem)
			return
		}
		for i := range all {
			note(i, problem)
		}
	})
	for i, p := range all {
		if !refused[i] {
			valid = append(valid, p)
		}
	}
	return valid, invalid
}

// check calls bad for each key of the provider at an index, or with index -1 and no key for what is wrong with all of them together.
func check(all []Provider, bad func(i int, key, problem string)) {
	if len(all) > maxProviders {
		bad(-1, "", fmt.Sprintf("there are %d providers: want at most %d", len(all), maxProviders))
		return
	}
	if text, err := json.Marshal(all); err != nil || len(text) > maxBytes {
		bad(-1, "", fmt.Sprintf("they have %d bytes together, in JSON: want at most %d", len(text), maxBytes))
	}
	first := map[string]int{}
	for i, p := range all {
		p.check(func(key, format string, args ...any) { bad(i, key, fmt.Sprintf(format, args...)) })
		if n, twice := first[p.Name]; twice {
			bad(i, ".name", fmt.Sprintf("%q is there already: [%d] has it", p.Name, n))
		} else {
			first[p.Name] = i
		}
	}
}

func (p Provider) check(bad func(key, format string, args ...any)) {
	switch {
	case p.Name == OfCloud:
		bad(".name", "%s is Kip's own: want another name", p.Name)
	case !providerNames.MatchString(p.Name):
		bad(".name", "%.80q is not valid: want the name of a file in %s, of letters, digits and . _ -", p.Name, Dir)
	}
	if !slices.Contains(providerVersions, p.APIVersion) {
		bad(".apiVersion", "%.80q is not valid: want one of %s", p.APIVersion, strings.Join(providerVersions, ", "))
	}
	if len(p.MatchImages) == 0 {
		bad(".matchImages", "there is no value: want at least one, such as *.registry.example.com")
	}
	for key, n := range map[string]int{".matchImages": len(p.MatchImages), ".args": len(p.Args), ".env": len(p.Env)} {
		if n > maxProviderList {
			bad(key, "there are %d: want at most %d", n, maxProviderList)
		}
	}
	for i, m := range p.MatchImages {
		if len(m) > 512 || !providerImages.MatchString(m) {
			bad(fmt.Sprintf(".matchImages[%d]", i), "%.80q is not valid: want a host, with its port and a path if wanted, such as *.registry.example.com/team",
				m)
		}
	}
	if p.DefaultCacheDuration < 0 {
		bad(".defaultCacheDuration", "%v is not valid: want 0 or more", p.DefaultCacheDuration)
	}
	for i, a := range p.Args {
		if len(a) > maxProviderText || strings.ContainsRune(a, 0) {
			bad(fmt.Sprintf(".args[%d]", i), "it is not valid: want at most %d bytes, none of them 0", maxProviderText)
		}
	}
	for i, e := range p.Env {
		if len(e.Name) > 253 || !envNames.MatchString(e.Name) {
			bad(fmt.Sprintf(".env[%d].name", i), "%.80q is not valid: want letters, digits and _, no digit first", e.Name)
		}
		if len(e.Value) > maxProviderText || strings.ContainsRune(e.Value, 0) {
			bad(fmt.Sprintf(".env[%d].value", i), "it is not valid: want at most %d bytes, none of them 0", maxProviderText)
		}
	}
	if p.TokenAttributes != nil {
		p.TokenAttributes.check(p.APIVersion, bad)
	}
}

func (t TokenAttributes) check(version string, bad func(key, format string, args ...any)) {
	const at = ".tokenAttributes"
	if version != V1 {
		bad(at, "it is there with the apiVersion %.80q: want %s", version, V1)
	}
	if t.Audience == "" || len(t.Audience) > 1024 {
		bad(at+".serviceAccountTokenAudience", "it has %d bytes: want an audience, of at most 1024", len(t.Audience))
	}
	if t.CacheType != CacheForToken && t.CacheType != CacheForServiceAccount {
		bad(at+".cacheType", "%.80q is not valid: want %s or %s", t.CacheType, CacheForToken, CacheForServiceAccount)
	}
	if !t.RequireServiceAccount && len(t.RequiredAnnotations) > 0 {
		bad(at+".requireServiceAccount", "false is not valid with requiredServiceAccountAnnotationKeys: want true, or none of these")
	}
	first := map[string]string{}
	for _, list := range []struct {
		key  string
		keys []string
	}{{"requiredServiceAccountAnnotationKeys", t.RequiredAnnotations}, {"optionalServiceAccountAnnotationKeys", t.OptionalAnnotations}} {
		if len(list.keys) > maxProviderList {
			bad(at+"."+list.key, "there are %d: want at most %d", len(list.keys), maxProviderList)
		}
		for i, k := range list.keys {
			key := fmt.Sprintf("%s.%s[%d]", at, list.key, i)
			// As the kubelet checks it. The messages quote no key.
			if why := validation.IsQualifiedName(strings.ToLower(k)); len(why) > 0 {
				bad(key, "%.80q is not valid: want the key of an annotation such as example.com/client-id: %s", k, why[0])
			}
			if has := first[k]; has != "" {
				bad(key, "%.80q is there already, in %s", k, has)
			}
			first[k] = list.key
		}
	}
}
