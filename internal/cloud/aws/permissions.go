package aws

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/cloud"
)

// permission is a statement of the IAM policy that Kip needs.
type permission struct {
	sid string
	// why is for people: what Kip does with it.
	why     string
	actions []string
	// optional says that Kip works without it, as why tells.
	optional bool
	// denied says that this is what may not be done, by whatever other policy: all but the
	// actions.
	denied    bool
	resources []string
	// conditions are by operator, then by key.
	conditions map[string]map[string][]string
}

// resource is all of a kind in EC2, in any partition.
func resource(kind string) string { return "arn:*:ec2:*:*:" + kind + "/*" }

// keysOfKMS are the keys of the account, and of others that share theirs.
const keysOfKMS = "arn:*:kms:*:*:key/*"

// owned and made are conditions: what is touched has an owner's tag, what is made gets one.
var (
	owned = map[string]map[string][]string{"StringLike": {"aws:ResourceTag/" + cloud.TagOwner: {"*"}}}
	made  = map[string]map[string][]string{"StringLike": {"aws:RequestTag/" + cloud.TagOwner: {"*"}}}
)

// disksBy is the condition of Kip's disks, by the tags of what is made or of what is there. The root disk of a
// cell has the owner's tag alone.
func disksBy(tags string) map[string]map[string][]string {
	return map[string]map[string][]string{"StringLike": {tags + cloud.TagOwner: {"*"}, tags + tagDisk: {"*"}}}
}

// madeByLaunch are what a launch makes.
var madeByLaunch = []string{resource("instance"), resource("volume"), resource("network-interface"), resource("spot-instances-request")}

// permissions are what the calls of this package need, each of which is in one of them.
var permissions = slices.Concat(corePermissions, featurePermissions)

// policyMost is how many characters a customer managed policy may have, white space apart. A user's inline policies may
// have 2048 together, a role's 10240. Source: IAM User Guide, "IAM and AWS STS quotas".
const policyMost = 6144

