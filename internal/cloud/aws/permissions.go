package aws

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/cloud"
)

// permission is a statement of the IAM policy that Kip needs.
type permission struct {
	sid string
	// why is for people: what Kip does with it.
	why       string
	actions   []string
	resources []string
	// conditions are by operator, then by key.
	conditions map[string]map[string][]string
}

// resource is all of a kind in EC2, in any partition.
func resource(kind string) string { return "arn:*:ec2:*:*:" + kind + "/*" }

// owned and made are conditions: what is touched has an owner's tag, what is made gets one.
var (
	owned = map[string]map[string][]string{"StringLike": {"aws:ResourceTag/" + cloud.TagOwner: {"*"}}}
	made  = map[string]map[string][]string{"StringLike": {"aws:RequestTag/" + cloud.TagOwner: {"*"}}}
)

// madeByLaunch are what a launch makes.
var madeByLaunch = []string{resource("instance"), resource("volume"), resource("network-interface"), resource("spot-instances-request")}

// permissions are what the calls of this package need, each of which is in one of them.
var permissions = []permission{
	{
		sid: "KipReads",
		why: "Instances, what they can be launched of and where, and prices. EC2 limits these calls to no resource.",
		actions: []string{
			"ec2:DescribeAvailabilityZones", "ec2:DescribeImages", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes",
			"ec2:DescribeInstances", "ec2:DescribeNetworkInterfaces", "ec2:DescribeRouteTables", "ec2:DescribeSecurityGroups",
			"ec2:DescribeSpotInstanceRequests", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets", "ec2:DescribeVolumes",
			"ec2:DescribeVpcs",
		},
		resources: []string{"*"},
	},
	{
		sid:        "KipLaunches",
		why:        "Cells, with their disks and interfaces, all of which get the tag of this Kip in the same call.",
		actions:    []string{"ec2:RunInstances"},
		resources:  madeByLaunch,
		conditions: made,
	},
	{
		sid:       "KipLaunchesFrom",
		why:       "What cells are launched of and in. Narrow it to the subnets, groups and images of cells.",
		actions:   []string{"ec2:RunInstances"},
		resources: []string{resource("subnet"), resource("security-group"), "arn:*:ec2:*::image/*"},
	},
	{
		sid:       "KipTagsWhatItMakes",
		why:       "The tags of what is launched or made, in the same call.",
		actions:   []string{"ec2:CreateTags"},
		resources: append(slices.Clip(madeByLaunch), resource("security-group")),
		conditions: map[string]map[string][]string{
			"StringEquals": {"ec2:CreateAction": {"CreateSecurityGroup", "CreateVolume", "RunInstances"}},
			"StringLike":   made["StringLike"],
		},
	},
	{
		sid:       "KipTagsCells",
		why:       "The pod of a cell, for people who read the bill. Neither the owner's tag nor the batch's can be changed.",
		actions:   []string{"ec2:CreateTags"},
		resources: []string{resource("instance")},
		conditions: map[string]map[string][]string{
			"StringLike": owned["StringLike"],
			"ForAllValues:StringEquals": {"aws:TagKeys": {
				cloud.TagCell, cloud.TagNamespace, cloud.TagPod, cloud.TagPodUID, cloud.TagName,
			}},
		},
	},
	{
		sid:        "KipEnds",
		why:        "The ends of cells, standby cells that are stopped, and what a cell that never joined wrote to its console.",
		actions:    []string{"ec2:GetConsoleOutput", "ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances"},
		resources:  []string{resource("instance")},
		conditions: owned,
	},
	{
		sid:        "KipSweeps",
		why:        "Interfaces that outlived their cells.",
		actions:    []string{"ec2:DeleteNetworkInterface"},
		resources:  []string{resource("network-interface")},
		conditions: owned,
	},
	{
		sid:        "KipMakesDisks",
		why:        "The disks of claims of Kip's own StorageClasses.",
		actions:    []string{"ec2:CreateVolume"},
		resources:  []string{resource("volume")},
		conditions: made,
	},
	{
		sid:        "KipMovesDisks",
		why:        "These disks, to cells and from them, and their end with that of their claim.",
		actions:    []string{"ec2:AttachVolume", "ec2:DeleteVolume", "ec2:DetachVolume"},
		resources:  []string{resource("instance"), resource("volume")},
		conditions: owned,
	},
	{
		sid: "KipMovesDisksOfTheDriver",
		why: "Volumes of `" + ebsDriver + "`, to cells and from them: those with the tag that the driver's controller gives to all that it " +
			"makes. A volume that was made by hand needs that tag. Leave it out where pods have no such volumes.",
		actions:    []string{"ec2:AttachVolume", "ec2:DetachVolume"},
		resources:  []string{resource("volume")},
		conditions: map[string]map[string][]string{"StringEquals": {"aws:ResourceTag/" + ebsDriverTag: {"true"}}},
	},
	{
		sid:        "KipMakesAGroup",
		why:        "The security group of the cells.",
		actions:    []string{"ec2:CreateSecurityGroup"},
		resources:  []string{resource("security-group")},
		conditions: made,
	},
	{
		sid:       "KipMakesAGroupIn",
		why:       "Where that group is. Narrow it to the VPC of the cells.",
		actions:   []string{"ec2:CreateSecurityGroup"},
		resources: []string{resource("vpc")},
	},
	{
		sid:        "KipKeepsItsGroup",
		why:        "The rules of that group, and its end with `kipctl cleanup`.",
		actions:    []string{"ec2:AuthorizeSecurityGroupIngress", "ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupIngress"},
		resources:  []string{resource("security-group")},
		conditions: owned,
	},
	{
		sid: "KipPassesRoles",
		why: "The roles of cells: `cells.defaultIAMPermissions` and `pod.elotl.co/instance-profile`. " +
			"Narrow it to those roles, or leave it out where cells have none: whoever may pass a role may do what it may.",
		actions:    []string{"iam:PassRole"},
		resources:  []string{"arn:*:iam::*:role/*"},
		conditions: map[string]map[string][]string{"StringEquals": {"iam:PassedToService": {"ec2.amazonaws.com"}}},
	},
}

