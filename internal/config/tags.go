package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of tags. Sources: Amazon EC2 User Guide, "Tag restrictions", whose characters are those that all services of AWS
// take, cost allocation among them; EKS User Guide on the name of a cluster, to which others than EKS add dots.
const (
	mostTags, mostTagKey, mostTagValue = 50, 128, 256
	// ownTags is how many of them Kip needs for itself, with a spare one.
	ownTags = 10

	clusterTag = "kubernetes.io/cluster/"
)

var (
	tagCharacters = regexp.MustCompile(`^[\p{L}\p{N}\p{Z}+=._:/@-]*$`)
	clusterName   = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,105}$`)
)

// isOwnTag reports whether Kip writes the tag with this key itself, or one that differs by case alone, as cloud.IsOwnTag does.
func isOwnTag(key string) bool {
	key = strings.ToLower(key)
	return key == "name" || strings.HasPrefix(key, "kip")
}

// tagsOfAWS checks all keys that become tags on AWS.
func (d *decoder) tagsOfAWS(c *Config) {
	a := c.Cloud.AWS
	d.check(a.ClusterName == "" || clusterName.MatchString(a.ClusterName), "cloud.aws.clusterName", a.ClusterName,
		"at most 106 letters, digits, dots, dashes and underscores, a letter or digit first")
	d.tags("cells.tags", c.Cells.Tags)
	spelled := map[string]string{}
	for key := range c.Cells.Tags {
		spelled[strings.ToLower(key)] = key
		if strings.HasPrefix(strings.ToLower(key), clusterTag) {
			d.bad(join("cells.tags", key), "this tag is not for all that Kip makes: want cloud.aws.clusterName, "+
				"and cloud.aws.securityGroupTags for the cells' security group")
		}
	}
	d.tags("cloud.aws.securityGroupTags", a.SecurityGroupTags)
	tagged := maps.Clone(c.Cells.Tags)
	if tagged == nil {
		tagged = map[string]string{}
	}
	for i, label := range c.Costs.Labels {
		tagged[label] = ""
		at := fmt.Sprintf("costs.labels[%d]", i)
		d.check(len(label) <= mostTagKey, at, label, fmt.Sprintf("at most %d characters, since it is a tag on AWS", mostTagKey))
		if isOwnTag(label) {
			d.bad(at, "%s is a tag of Kip's own on AWS, where policies ignore case: want a label other than Name that does not begin with Kip",
				label)
		}
		if key, both := spelled[strings.ToLower(label)]; both {
			d.bad(at, "%s is a key of cells.tags, too (%s; policies of AWS ignore case), whose value whoever makes pods would replace: "+
				"want it in one of the two", label, key)
		}
	}
	if a.ClusterName != "" {
		tagged[clusterTag+a.ClusterName] = ""
	}
	const left = mostTags - ownTags
	if n := len(tagged); n > left {
		d.bad("cells.tags", "with costs.labels and cloud.aws.clusterName there are %d: want at most %d, since EC2 takes %d and Kip needs %d",
			n, left, mostTags, ownTags)
	}
	if n := len(a.SecurityGroupTags) + len(c.Cells.Tags); n > left {
		d.bad("cloud.aws.securityGroupTags", "with cells.tags there are %d: want at most %d, since EC2 takes %d and Kip needs %d",
			n, left, mostTags, ownTags)
	}
}

// tags checks tags that Kip is to write.
func (d *decoder) tags(at string, tags map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		at, value := join(at, key), tags[key]
		switch n := utf8.RuneCountInString(key); {
		case n == 0 || n > mostTagKey || !tagCharacters.MatchString(key) || strings.TrimSpace(key) == "":
			d.bad(at, "%s is no key of a tag: want 1 to %d letters, digits, spaces and + - = . _ : / @", quote(key), mostTagKey)
		case strings.HasPrefix(strings.ToLower(key), "aws:"):
			d.bad(at, "AWS keeps keys that begin with aws: to itself: want another key")
		case isOwnTag(key):
			d.bad(at, "Kip writes this tag itself, and policies of AWS ignore case: want a key other than Name that does not begin with Kip")
		}
		if utf8.RuneCountInString(value) > mostTagValue || !tagCharacters.MatchString(value) {
			d.bad(at, "%s is no value of a tag: want at most %d letters, digits, spaces and + - = . _ : / @", quote(value), mostTagValue)
		}
	}
}
