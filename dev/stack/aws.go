package stack

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/kubernetes"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/cluster"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/cloud/aws"
)

// The clouds of a stack.
const (
	CloudLocal = "local"
	// CloudQEMU has virtual machines that boot the image in Bin.
	CloudQEMU = "qemu"
	// CloudAWS is a model of EC2, with local cells behind its instances.
	CloudAWS = "aws"
	// CloudAWSVM is the same with virtual machines behind them, which boot the image in Bin.
	CloudAWSVM = "aws-vm"
)

// Clouds are all that a stack can have.
var Clouds = []string{CloudLocal, CloudQEMU, CloudAWS, CloudAWSVM}

// Virtual says that machines boot the image in Bin.
func (o Options) Virtual() bool { return o.Cloud == CloudQEMU || o.Cloud == CloudAWSVM }

// EC2 says that the cells are instances of a model of EC2.
func (o Options) EC2() bool { return o.Cloud == CloudAWS || o.Cloud == CloudAWSVM }

// kipIsPod reports whether Kip is a pod of an ordinary node, and asks the model of EC2 from there.
func (o Options) kipIsPod() bool { return o.Chart != "" || o.EKS }

// checkCloud says whether the stack can have its cloud.
func (o Options) checkCloud() error {
	switch {
	case o.Cloud != "" && !slices.Contains(Clouds, o.Cloud):
		return fmt.Errorf("--cloud is %q: want one of %s", o.Cloud, strings.Join(Clouds, ", "))
	case o.EC2() && o.Kips > 1:
		return fmt.Errorf("--cloud is %s and --kips is %d: want one Kip", o.Cloud, o.Kips)
	case o.EC2() && o.IPv6CIDR.IsValid():
		return fmt.Errorf("--cloud is %s and --ipv6-cidr is %s: want none", o.Cloud, o.IPv6CIDR)
	case o.Chart != "" && (o.Cloud != CloudAWS || o.Nodes == 0 || o.Kips > 1 || len(o.Images) == 0):
		return fmt.Errorf("--chart is %s: want --cloud=%s, --nodes of 1 or more for Kip's pod, --kips=1, and --images with Kip's image",
			o.Chart, CloudAWS)
	case o.EKS && (o.Cloud != CloudAWS || o.Nodes == 0 || o.Kips > 1 || len(o.Images) == 0 || o.Chart != ""):
		return fmt.Errorf("--eks: want --cloud=%s, --nodes of 1 or more for Kip's pod, --kips=1, --images with Kip's image, and no --chart",
			CloudAWS)
	case o.Virtual():
		if _, err := os.Stat(o.bootImage()); err != nil {
			return fmt.Errorf("--cloud is %s, and there is no image for its machines: make image builds it: %w", o.Cloud, err)
		}
	}
	return nil
}

// bootImage is what virtual machines start from.
func (o Options) bootImage() string {
	form := ".qcow2"
	if o.EC2() {
		form = ".raw" // as it is published
	}
	return filepath.Join(o.Bin, "image", "kip-cell-"+runtime.GOARCH+form)
}

// model is that of EC2.
type model struct {
	*site
	controlPlane *controlPlane
	images       *images
	nodes        *nodes

	ec2 *machines.EC2 // nil on another cloud
}

