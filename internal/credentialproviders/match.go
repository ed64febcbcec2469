package credentialproviders

import (
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
)

// Matches reports whether the kubelet asks this provider for what pulls an image, named as in a pod.
func (p Provider) Matches(image string) bool {
	repository := repositoryOf(image)
	return slices.ContainsFunc(p.MatchImages, func(glob string) bool { return matches(glob, repository) })
}

// matches reports whether a repository is one of matchImages' entry, as URLsMatchStr of the kubelet's package credentialprovider.
func matches(glob, repository string) bool {
	want, err := url.Parse("https://" + glob)
	if err != nil {
		return false
	}
	is, err := url.Parse("https://" + repository)
	if err != nil {
		return false
	}
	wantParts, wantPort := splitHost(want.Host)
	parts, port := splitHost(is.Host)
	if wantPort != port || len(wantParts) != len(parts) || !strings.HasPrefix(is.Path, want.Path) {
		return false
	}
	for i, w := range wantParts {
		if ok, err := path.Match(w, parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitHost(all string) (parts []string, port string) {
	host, port, err := net.SplitHostPort(all)
	if err != nil {
		host, port = all, ""
	}
	return strings.Split(host, "."), port
}

// repositoryOf returns where an image is, as the kubelet asks for it: with the host, also that of Docker Hub, without tag and digest.
func repositoryOf(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	const hub = "docker.io"
	host, rest, has := strings.Cut(name, "/")
	if !has || !strings.ContainsAny(host, ".:") && host != "localhost" && strings.ToLower(host) == host {
		host, rest = hub, name
	}
	if host == "index."+hub {
		host = hub
	}
	if host == hub && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return host + "/" + rest
}
