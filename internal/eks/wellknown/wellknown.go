package wellknown

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// DNSLabel marks the Service of a cluster's DNS, which may have another name than Kip looks for. Source: Kubernetes, "Customizing DNS
// Service".
const DNSLabel = "k8s-app=kube-dns"

const (
	// PodIdentityAgent is the DaemonSet that gives pods the roles of EKS Pod Identity, and its add-on. Nodes of Auto Mode have the agent as a
	// service of the machine. Source: EKS User Guide, "Set up the Amazon EKS Pod Identity Agent".
	PodIdentityAgent = "eks-pod-identity-agent"
	// PodIdentityAddress and PodIdentityAddress6 are where that agent answers pods of its node. No AWS service of another kind has these
	// addresses. Source: EKS User Guide, "Understand how EKS Pod Identity works".
	PodIdentityAddress, PodIdentityAddress6 = "169.254.170.23", "[fd00:ec2::23]"

	// RoleAnnotation names the role of a service account. Source: EKS User Guide, "Assign IAM roles to Kubernetes service accounts".
	RoleAnnotation = "eks.amazonaws.com/role-arn"

	// ServingSigner signs serving certificates of what is no instance of the cluster: docs/serving-certificates.md.
	ServingSigner = "beta.eks.amazonaws.com/app-serving"
)

// Drivers of disks, and the annotation of the StorageClass of claims that name none.
const (
	// EBSDriver is the add-on's. The API server has it carry out InTree, too. Source: Kubernetes, "Storage classes", AWS EBS.
	EBSDriver, InTree = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"
	// AutoDriver makes disks that only nodes of Auto Mode get. Source: EKS User Guide, "Create a storage class".
	AutoDriver = "ebs.csi.eks.amazonaws.com"

	DefaultClass = "storageclass.kubernetes.io/is-default-class"
)

// Labels begins the keys of the labels that EKS gives its own nodes, those of Auto Mode above all. Source: EKS User Guide, "Create a
// Node Pool for EKS Auto Mode", supported labels.
const Labels = "eks.amazonaws.com/"

// ComputeType is a label of nodes. Source: EKS User Guide, "Control if a workload is deployed on EKS Auto Mode nodes".
const ComputeType = Labels + "compute-type"

// OnAuto reports whether a node is one of Auto Mode.
func OnAuto(n *corev1.Node) bool { return n.Labels[ComputeType] == "auto" }

// ByPodIdentity reports whether a pod asks the EKS Pod Identity agent of its node for credentials, as EKS' webhook has it do.
func ByPodIdentity(p *corev1.Pod) bool {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, e := range c.Env {
			if e.Name == "AWS_CONTAINER_CREDENTIALS_FULL_URI" &&
				(strings.Contains(e.Value, PodIdentityAddress) || strings.Contains(e.Value, PodIdentityAddress6)) {
				return true
			}
		}
	}
	return false
}

// CreateAddon is the command that installs an add-on.
func CreateAddon(region, cluster, name string) string {
	return fmt.Sprintf("aws eks create-addon --region %s --cluster-name %s --addon-name %s", region, cluster, name)
}

// partition is that of a region.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}

// Role is the ARN of a role in an account.
func Role(region, account, name string) string {
	return fmt.Sprintf("arn:%s:iam::%s:role/%s", partition(region), account, name)
}

// Provider is the ARN of the identity provider in IAM that stands for an issuer of tokens, which is an address without https://.
func Provider(region, account, issuer string) string {
	return fmt.Sprintf("arn:%s:iam::%s:oidc-provider/%s", partition(region), account, issuer)
}

const ebsAddon = "aws-ebs-csi-driver"

// CreateEBSDriver are the commands that install EBS' driver: the cluster's identity provider, a role of the driver's service account, and
// the add-on with that role. An add-on without a role has the rights of its node's role. Sources: EKS User Guide, "Store Kubernetes volumes
// with Amazon EBS", and "Amazon EKS add-ons", Amazon EBS CSI driver; EKS API reference, "CreateAddon", serviceAccountRoleArn.
func CreateEBSDriver(region, cluster, account string) string {
	role := cluster + "-ebs-driver"
	return fmt.Sprintf("%s && eksctl create iamserviceaccount --region %s --cluster %s --namespace kube-system --name ebs-csi-controller-sa "+
		"--role-name %s --role-only --attach-policy-arn arn:%s:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy --approve && "+
		"%s --service-account-role-arn %s --configuration-values '{\"defaultStorageClass\":{\"enabled\":true}}'",
		AssociateProvider(region, cluster), region, cluster, role, partition(region), CreateAddon(region, cluster, ebsAddon),
		Role(region, account, role))
}

// ShowEBSDriver is the command that shows the role of EBS' driver, which the API server does not know.
func ShowEBSDriver(region, cluster string) string {
	return fmt.Sprintf("aws eks describe-addon --region %s --cluster-name %s --addon-name %s "+
		"--query 'addon.[serviceAccountRoleArn,podIdentityAssociations]' # if both are empty, the driver has the rights of its node's role alone",
		region, cluster, ebsAddon)
}

// AssociateProvider is the command that makes IAM's identity provider of a cluster, by whose tokens service accounts assume roles.
func AssociateProvider(region, cluster string) string {
	return fmt.Sprintf("eksctl utils associate-iam-oidc-provider --cluster %s --region %s --approve", cluster, region)
}

// TrustStatement is the statement of a role's trust policy by which a service account assumes the role. The provider is the ARN of the
// identity provider that stands for the issuer of the cluster's tokens, which is an address without https://.
func TrustStatement(provider, issuer, subject string) string {
	return fmt.Sprintf(`{"Effect": "Allow", "Principal": {"Federated": %q}, "Action": "sts:AssumeRoleWithWebIdentity", `+
		`"Condition": {"StringEquals": {%q: %q, %q: "sts.amazonaws.com"}}}`, provider, issuer+":sub", subject, issuer+":aud")
}

// PodTrustStatement is the statement of a role's trust policy by which EKS Pod Identity gives the role to pods. Source: EKS User Guide,
// "Create IAM role with trust policy required by EKS Pod Identity".
const PodTrustStatement = `{"Effect": "Allow", "Principal": {"Service": "pods.eks.amazonaws.com"}, "Action": ["sts:AssumeRole", "sts:TagSession"]}`
