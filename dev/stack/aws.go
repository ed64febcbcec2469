package stack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/cloud/aws"
)

// The clouds of a stack.
const (
	CloudLocal = "local"
	// CloudQEMU has virtual machines that boot the image in Bin.
	CloudQEMU = "qemu"
	// CloudAWS is a model of EC2, with local cells behind its instances.
	CloudAWS = "aws"
)

// Clouds are all that a stack can have.
var Clouds = []string{CloudLocal, CloudQEMU, CloudAWS}

// checkCloud says whether the stack can have its cloud.
func (o Options) checkCloud() error {
	switch {
	case o.Cloud != "" && !slices.Contains(Clouds, o.Cloud):
		return fmt.Errorf("--cloud is %q: want one of %s", o.Cloud, strings.Join(Clouds, ", "))
	case o.Cloud == CloudQEMU:
		if _, err := os.Stat(o.bootImage()); err != nil {
			return fmt.Errorf("--cloud is %s, and there is no image for its machines: make image builds it: %w", o.Cloud, err)
		}
	case o.Cloud == CloudAWS && o.Kips > 1:
		return fmt.Errorf("--cloud is %s and --kips is %d: want one Kip", o.Cloud, o.Kips)
	case o.Cloud == CloudAWS && o.IPv6CIDR.IsValid():
		return fmt.Errorf("--cloud is %s and --ipv6-cidr is %s: want none", o.Cloud, o.IPv6CIDR)
	}
	return nil
}

// bootImage is what virtual machines start from.
func (o Options) bootImage() string {
	return filepath.Join(o.Bin, "image", "kip-cell-"+runtime.GOARCH+".qcow2")
}

// StartCloud starts the model of EC2, if that is the stack's cloud. The bridge and the
// cells' root are there.
func (s *Stack) StartCloud(ctx context.Context) (err error) {
	if s.opts.Cloud != CloudAWS {
		return nil
	}
	cells := s.cloud()
	cells.RootDir, cells.Nameservers, cells.LauncherPath = s.opts.CellRoot, []netip.Addr{s.address}, filepath.Join(s.opts.Bin, "kip")
	s.ec2, err = machines.Start(ctx, machines.Config{Local: cells, Policy: aws.Policy(), Log: s.opts.Log})
	return err
}

// EC2 is how another program asks the model: environment and arguments of awscli; "" where
// the stack has none.
func (s *Stack) EC2() string {
	if s.ec2 == nil {
		return ""
	}
	return fmt.Sprintf("AWS_ACCESS_KEY_ID=%s AWS_SECRET_ACCESS_KEY=any aws --endpoint-url %s --region %s ec2", machines.AccessKeyID, s.ec2.URL(),
		machines.Region)
}

// Orders is where the model takes orders, without the name of one; "" where the stack has none.
func (s *Stack) Orders() string {
	if s.ec2 == nil {
		return ""
	}
	return s.ec2.URL() + ec2.ControlPath
}

// awsConfig is cloud.aws of provider.yaml.
func (s *Stack) awsConfig() map[string]any {
	return map[string]any{
		"region": machines.Region, "vpcID": machines.VPC, "endpointURL": s.ec2.URL(),
		"interruptionQueue": machines.Queue,
		"accessKeyID":       machines.AccessKeyID, "secretAccessKey": "any", // the model looks at no signature
	}
}

// awsEnvironment keeps what a developer has of AWS from Kip.
var awsEnvironment = []string{
	"AWS_REGION=" + machines.Region, "AWS_PROFILE=", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
}
