package configs

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/agentapi"
)

// Names of what a registry needs, in its folder in RegistryDir.
const (
	RegistryCA   = "ca.crt"
	RegistryCert = "client.crt"
	RegistryKey  = "client.key"
)

// isRegistryHost reports whether a host can be the name of a folder.
func isRegistryHost(host string) bool {
	return host != "" && host != "." && host != ".." && !strings.ContainsAny(host, "/\\ \n\"")
}

// RegistryFiles returns the files that registries need beside hosts.toml, by their path in RegistryDir.
func RegistryFiles(registries []agentapi.Registry) map[string]string {
	files := map[string]string{}
	for _, r := range registries {
		for name, text := range map[string]string{RegistryCA: r.CA, RegistryCert: r.Certificate, RegistryKey: r.Key} {
			if text != "" {
				files[r.Host+"/"+name] = text
			}
		}
	}
	return files
}

// serverOf renders how a registry itself is reached, behind its mirrors.
func serverOf(r agentapi.Registry) string {
	scheme, dir := "https", RegistryDir+"/"+r.Host+"/"
	if r.PlainHTTP {
		scheme = "http"
	}
	text := fmt.Sprintf("server = %q\n", scheme+"://"+r.Host)
	if r.CA != "" {
		text += fmt.Sprintf("ca = %q\n", dir+RegistryCA)
	}
	if r.Certificate != "" {
		text += fmt.Sprintf("client = [[%q, %q]]\n", dir+RegistryCert, dir+RegistryKey)
	}
	return text
}

// RegistryHosts renders containerd's hosts.toml files for registries and mirrors, by
// the name of their folder in RegistryDir. The key "_default" of mirrors is for
// all hosts that have no key of their own, and are no registry of the list.
func RegistryHosts(mirrors map[string][]string, registries []agentapi.Registry) (map[string]string, error) {
	files := map[string]string{}
	var errs []error
	for i, r := range registries {
		if !isRegistryHost(r.Host) || r.Host == "_default" {
			errs = append(errs, fmt.Errorf("registries[%d].host: %q is not a registry host such as registry.example.com:5000", i, r.Host))
			continue
		}
		files[r.Host] = serverOf(r)
	}
	for host, urls := range mirrors {
		if !isRegistryHost(host) {
			errs = append(errs, fmt.Errorf("registryMirrors: %q is not a registry host (docker.io, localhost:5000) or _default", host))
			continue
		}
		if len(urls) == 0 {
			errs = append(errs, fmt.Errorf("registryMirrors[%s]: no URL", host))
			continue
		}
		var b strings.Builder
		for _, raw := range urls {
			u, err := url.Parse(raw)
			if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
				errs = append(errs, fmt.Errorf("registryMirrors[%s]: %q is not a base URL such as https://mirror.example:5000", host, redact(raw)))
				continue
			}
			base := u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/")
			if u.EscapedPath() != "" && u.EscapedPath() != "/" {
				base += "/v2"
			}
			fmt.Fprintf(&b, "[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", base)
			if u.EscapedPath() != "" && u.EscapedPath() != "/" {
				b.WriteString("  override_path = true\n")
			}
		}
		files[host] += b.String()
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return files, errors.Join(errs...)
}

// redact removes a password from a URL that is about to be shown.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		if i := strings.LastIndexByte(raw, '@'); i >= 0 {
			return "…" + raw[i:]
		}
		return raw
	}
	return u.Redacted()
}