// StartCloud starts the model of EC2, if that is the stack's cloud. The cluster and the example image
// are there, and the cells' root or the boot image.
func (s *model) StartCloud(ctx context.Context) (err error) {
	if !s.opts.EC2() {
		return nil
	}
	cells := s.cloud()
	cells.RootDir, cells.Nameservers, cells.LauncherPath = s.opts.CellRoot, []netip.Addr{s.address}, filepath.Join(s.opts.Bin, "kip")
	client, err := kubernetes.NewForConfig(s.controlPlane.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	// Narrowed, as its documentation says.
	images := bytes.ReplaceAll(aws.ImagePolicy(true), []byte(":repository/*"), []byte(":repository/"+machines.Readable+"*"))
	cfg := machines.Config{
		Local:       cells,
		Policy:      aws.Policy(),
		ImagePolicy: images,
		Image:       s.images.example,
		NAT:         s.opts.Masquerade,
		Provider: cloudmodel.Provider{
			Issuer:    cluster.Issuer,
			Audiences: []string{"sts.amazonaws.com"},
			Keys: func(ctx context.Context) (*jose.JSONWebKeySet, error) {
				text, err := client.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
				if err != nil {
					return nil, err
				}
				keys := &jose.JSONWebKeySet{}
				return keys, json.Unmarshal(text, keys)
			},
		},
		Log: s.opts.Log,
	}
	if s.opts.Virtual() {
		cfg.Boot = &machines.Boot{Folder: filepath.Dir(s.opts.bootImage()), Program: filepath.Join(s.opts.Bin, "kipctl")}
	}
	if s.opts.EKS {
		cfg.Cluster = &ec2.Cluster{
			Endpoint: s.controlPlane.Cluster.Server(),
			CA:       s.controlPlane.Cluster.AdminConfig().CAData,
			Issuer:   cluster.Issuer,
		}
		if err := s.pullFromRegistry(); err != nil {
			return err
		}
	}
	if s.opts.kipIsPod() {
		certificate, err := s.controlPlane.Cluster.Certificate(s.address.String())
		if err != nil {
			return err
		}
		cfg.Certificate = &certificate
		if cfg.Local.AgentSources, err = s.nodes.kipSources(); err != nil {
			return err
		}
	}
	s.ec2, err = machines.Start(ctx, cfg)
	return err
}

// pullFromRegistry has the cells' root, which is that of this stack alone, pull from the registry: a provider.yaml that names no mirror
// has cells ask the internet.
func (s *model) pullFromRegistry() error {
	mirrors := map[string][]string{"_default": {"http://" + s.images.Registry.Address()}}
	files, err := configs.RegistryHosts(mirrors, nil)
	if err != nil {
		return err
	}
	for host, text := range files {
		folder := filepath.Join(s.opts.CellRoot, configs.RegistryDir, host)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("have cells pull from the registry: %w", err)
		}
		if err := os.WriteFile(filepath.Join(folder, "hosts.toml"), []byte(text), 0o644); err != nil {
			return fmt.Errorf("have cells pull from the registry: %w", err)
		}
	}
	return nil
}

// Endpoints are the URLs of the model of EC2, by name: on this host, on the bridge by HTTPS, and what of it pods on cells reach. None
// where the stack has no model.
func (s *model) Endpoints() (all []string) {
	if s.ec2 == nil {
		return nil
	}
	for _, one := range []struct{ name, url string }{
		{"ec2", s.ec2.URL()}, {"ec2-https", s.ec2.HTTPSURL()}, {"ec2-pods", s.ec2.PodsURL()},
	} {
		if one.url != "" {
			all = append(all, one.name+"="+one.url)
		}
	}
	return all
}

// EC2 is how another program asks the model: environment and arguments of awscli; "" where
// the stack has none.
func (s *model) EC2() string {
	if s.ec2 == nil {
		return ""
	}
	return fmt.Sprintf("AWS_ACCESS_KEY_ID=%s AWS_SECRET_ACCESS_KEY=any aws --endpoint-url %s --region %s ec2", machines.AccessKeyID, s.ec2.URL(),
		machines.Region)
}

// Orders is where the model takes orders, without the name of one; "" where the stack has none.
func (s *model) Orders() string {
	if s.ec2 == nil {
		return ""
	}
	return s.ec2.URL() + cloudmodel.ControlPath
}

// PrivateImage is the name of one that the account's registry has for pods; "" where the stack has
// no EC2.
func (s *model) PrivateImage() string {
	if s.ec2 == nil {
		return ""
	}
	return machines.Registry() + "/" + machines.Repositories[0] + ":" + machines.ImageTag
}

// awsConfig is cloud.aws of provider.yaml. The one subnet makes the zone of all disks that of the virtual node.
func (s *model) awsConfig() map[string]any {
	return map[string]any{
		"region": machines.Region, "vpcID": machines.VPC, "subnetID": machines.Subnets[0].ID,
		"endpointURL": cmp.Or(s.ec2.HTTPSURL(), s.ec2.URL()),
		"ecr":         map[string]any{"roleARN": machines.ImageRole},
		"accessKeyID": machines.AccessKeyID, "secretAccessKey": "any", // the model looks at no signature
	}
}

// awsEnvironment keeps what a developer has of AWS from Kip. Its keys are for a provider.yaml without any.
var awsEnvironment = []string{
	"AWS_ACCESS_KEY_ID=" + machines.AccessKeyID, "AWS_SECRET_ACCESS_KEY=any", "AWS_SESSION_TOKEN=", "AWS_REGION=", "AWS_DEFAULT_REGION=",
	"AWS_PROFILE=", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
}