// Policy is the IAM policy that Kip needs, JSON.
func Policy() []byte {
	type statement struct {
		Sid, Effect      string
		Action, Resource []string
		Condition        map[string]map[string][]string `json:",omitempty"`
	}
	doc := struct {
		Version   string
		Statement []statement
	}{Version: "2012-10-17"}
	for _, p := range permissions {
		doc.Statement = append(doc.Statement, statement{
			Sid:       p.sid,
			Effect:    "Allow",
			Action:    p.actions,
			Resource:  p.resources,
			Condition: p.conditions,
		})
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(doc); err != nil {
		panic(err) // strings only
	}
	return text.Bytes()
}

// actions are all that the policy allows.
func actions() (all []string) {
	for _, p := range permissions {
		all = append(all, p.actions...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// PermissionsPage returns docs/aws-permissions.md.
func PermissionsPage() string {
	var b strings.Builder
	b.WriteString(`# What Kip may do in AWS

<!-- Generated from internal/cloud/aws by: go test ./internal/cloud/aws -run TestPermissionsPage -update -->

Kip needs the policy below, as a role of its service account (IRSA, EKS Pod Identity), as the role of the instance that it runs on, or
as a user's whose keys are in ` + "`cloud.aws`" + `. Cells need no rights of their own. The calls that Kip makes are these and no others: a test
compares them with the code, and the tests of the driver run against a model of EC2 that refuses what this policy does not allow.

Kip touches nothing that lacks the tag ` + "`" + cloud.TagOwner + "`" + `, and makes nothing without it, with one exception: it attaches volumes of
` + "`" + ebsDriver + "`" + `, which have that driver's tag. Where several Kips share an account, give each a
policy of its own, in which the Kip's controller ID, the value of that tag on its cells, stands for the ` + "`*`" + ` of the conditions on that tag.

| statement | allows | for |
| --- | --- | --- |
`)
	for _, p := range permissions {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.sid, "`"+strings.Join(p.actions, "`, `")+"`", p.why)
	}
	b.WriteString("\n```json\n")
	b.Write(Policy())
	b.WriteString("```\n")
	return b.String()
}
