package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestTagsThatEC2DoesNotTakeAreErrorsAtTheStart(t *testing.T) {
	const on = "cloud:\n  aws: {%s}\ncells:\n  defaultInstanceType: a\n  tags: {%s}\ncosts:\n  labels: [%s]\n"
	long := strings.Repeat("ä", 128)
	most := func(n int) string { // tags
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("t%d: a", i))
		}
		return strings.Join(all, ", ")
	}
	for what, tc := range map[string]struct {
		aws, tags, labels string
		want              string // "" for no error
	}{
		"of any language":       {tags: "Größe: 大, 'a b+c-d=e.f_g:h/i@j': ''", labels: "team, example.com/stage"},
		"the longest":           {tags: long + ": '" + strings.Repeat("ä", 256) + "'"},
		"a key too long":        {tags: long + "a: b", want: "is no key of a tag: want 1 to 128 letters, digits, spaces and + - = . _ : / @"},
		"a value too long":      {tags: "team: " + strings.Repeat("a", 257), want: "p.yaml:5: cells.tags.team: \"aaa"},
		"a key of no letters":   {tags: "'a*': b", want: "p.yaml:5: cells.tags.a*: \"a*\" is no key of a tag"},
		"a value of no letters": {tags: "team: 'a,b'", want: "p.yaml:5: cells.tags.team: \"a,b\" is no value of a tag"},
		"an empty key":          {tags: "'': a", want: "is no key of a tag"},
		"a key of spaces":       {tags: "' ': a", want: "is no key of a tag"},
		"AWS' own":              {tags: "'aws:team': a", want: "p.yaml:5: cells.tags.aws:team: AWS keeps keys that begin with aws: to itself"},
		"AWS' own in capitals":  {tags: "'AWS:team': a", want: "AWS keeps keys that begin with aws: to itself"},
		"Kip's own":             {tags: "KipControllerID: a", want: "p.yaml:5: cells.tags.KipControllerID: Kip writes this tag itself"},
		"the name":              {tags: "Name: a", want: "p.yaml:5: cells.tags.Name: Kip writes this tag itself"},
		"Kip's own in lower case": {
			aws:  "securityGroupTags: {kipdisk: a}",
			want: "p.yaml:2: cloud.aws.securityGroupTags.kipdisk: Kip writes this tag itself, and policies of AWS ignore case",
		},
		"the name in lower case": {tags: "name: a", want: "p.yaml:5: cells.tags.name: Kip writes this tag itself"},
		"the cluster's":          {tags: "kubernetes.io/cluster/prod: owned", want: "want cloud.aws.clusterName"},
		"the cluster's, in its place": {
			aws: "clusterName: my.prod_1, securityGroupTags: {kubernetes.io/cluster/my.prod_1: owned}",
		},
		"a cluster of no name": {aws: "clusterName: a/b", want: "p.yaml:2: cloud.aws.clusterName: \"a/b\" is not valid"},
		"of the group": {
			aws:  "securityGroupTags: {'aws:a': b}",
			want: "p.yaml:2: cloud.aws.securityGroupTags.aws:a: AWS keeps keys that begin with aws: to itself",
		},
		"as many as there may be": {aws: "clusterName: a", tags: most(37), labels: "team, stage"},
		"too many": {
			aws: "clusterName: a", tags: most(38), labels: "team, stage",
			want: "p.yaml:5: cells.tags: with costs.labels and cloud.aws.clusterName there are 41: want at most 40",
		},
		"too many of the group": {
			aws: "securityGroupTags: {a: b}", tags: most(40),
			want: "p.yaml:2: cloud.aws.securityGroupTags: with cells.tags there are 41: want at most 40",
		},
		"a label that is Kip's own": {labels: "KipCell", want: "p.yaml:7: costs.labels[0]: KipCell is a tag of Kip's own on AWS"},
		"a label that is a tag": {
			tags: "stage: a", labels: "team, stage", want: "p.yaml:7: costs.labels[1]: stage is a key of cells.tags, too",
		},
		"a label that is Kip's own but for case": {labels: "kipdisk", want: "p.yaml:7: costs.labels[0]: kipdisk is a tag of Kip's own on AWS"},
		"a label that is a tag but for case": {
			tags: "Stage: a", labels: "team, stage", want: "p.yaml:7: costs.labels[1]: stage is a key of cells.tags, too (Stage;",
		},
		"a label that is a tag of the group alone": {aws: "securityGroupTags: {team: a}", labels: "team"},
		"a label that is too long": {
			labels: strings.Repeat("b", 63) + "." + strings.Repeat("b", 60) + "/team",
			want:   "is not valid: want at most 128 characters, since it is a tag on AWS",
		},
	} {
		_, _, err := Parse("p.yaml", fmt.Appendf(nil, on, tc.aws, tc.tags, tc.labels))
		if text := fmt.Sprint(err); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(text, tc.want) ||
			strings.Count(text, "\n") > 0 {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
}