// corePermissions are those that each Kip needs.
var corePermissions = []permission{
	{
		sid: "KipReads",
		why: "Instances, what they can be launched of and where, and prices of spot. EC2 limits these calls to no resource.",
		actions: []string{
			"ec2:DescribeAvailabilityZones", "ec2:DescribeCapacityReservations",
			"ec2:DescribeHosts", "ec2:DescribeImages", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes",
			"ec2:DescribeInstanceStatus", "ec2:DescribeInstances", "ec2:DescribeNetworkInterfaces", "ec2:DescribeRouteTables",
			"ec2:DescribeSecurityGroups", "ec2:DescribeSpotInstanceRequests", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
			"ec2:DescribeVolumes", "ec2:DescribeVolumesModifications", "ec2:DescribeVpcs",
		},
		resources: []string{"*"},
	},
	{
		sid:      "KipReadsPrefixLists",
		optional: true,
		why: "The networks of prefix lists that routes of the cells' subnets name, as those of S3's gateway endpoint: pods reach them from their own address. " +
			"Without it they reach them from their cell's.",
		actions:   []string{"ec2:GetManagedPrefixListEntries"},
		resources: []string{resource("prefix-list")},
	},
	{
		sid:      "KipReadsPrices",
		optional: true,
		why: "What types cost on demand, in AWS' public price list. " +
			"Without it prices are those that were embedded when Kip was built, mostly of another region.",
		actions:   []string{"pricing:GetProducts"},
		resources: []string{"*"},
	},
	{
		sid:       "KipReadsQuotas",
		optional:  true,
		why:       "The account's quotas of vCPUs, for `kubelet.capacity: auto`. Without it the capacity of virtual nodes goes by addresses alone.",
		actions:   []string{"servicequotas:ListServiceQuotas"},
		resources: []string{"*"},
	},
	{
		sid:      "KipReadsRefusals",
		optional: true,
		why: "What EC2 means by `UnauthorizedOperation`: the action, the resource and the statement that denies it, which Kip tells. " +
			"Without it only what EC2 says openly is told.",
		actions:   []string{"sts:DecodeAuthorizationMessage"},
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
		sid:     "KipLaunchesFrom",
		why:     "Where cells are launched. Narrow it to the subnets and groups of cells.",
		actions: []string{"ec2:RunInstances"},
		// Not snapshots: Kip's launches name none, and EC2's own examples of policies for a launch of an image have none
		// (EC2 User Guide, "Example policies to control access the Amazon EC2 API"). Whoever may launch from a snapshot may
		// read it.
		resources: []string{resource("subnet"), resource("security-group")},
	},
	{
		sid: "KipLaunchesImages",
		why: "What cells are launched of, except images that AWS Backup and Data Lifecycle Manager made: these are the disks of other machines. " +
			"Whoever may launch an image can read it, and your account may have other backups: narrow it to the images of cells, by their IDs " +
			"(`arn:aws:ec2:*::image/ami-…`) or a tag of theirs (`aws:ResourceTag`).",
		actions:   []string{"ec2:RunInstances"},
		resources: []string{"arn:*:ec2:*::image/*"},
		// Images of others have no tags here, and so pass. Sources: AWSBackupServiceRolePolicyForBackup, which knows such images by the
		// first tag; Amazon EBS User Guide, "How Amazon Data Lifecycle Manager works", for the second; Service Authorization Reference,
		// "Actions, resources, and condition keys for Amazon EC2", image, for aws:ResourceTag.
		conditions: map[string]map[string][]string{"Null": {
			"aws:ResourceTag/aws:backup:source-resource":  {"true"},
			"aws:ResourceTag/aws:dlm:lifecycle-policy-id": {"true"},
		}},
	},
	{
		sid:       "KipTagsWhatItMakes",
		why:       "The tags of what is launched or made, in the same call.",
		actions:   []string{"ec2:CreateTags"},
		resources: append(slices.Clip(madeByLaunch), resource("security-group")),
		conditions: map[string]map[string][]string{
			"StringEquals": {"ec2:CreateAction": {"CreateSecurityGroup", "CreateVolume", "RunInstances"}},
			"StringLike":   made["StringLike"],
			// Case counts in the values of aws:TagKeys, and in EC2's filters, but not in aws:RequestTag: no list of Kip's would show
			// what has the owner's tag in another case alone.
			"ForAnyValue:StringEquals": {"aws:TagKeys": {cloud.TagOwner}},
		},
	},
	{
		sid: "KipTagsCells",
		why: "The pod of a cell and its labels, for people who read the bill, and the tags of the cells' security group. " +
			"The tags by which Kip knows what is its own cannot be changed. Other policies may trust other tags (`aws:ResourceTag`): narrow it by " +
			"`ForAllValues:StringLike`, besides, to the keys `Kip*`, `Name`, and those of `cells.tags`, `cells.nametag`, `cloud.aws.securityGroupTags` and `costs.labels`.",
		actions:   []string{"ec2:CreateTags"},
		resources: []string{resource("instance"), resource("volume"), resource("network-interface"), resource("security-group")},
		conditions: map[string]map[string][]string{
			"StringLike": owned["StringLike"],
			// True if no key of the call is among them. Source: IAM User Guide, "Set operators for multivalued context keys". Case
			// does not count in aws:ResourceTag, by which other statements know these tags (same, "AWS global condition context keys").
			"ForAllValues:StringNotEqualsIgnoreCase": {"aws:TagKeys": {
				cloud.TagOwner, cloud.TagBatch, cloud.TagGeneration, tagDisk, ebsDriverTag,
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
		sid:      "KipEndsBootCredits",
		optional: true,
		why: "The CPU credits of burstable cells, which are unlimited while they start (`cloud.aws.cpuCredits: boot`). " +
			"Without it they start with standard ones, slowly.",
		actions:    []string{"ec2:ModifyInstanceCreditSpecification"},
		resources:  []string{resource("instance")},
		conditions: owned, // as in the policy of github.com/coder/coder's templates for AWS
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
		conditions: disksBy("aws:RequestTag/"),
	},
	{
		sid:        "KipMovesDisks",
		why:        "These disks, to cells and from them, their growth, and their end with that of their claim; the root disk of no cell.",
		actions:    []string{"ec2:AttachVolume", "ec2:DeleteVolume", "ec2:DetachVolume", "ec2:ModifyVolume"},
		resources:  []string{resource("volume")},
		conditions: disksBy("aws:ResourceTag/"),
	},
	{
		sid:        "KipAttachesToCells",
		why:        "Cells as what disks are attached to.",
		actions:    []string{"ec2:AttachVolume", "ec2:DetachVolume"},
		resources:  []string{resource("instance")},
		conditions: owned,
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
		sid: "KipKeepsItsGroup",
		why: "The rules of that group, and its end with `kipctl cleanup`.",
		actions: []string{
			"ec2:AuthorizeSecurityGroupIngress", "ec2:DeleteSecurityGroup", "ec2:RevokeSecurityGroupIngress",
		},
		resources:  []string{resource("security-group")},
		conditions: owned,
	},
}

// featurePermissions are those of what is configured, or used by pods.
var featurePermissions = []permission{
	{
		sid: "KipLaunchesInReservations",
		why: "The capacity that is reserved, in `cloud.aws.capacityReservations`. Narrow it to those reservations, or leave it out where there " +
			"are none.",
		actions:   []string{"ec2:RunInstances"},
		resources: []string{resource("capacity-reservation")},
	},
	{
		sid:     "KipLaunchesOntoHosts",
		why:     "The hosts in `cloud.aws.dedicatedHosts`. Narrow it to those hosts, or leave it out where there are none.",
		actions: []string{"ec2:RunInstances"},
		// As AmazonEMRServicePolicy_v2 and terraform-aws-github-runner have it. EC2's own reference does not name hosts here.
		resources: []string{resource("dedicated-host")},
	},
	{
		sid:        "KipLetsCellsForward",
		why:        "Source and destination checks of cells whose pods have `pod.elotl.co/cloud-route`. Leave it out where none may have it.",
		actions:    []string{"ec2:ModifyInstanceAttribute"},
		resources:  []string{resource("instance")},
		conditions: owned,
	},
	{
		sid: "KipRoutes",
		why: "The routes to such cells. Narrow it to the route tables of the cells' subnets, or leave it out where no pod may have routes: " +
			"whoever may change a table may lead away what other machines send.",
		actions:   []string{"ec2:CreateRoute", "ec2:DeleteRoute"},
		resources: []string{resource("route-table")},
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
		sid: "KipGrantsKeysOfDisks",
		why: "Grants by which EC2 uses the customer managed KMS key of a disk: `cloud.aws.kmsKeyID`, the account's default key for EBS, or " +
			"the key of an image's snapshot. Narrow it to these keys, or leave it out where AWS' own key `aws/ebs` encrypts all of them.",
		actions:    []string{"kms:CreateGrant"},
		resources:  []string{keysOfKMS},
		conditions: map[string]map[string][]string{"Bool": {"kms:GrantIsForAWSResource": {"true"}}},
	},
	{
		sid: "KipUsesKeysOfDisks",
		why: "The same keys, by way of EC2 alone: Kip itself can decrypt nothing. Narrow it, or leave it out, like the one before.",
		// Source: Amazon EBS User Guide, "Requirements for Amazon EBS encryption", "Permissions for users".
		actions:    []string{"kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncrypt*"},
		resources:  []string{keysOfKMS},
		conditions: map[string]map[string][]string{"StringLike": {"kms:ViaService": {"ec2.*"}}},
	},
	{
		sid: "KipPassesRoles",
		why: "The roles of cells: `cells.defaultIAMPermissions` and `pod.elotl.co/instance-profile`. " +
			"Narrow it to those roles, or leave it out where cells have none: whoever may pass a role may do what it may.",
		actions:   []string{"iam:PassRole"},
		resources: []string{"arn:*:iam::*:role/*"},
		// EC2 has a name of its own in China.
		conditions: map[string]map[string][]string{"StringEquals": {"iam:PassedToService": {"ec2.amazonaws.com", "ec2.amazonaws.com.cn"}}},
	},
	{
		sid:        "KipMakesTheSpotRole",
		why:        "The role of EC2's own that the first spot instance of an account needs, which EC2 makes then. Leave it out where there is one, or where nothing is spot.",
		actions:    []string{"iam:CreateServiceLinkedRole"},
		resources:  []string{"arn:*:iam::*:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"},
		conditions: map[string]map[string][]string{"StringEquals": {"iam:AWSServiceName": {"spot.amazonaws.com"}}},
	},
	{
		sid: "KipLendsPulls",
		why: "The role in `cloud.aws.ecr.roleARN`, below: Kip assumes it for the credentials by which cells pull images. " +
			"Change it where that role has another name, or leave it out where there is none.",
		actions:   []string{"sts:AssumeRole"},
		resources: []string{"arn:*:iam::*:role/kip-images"},
	},
}

// pullActions are what ECR asks for where an image is pulled. Source: Amazon ECR User Guide,
// "Private registry permissions".
var pullActions = []string{"ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}

// tokenAction is what gets the password for a registry.
const tokenAction = "ecr:GetAuthorizationToken"

// imageActions are all that cells have of ECR.
var imageActions = append([]string{tokenAction}, pullActions...)

// fillActions are what the first pull of an image through ECR's pull through cache asks for besides, and the first after the
// upstream has another one: the import, and the repository where there is none. Source: Amazon ECR User Guide, "IAM permissions
// required to sync an upstream registry with an Amazon ECR private registry".
var fillActions = []string{"ecr:BatchImportUpstreamImage", "ecr:CreateRepository"}

// imagePermissions are those of the role in Config.ImageRole. fills lets it fill ECR's pull through cache.
func imagePermissions(fills bool) []permission {
	most := imageActions
	var filling []permission
	if fills {
		most = slices.Concat(imageActions, fillActions)
		filling = []permission{{
			sid: "KipFillsCaches",
			why: "Images of other registries that come through ECR's pull through cache: any image that the rule's credentials may read, also a " +
				"private one. Narrow it to the repositories that pods may fill.",
			actions:   fillActions,
			resources: []string{"arn:*:ecr:*:*:repository/*"},
		}}
	}
	return slices.Concat([]permission{
		{
			sid:       "KipGetsTokens",
			why:       "The token that is the password for a registry. ECR limits this call to no repository.",
			actions:   []string{tokenAction},
			resources: []string{"*"},
		},
		{
			sid: "KipPulls",
			why: "The images that pods may have. Narrow it to their repositories; each cell is lent only those that its pod names. " +
				"Those of another account have to allow it by their own policies, too.",
			actions:   pullActions,
			resources: []string{"arn:*:ecr:*:*:repository/*"},
		},
	}, filling, []permission{{
		sid: "KipOnlyPulls",
		why: "Pushes, and all else, also where a repository's own policy allows them to any principal with a condition that this role meets " +
			"(`aws:PrincipalArn`).",
		actions:   most,
		denied:    true,
		resources: []string{"*"},
	}})
}

// statement is one of a policy's.
type statement struct {
	Sid, Effect string
	Action      []string                       `json:",omitempty"`
	NotAction   []string                       `json:",omitempty"`
	Resource    []string                       `json:",omitempty"`
	NotResource []string                       `json:",omitempty"`
	Condition   map[string]map[string][]string `json:",omitempty"`
}

// policyVersion is that of IAM's language.
const policyVersion = "2012-10-17"

// document is a policy of IAM.
type document struct {
	Version   string
	Statement []statement
}

// policyOf allows what is permitted, and nothing else, and denies what is denied.
func policyOf(permissions []permission) document {
	doc := document{Version: policyVersion}
	for _, p := range permissions {
		s := statement{
			Sid:       p.sid,
			Effect:    "Allow",
			Action:    p.actions,
			Resource:  p.resources,
			Condition: p.conditions,
		}
		if p.denied {
			s.Effect, s.Action, s.NotAction = "Deny", nil, p.actions
		}
		doc.Statement = append(doc.Statement, s)
	}
	return doc
}

// Policy is all that Kip needs with all its features, JSON: both of the page's policies.
func Policy() []byte { return policyOf(permissions).text() }

// CorePolicy is what each Kip needs, JSON: the page's first policy.
func CorePolicy() []byte { return policyOf(corePermissions).text() }

// Right is a statement of these policies, for those who compare it with what a role may do.
type Right struct {
	Sid string
	// Optional says that Kip works without it.
	Optional           bool
	Actions, Resources []string
	Conditions         map[string]map[string][]string // by operator, then by key
}

// CoreRights are what each Kip needs, and FeatureRights what needs only one with some configuration.
func CoreRights() []Right    { return rightsOf(corePermissions) }
func FeatureRights() []Right { return rightsOf(featurePermissions) }

func rightsOf(permissions []permission) (all []Right) {
	for _, p := range permissions {
		all = append(all, Right{
			Sid:        p.sid,
			Optional:   p.optional,
			Actions:    p.actions,
			Resources:  p.resources,
			Conditions: p.conditions,
		})
	}
	return all
}

// ImagePolicy is what the role in Config.ImageRole needs, JSON; fills lets it fill ECR's pull through cache.
func ImagePolicy(fills bool) []byte { return policyOf(imagePermissions(fills)).text() }

func (doc document) text() []byte {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(doc); err != nil {
		panic(err) // strings only
	}
	return text.Bytes()
}

// actions are all that the policies allow.
func actions() (all []string) {
	for _, p := range slices.Concat(permissions, imagePermissions(true)) {
		all = append(all, p.actions...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// statementsFor returns the Sids of the statements that allow an action on resources of a kind.
func statementsFor(action, resource string) (sids []string) {
	kind := func(arn string) string {
		kind, _, _ := strings.Cut(arn[strings.LastIndex(arn, ":")+1:], "/")
		return kind
	}
	for _, p := range permissions {
		of := func(r string) bool { return r == "*" || kind(r) == kind(resource) }
		if slices.Contains(p.actions, action) && slices.ContainsFunc(p.resources, of) {
			sids = append(sids, p.sid)
		}
	}
	return sids
}

// PermissionsPage returns docs/aws-permissions.md.
func PermissionsPage() string {
	var b strings.Builder
	b.WriteString(`# What Kip may do in AWS

<!-- Generated from internal/cloud/aws by: go test ./internal/cloud/aws -run TestPermissionsPage -update -->

Kip needs the first policy below, as a role of its service account (IRSA, EKS Pod Identity), as the role of the instance that it runs on, or
as a user's whose keys are in ` + "`cloud.aws`" + `. The second has what is needed by some features only. Cells need no rights of their own. The calls
that Kip makes are these and no others: a test compares them with the code, and the tests of the driver run against a model of EC2 that
refuses what these policies do not allow.

Make a customer managed policy of each: such a policy takes ` + strconv.Itoa(policyMost) + ` characters without white space, which each of the two keeps to with a controller ID
and two subnets filled in. A role's inline policies may have 10240 together, which both fit into. Those of a user may have 2048, which is too few.

` + "```sh" + `
aws iam create-policy --policy-name kip --policy-document file://deploy/aws/kip-policy.json
` + "```" + `

` + "`deploy/aws/kip-policy-features.json`" + ` is the second. [Terraform](terraform.md) makes policies and role by itself.

Kip touches nothing that lacks the tag ` + "`" + cloud.TagOwner + "`" + `, and makes nothing without it, with these exceptions: the routes to pods' cells, in the tables of
their subnets; and volumes of ` + "`" + ebsDriver + "`" + `, which it attaches, and which have that driver's tag.
Where several Kips share an account, give each a
policy of its own, in which the Kip's controller ID, the value of that tag on its cells, stands for the ` + "`*`" + ` of the conditions on that tag.

| statement | allows | for |
| --- | --- | --- |
`)
	tell(&b, corePermissions)
	b.WriteString(`
EC2's own examples of policies ask for no right to the snapshot of an image. Should it refuse a launch for want of it (` + "`UnauthorizedOperation`" + `,
` + "`ec2:RunInstances`" + ` on ` + "`snapshot/snap-…`" + `), allow that snapshot to ` + "`KipLaunchesFrom`" + `, and no others: who may launch from a snapshot may read it.

## For some features

Take those statements whose feature you use, and leave out the others: some give much, such as ` + "`KipPassesRoles`" + ` and ` + "`KipRoutes`" + `. Most have a
key of provider.yaml or an annotation, which the table names. These you may need without one:

- ` + "`KipGrantsKeysOfDisks` and `KipUsesKeysOfDisks`" + `, if ` + "`aws ec2 get-ebs-default-kms-key-id`" + ` prints another key than ` + "`alias/aws/ebs`" + `, or if the
  snapshot of the cells' image is encrypted with a customer managed key (` + "`aws ec2 describe-snapshots`" + `). Without them cells end with
  ` + "`Client.InternalError`" + `.
- ` + "`KipMakesTheSpotRole`" + `, if the account has never had a spot instance.
- ` + "`KipMovesDisksOfTheDriver`" + `, if pods have volumes of ` + "`" + ebsDriver + "`" + `.

If you left one out that Kip needs, EC2's refusal says what nothing allows, and Kip names the statement beside it (with ` + "`KipReadsRefusals`" + `).

| statement | allows | for |
| --- | --- | --- |
`)
	tell(&b, featurePermissions)
	b.WriteString(`
## The role for images

Cells pull [images in ECR](aws.md#images-in-ecr) with credentials of the role in ` + "`cloud.aws.ecr.roleARN`" + `, which needs the policy below.
Its trust policy lets Kip's own role assume it: ` + "`sts:AssumeRole`" + ` for the principal that Kip is. Each session of it is limited by a policy
of its own to the repositories that one pod names: it denies all others, also those whose own policies are open to the role.

| statement | allows | for |
| --- | --- | --- |
`)
	tell(&b, imagePermissions(false))
	b.WriteString(`
With ` + "`cloud.aws.ecr.pullThroughCache`" + ` it needs this one:

| statement | allows | for |
| --- | --- | --- |
`)
	tell(&b, imagePermissions(true))
	return b.String()
}

// tell writes the rows of a table, and the policy that they make.
func tell(b *strings.Builder, permissions []permission) {
	for _, p := range permissions {
		actions := "`" + strings.Join(p.actions, "`, `") + "`"
		if p.denied {
			actions = "nothing, and denies all but " + actions
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", p.sid, actions, p.why)
	}
	b.WriteString("\n```json\n")
	b.Write(policyOf(permissions).text())
	b.WriteString("```\n")
}
