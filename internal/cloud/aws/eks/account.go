package eks

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ssocreds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/eks/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	kipaws "github.com/elotl/kip/internal/cloud/aws"
)

// Account is an AWS account, as whoever installs Kip sees it in one region.
type Account struct {
	// ID is its number, Caller the ARN of who asks.
	ID, Caller, Region string
	partition          string

	eks *eks.Client
	ec2 *ec2.Client
	iam *iam.Client
}

// Open finds credentials as AWS's own tools do, and asks STS whose they are. Transport is for tests; nil for the SDK's own.
func Open(ctx context.Context, region string, transport http.RoundTripper) (*Account, error) {
	sdk, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
	if err != nil {
		return nil, fmt.Errorf("read the settings of AWS: %w", err)
	}
	if transport != nil {
		sdk.HTTPClient = &http.Client{Transport: transport}
	}
	if _, err := sdk.Credentials.Retrieve(ctx); err != nil {
		if _, expired := errors.AsType[*ssocreds.InvalidTokenError](err); expired {
			return nil, fmt.Errorf("%s: %w", expiredText, err)
		}
		if os.Getenv(secretOf2020) != "" && os.Getenv("AWS_SECRET_ACCESS_KEY") == "" {
			return nil, fmt.Errorf("find credentials of AWS: %[1]s is set, which AWS does not read: export AWS_SECRET_ACCESS_KEY=\"$%[1]s\": %[2]w",
				secretOf2020, err)
		}
		return nil, fmt.Errorf("find credentials of AWS: want AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws "+
			"(AWS_PROFILE): %w",
			err)
	}
	who, err := sts.NewFromConfig(sdk).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return nil, fmt.Errorf("ask STS in %s whose the AWS credentials are: %w", region, explain(err, region))
	}
	a := &Account{
		ID:        aws.ToString(who.Account),
		Caller:    aws.ToString(who.Arn),
		Region:    region,
		partition: "aws",
		eks:       eks.NewFromConfig(sdk),
		ec2:       ec2.NewFromConfig(sdk),
		iam:       iam.NewFromConfig(sdk),
	}
	if parts := strings.Split(a.Caller, ":"); len(parts) > 1 {
		a.partition = parts[1]
	}
	return a, nil
}

// secretOf2020 is what Kip's guide of 2020 calls the variable of the secret key.
const secretOf2020 = "AWS_SECRET_KEY_ID"

const expiredText = "the AWS credentials have expired: sign in again (aws sso login), or set a new AWS_SESSION_TOKEN"

// codeOf is AWS's code of an error; "" if it has none.
func codeOf(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

// refused reports whether the caller lacks a right. The services spell it differently.
func refused(err error) bool {
	return slices.Contains([]string{"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}, codeOf(err))
}

// explain puts the cure before an error of AWS that has one.
func explain(err error, region string) error {
	lookup, unknown := errors.AsType[*net.DNSError](err)
	switch code := codeOf(err); {
	case unknown && lookup.IsNotFound:
		return fmt.Errorf("AWS has no such region as %s, or this machine cannot look up its names: want a region such as us-west-2: %w",
			region, err)
	case kipaws.Expired(code):
		return fmt.Errorf("%s: %w", expiredText, err)
	case kipaws.Unknown(code), code == "SignatureDoesNotMatch":
		return fmt.Errorf("AWS does not know these credentials, or not in this region (AWS_ACCESS_KEY_ID, AWS_PROFILE): %w", err)
	}
	return err
}

// Cluster is what EKS tells of one.
type Cluster struct {
	Name, Version, VPC string
	Subnets            []string
	// Group is the cluster security group.
	Group string
	// Endpoint is the API server's URL, CA its certificate, PEM, and Public whether the internet reaches it.
	Endpoint string
	CA       []byte
	Public   bool
	// PublicFrom are the networks that alone reach it from the internet; none for all.
	PublicFrom []string
	// Issuer is that of service accounts' tokens, without https://.
	Issuer string
	// Auto says that it is in Auto Mode, and AutoDisks that its disks are.
	Auto, AutoDisks bool
}

// Cluster finds a cluster. One that Kip cannot serve is an error.
func (a *Account) Cluster(ctx context.Context, name string) (Cluster, error) {
	out, err := a.eks.DescribeCluster(ctx, &eks.DescribeClusterInput{Name: aws.String(name)})
	switch {
	case codeOf(err) == "ResourceNotFoundException":
		return Cluster{}, fmt.Errorf("EKS has no cluster %q in %s of account %s: %s", name, a.Region, a.ID, a.others(ctx))
	case err != nil:
		return Cluster{}, fmt.Errorf("describe the EKS cluster %s in %s: %w", name, a.Region, explain(err, a.Region))
	}
	c := clusterOf(out.Cluster)
	if status := out.Cluster.Status; status != types.ClusterStatusActive && status != types.ClusterStatusUpdating {
		return c, fmt.Errorf("the EKS cluster %s is %s: want ACTIVE; wait for it: aws eks wait cluster-active --name %s --region %s",
			name, status, name, a.Region)
	}
	if n := out.Cluster.KubernetesNetworkConfig; n != nil && n.IpFamily == types.IpFamilyIpv6 {
		return c, fmt.Errorf("the EKS cluster %s is an IPv6 cluster (ipFamily ipv6): cells on EC2 have IPv4 addresses only, so its pods and "+
			"Kip's would "+
			"not reach each other: want a cluster with ipFamily ipv4", name)
	}
	return c, nil
}

// others names the clusters that there are.
func (a *Account) others(ctx context.Context) string {
	out, err := a.eks.ListClusters(ctx, &eks.ListClustersInput{})
	switch {
	case err != nil:
		return fmt.Sprintf("want the name and the region of your cluster (aws eks list-clusters --region %s)", a.Region)
	case len(out.Clusters) == 0:
		return "it has none there; is the region right, and the account?"
	}
	return "there are " + strings.Join(out.Clusters, ", ")
}

func clusterOf(c *types.Cluster) Cluster {
	out := Cluster{Name: aws.ToString(c.Name), Version: aws.ToString(c.Version), Endpoint: aws.ToString(c.Endpoint)}
	if c.CertificateAuthority != nil {
		// EKS sends no other; a bad one equals no kubeconfig's.
		out.CA, _ = base64.StdEncoding.DecodeString(aws.ToString(c.CertificateAuthority.Data))
	}
	if v := c.ResourcesVpcConfig; v != nil {
		out.VPC, out.Subnets, out.Group = aws.ToString(v.VpcId), v.SubnetIds, aws.ToString(v.ClusterSecurityGroupId)
		if out.Public = v.EndpointPublicAccess; out.Public && !slices.Contains(v.PublicAccessCidrs, "0.0.0.0/0") {
			out.PublicFrom = v.PublicAccessCidrs
		}
	}
	if c.Identity != nil && c.Identity.Oidc != nil {
		out.Issuer = strings.TrimPrefix(aws.ToString(c.Identity.Oidc.Issuer), "https://")
	}
	out.Auto = c.ComputeConfig != nil && aws.ToBool(c.ComputeConfig.Enabled)
	out.AutoDisks = c.StorageConfig != nil && c.StorageConfig.BlockStorage != nil && aws.ToBool(c.StorageConfig.BlockStorage.Enabled)
	return out
}

// arn is that of something in this account.
func (a *Account) arn(service, region, resource string) string {
	return strings.Join([]string{"arn", cmp.Or(a.partition, "aws"), service, region, a.ID, resource}, ":")
}
