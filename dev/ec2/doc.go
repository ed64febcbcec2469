// Package ec2 owns a working model of Amazon EC2's API: the query protocol over HTTP, so
// that the SDK, and any other client, is answered as EC2 would; and of EBS direct APIs, by
// which snapshots are written, STS' AssumeRole and AssumeRoleWithWebIdentity and what it decodes of
// EC2's refusals, ECR with its tokens and its registry, the Price List API, what EKS tells of clusters and IAM of
// roles, and EFS' file systems and mount targets, which no machine mounts, beside it. It must not know Kip.
//
// The machines behind it are those of internal/cloud/sim, with its clock, capacity,
// quotas, buckets, late lists and faults. What the model adds is EC2's own: parameters,
// which are refused where EC2's reference forbids them or the model does not know them;
// tokens by zone; subnets, groups, images and interfaces; pages; and who may do what.
//
// What Kip never sends, it does not know: an account has no key pairs, an instance one interface, and there are no
// fleets, with what CreateFleet says of capacity in an answer that is none of an error.
//
// Signatures of calls are not verified: an access key is believed to be whose it says. Those of
// tokens by which roles are assumed are, and so are ECR's.
package ec2
