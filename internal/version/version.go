// Package version holds the version of this build of Kip.
package version

import "runtime/debug"

// Version is set when a release is linked: -X …/internal/version.Version=v1.2.3.
var Version = ""

// Kubernetes is the release whose kubelet runs on cells: that of k8s.io/kubernetes
// in go.mod.
const Kubernetes = "v1.36.3"

// String is the release, or the commit for a build that is none.
func String() string {
	if Version != "" {
		return Version
	}
	commit, dirty := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && len(s.Value) >= 12:
				commit = s.Value[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "-dirty"
			}
		}
	}
	return "v0.0.0-" + commit + dirty
}
