package aws

import (
	"maps"

	"github.com/elotl/kip/internal/cloud"
)

// tagCluster begins the key of the tag by which tools know what belongs to a cluster; its name follows. Sources: EKS User
// Guide, "View Amazon EKS security group requirements"; the AWS cloud provider of Kubernetes, pkg/providers/v1/tags.go.
const tagCluster = "kubernetes.io/cluster/"

// configuredTags are those of all that Kip makes, in the call that makes it: policies of an organization may refuse a call
// without them.
func (cfg *Config) configuredTags() map[string]string {
	if cfg.Cluster == "" {
		return cfg.Tags
	}
	tags := map[string]string{tagCluster + cfg.Cluster: "owned"}
	maps.Copy(tags, cfg.Tags)
	return tags
}

// merged are several sets of tags as one. The later ones win.
func merged(all ...map[string]string) map[string]string {
	tags := map[string]string{}
	for _, some := range all {
		maps.Copy(tags, some)
	}
	return tags
}

// launchTags are the tags of all that a launch makes. Kip's own win.
func launchTags(r cloud.LaunchRequest) map[string]string { return merged(r.Resolved.Tags, r.TagsOf(0)) }
