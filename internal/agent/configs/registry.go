package configs

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// RegistryHosts renders containerd's hosts.toml files for registry mirrors, by
// the name of their folder in RegistryDir. The key "_default" of mirrors is for
// all hosts that have no key of their own.
func RegistryHosts(mirrors map[string][]string) (map[string]string, error) {
	files := map[string]string{}
	var errs []error
	for host, urls := range mirrors {
		if host == "" || host == "." || host == ".." || strings.ContainsAny(host, "/\\ \n\"") {
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
		files[host] = b.String()
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
