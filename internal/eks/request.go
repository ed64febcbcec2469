package eks

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/cloud/aws/eks"
)

// Names of what is installed, as Kip of 2020 has them.
const (
	name = "kip-provider"
	node = "kip-provider-0"
)

// Request says what is to be installed, and where.
type Request struct {
	Cluster, Region, Tag, Role string
	Namespace, Registry        string
	// Profile is the ARN of the instance profile of cells, Group the ID of a security group of theirs; "" for none.
	Profile, Group string
	// NFS is the volume of the image cache.
	NFS string
	// BootImage is the name of the boot images, of which * may be a part, or the ID of one. Folder has one that is published if there is none.
	BootImage, Folder string
	// Type is the instance type of pods that name no resources; "" for a small one of the boot image's architecture.
	Type string
	// Subnets are those of cells; none for the cluster's own.
	Subnets []string
	// SkipRights leaves out what the role may do.
	SkipRights bool
}

// variable is one of the environment, in which deploy.sh is told what to do.
type variable struct {
	// Name is the variable's, and Flag that of kipctl.
	Name, Flag string
	required   bool
	// What it is, and an example.
	what, example string
	value         func(*Request) *string
}

// Variables are those of deploy.sh.
var Variables = []variable{
	{"CLUSTER_NAME", "cluster-name", true, "name of the EKS cluster", "kip", func(r *Request) *string { return &r.Cluster }},
	{"USE_REGION", "region", true, "region of the cluster", "us-west-2", func(r *Request) *string { return &r.Region }},
	{"IMAGE_TAG", "image-tag", true, "tag of Kip's image: the version to install", "0.1.0", func(r *Request) *string { return &r.Tag }},
	{
		"KIP_SERVICE_ACCOUNT_ROLE_ARN", "role-arn", true, "ARN of the IAM role of Kip's service account",
		"arn:aws:iam::123456789012:role/kip", func(r *Request) *string { return &r.Role },
	},
	{"IMAGE_REGISTRY", "image-registry", false, "registry that has the images kip and kip-cell", bootimages.Published,
		func(r *Request) *string { return &r.Registry }},
	{
		"CELL_INSTANCE_PROFILE_ARN", "instance-profile", false, "ARN of the instance profile of cells whose pods name none",
		"arn:aws:iam::123456789012:instance-profile/kip-cell", func(r *Request) *string { return &r.Profile },
	},
	{"KIP_CELL_SG", "cell-security-group", false, "security group that each cell gets besides", "sg-0123456789abcdef0",
		func(r *Request) *string { return &r.Group }},
	{"NFS_VOLUME_ENDPOINT", "nfs-volume", false, "not in this release: volume of an image cache", "",
		func(r *Request) *string { return &r.NFS }},
}

// Usage is what a flag says of a variable.
func (v variable) Usage() string {
	text := v.what + " (default: $" + v.Name
	if v.Name == "IMAGE_REGISTRY" {
		text += ", else " + v.example
	}
	return text + ")"
}

// Value is where a request has it.
func (v variable) Value(r *Request) *string { return v.value(r) }

// NamespaceVariable names the namespace, which has a flag of kipctl's own, and DefaultNamespace is the one without it.
const NamespaceVariable, DefaultNamespace = "NAMESPACE", "kip"

var (
	regions  = regexp.MustCompile(`^[a-z]{2,}(-[a-z]+)+-[0-9]$`)
	tags     = regexp.MustCompile(`^[\w][\w.-]{0,127}$`)
	profiles = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:instance-profile/[\w+=,.@/-]+$`)
	groups   = regexp.MustCompile(`^sg-[0-9a-f]{8,17}$`)
	clusters = regexp.MustCompile(`^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$`) // Amazon EKS API reference, "CreateCluster", name
)

// check says all that is wrong with a request by itself.
func (r *Request) check() (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if r.NFS != "" {
		problem("NFS_VOLUME_ENDPOINT is %q: the image cache is not in this release; unset NFS_VOLUME_ENDPOINT. Cells then pull each image "+
			"from its registry. To have them pull from a mirror, install with the chart and set config.cells.registryMirrors", r.NFS)
	}
	for _, v := range Variables {
		if *v.value(r) == "" && v.required {
			problem("%s is not set: want the %s, such as %s (export %s=%s, or --%s)", v.Name, v.what, v.example, v.Name, v.example, v.Flag)
		}
	}
	wrong := func(variable, value, want string, good bool) {
		if value != "" && !good {
			problem("%s is %q: want %s", variable, value, want)
		}
	}
	wrong("CLUSTER_NAME", r.Cluster, "the name of an EKS cluster, not its ARN", clusters.MatchString(r.Cluster))
	wrong("USE_REGION", r.Region, "a region such as us-west-2", regions.MatchString(r.Region))
	wrong("IMAGE_TAG", r.Tag, "the tag of an image, such as 0.1.0", tags.MatchString(r.Tag))
	wrong("KIP_SERVICE_ACCOUNT_ROLE_ARN", r.Role, "the ARN of a role, such as arn:aws:iam::123456789012:role/kip",
		eks.RoleARN.MatchString(r.Role))
	wrong("CELL_INSTANCE_PROFILE_ARN", r.Profile, "the ARN of an instance profile, such as "+
		"arn:aws:iam::123456789012:instance-profile/kip-cell",
		profiles.MatchString(r.Profile))
	wrong("KIP_CELL_SG", r.Group, "the ID of a security group, such as sg-0123456789abcdef0", groups.MatchString(r.Group))
	wrong("NAMESPACE", r.Namespace, "a name of a namespace: lower case letters, digits and -",
		len(validation.IsDNS1123Label(r.Namespace)) == 0)
	at, err := url.Parse("https://" + r.Registry)
	wrong("IMAGE_REGISTRY", r.Registry, "a registry without scheme and tag, such as "+bootimages.Published, err == nil && at.Host != "" &&
		!strings.HasSuffix(r.Registry, "/") && !slices.Contains([]string{"http:", "https:"}, at.Host) && at.RawQuery == "")
	return problems
}

// image is the one of Kip, and cellImage the name of the boot images beside it.
func (r *Request) image() string     { return r.Registry + "/kip:" + r.Tag }
func (r *Request) cellImage() string { return bootimages.Name(r.Registry, r.Tag) }
