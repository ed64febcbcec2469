package ec2

import (
	"cmp"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/cloud"
)

// What the use of a customer managed key asks its caller for: where EC2 makes an encrypted volume, and where EBS direct APIs write
// an encrypted snapshot. Sources: Amazon EBS User Guide, "Requirements for Amazon EBS encryption", "Permissions for users"; "Control
// access to EBS direct APIs using IAM", "Permissions to use AWS KMS keys".
var (
	volumeRights = []string{
		"kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo",
	}
	snapshotRights = append([]string{"kms:Encrypt", "kms:GenerateDataKey"}, volumeRights...)
)

// mayUseKey says whether a caller may have something encrypted with a key: with the account's default if none is named. via is the
// service that uses it on the caller's behalf, "" where that is not known.
func (m *base) mayUseKey(r *request, named, via string, rights []string) bool {
	key := cmp.Or(named, m.cfg.DefaultKey)
	if key == "" { // aws/ebs, which everybody in the account may use
		return true
	}
	n := slices.IndexFunc(m.cfg.Keys, func(arn string) bool { return arn == key || strings.HasSuffix(arn, "key/"+key) })
	if n < 0 {
		return false
	}
	about := map[string][]string{"kms:GrantIsForAWSResource": {"true"}}
	if via != "" {
		about["kms:ViaService"] = []string{via + "." + m.cfg.Region + ".amazonaws.com"}
	}
	return !slices.ContainsFunc(rights, func(right string) bool {
		arn := m.cfg.Keys[n]
		return m.cfg.Organization != nil && m.cfg.Organization.denies(right, arn, about) ||
			r.policy != nil && !r.policy.allows(right, arn, about)
	})
}

// KeyFaults are the forms in which EC2 says that it could not use the key of a root disk. No source says which comes when.
// Sources, in this order: https://repost.aws/knowledge-center/kms-iam-ec2-permission;
// https://github.com/aws/karpenter-provider-aws/issues/1407; the message of https://github.com/CiscoDevNet/cloud-cml/issues/8 with
// the code of https://github.com/hashicorp/packer/issues/12683; that message with itself as the code, as
// https://github.com/openshift/osd-network-verifier compares it; and all that packer tells in the message.
var KeyFaults = []StateReason{
	{"Client.InternalError", "Client.InternalError: Client error on launch"},
	{"Server.InternalError", "Client.InternalError: Client error on launch"},
	{"Client.InternalError", "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"},
	{"Client.InvalidKMSKey.InvalidState", "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"},
	{"Server.InternalError", "Client.InternalError: Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"},
}

// failUnencrypted ends instances whose disks EC2 could not encrypt: it has answered the launch before it looks at the key. Source: EC2
// User Guide, "Instance terminates immediately".
func (m *launches) failUnencrypted(instances []cloud.Instance) error {
	var ids []string
	for _, i := range instances {
		ids = append(ids, i.ID)
	}
	return m.instances.Fail(cmp.Or(m.cfg.KeyFault, KeyFaults[0]), ids...)
}
