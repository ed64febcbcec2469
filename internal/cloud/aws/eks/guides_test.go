package eks_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdkconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/efs"
	efstypes "github.com/aws/aws-sdk-go-v2/service/efs/types"
	awseks "github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/cloudmodel"
	model "github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	kipaws "github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/aws/wire"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/eks"
	"github.com/elotl/kip/internal/eks/wellknown"
)

// hack/guide carries out the guide of 2020 for EKS, and what docs/eks.md and deploy.sh have a user type, with the real
// ./kustomize/deploy.sh and a model of AWS. This test binary stands in for the programs that these name. The guides without AWS are in
// deploy/render. internal/eks has deploy.sh up to a node that is Ready.

const (
	// asProgram says which program the test binary stands in for. answerFile has the ID in the last answer of AWS.
	asProgram, answerFile = "GUIDE_PROGRAM", "GUIDE_ANSWER"
)

func TestMain(m *testing.M) {
	name := os.Getenv(asProgram)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := programs[name](context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var programs = map[string]func(ctx context.Context, args []string) error{"aws": awsCLI, "kubectl": kubectl, "kipctl": kipctl}

var errNotInGuide = errors.New("the guide has no such command")

// awsCLI makes the call that a command of AWS' command line makes.
func awsCLI(ctx context.Context, args []string) error {
	if len(args) < 2 || len(args)%2 != 0 {
		return errNotInGuide
	}
	flags := map[string]string{}
	for i := 2; i < len(args); i += 2 {
		flags[strings.TrimPrefix(args[i], "--")] = args[i+1]
	}
	sdk, err := sdkconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	if region := flags["region"]; region != "" {
		sdk.Region = region
	}
	for name, value := range flags {
		if path, is := strings.CutPrefix(value, "file://"); is {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			flags[name] = string(text)
		}
	}
	api, answer := ec2.NewFromConfig(sdk), ""
	switch strings.Join(args[:2], " ") {
	case "iam create-role":
		_, err = iam.NewFromConfig(sdk).CreateRole(ctx, &iam.CreateRoleInput{
			RoleName: aws.String(flags["role-name"]), AssumeRolePolicyDocument: aws.String(flags["assume-role-policy-document"]),
		})
	case "iam update-assume-role-policy":
		_, err = iam.NewFromConfig(sdk).UpdateAssumeRolePolicy(ctx, &iam.UpdateAssumeRolePolicyInput{
			RoleName: aws.String(flags["role-name"]), PolicyDocument: aws.String(flags["policy-document"]),
		})
	case "iam put-role-policy":
		_, err = iam.NewFromConfig(sdk).PutRolePolicy(ctx, &iam.PutRolePolicyInput{
			RoleName: aws.String(flags["role-name"]), PolicyName: aws.String(flags["policy-name"]),
			PolicyDocument: aws.String(flags["policy-document"]),
		})
	case "eks create-addon": // of which the account knows nothing
	case "eks create-pod-identity-association":
		_, err = awseks.NewFromConfig(sdk).CreatePodIdentityAssociation(ctx, &awseks.CreatePodIdentityAssociationInput{
			ClusterName: aws.String(flags["cluster-name"]), Namespace: aws.String(flags["namespace"]),
			ServiceAccount: aws.String(flags["service-account"]), RoleArn: aws.String(flags["role-arn"]),
		})
	case "ec2 describe-vpcs":
		_, err = api.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{})
	case "ec2 describe-subnets":
		name, values, _ := strings.Cut(strings.TrimPrefix(flags["filters"], "Name="), ",Values=")
		_, err = api.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{Filters: []types.Filter{{Name: aws.String(name), Values: []string{values}}}})
	case "ec2 create-security-group":
		var made *ec2.CreateSecurityGroupOutput
		made, err = api.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
			GroupName:   aws.String(flags["group-name"]),
			Description: aws.String(flags["description"]),
			VpcId:       aws.String(flags["vpc-id"]),
		})
		if err == nil {
			answer = aws.ToString(made.GroupId)
		}
	case "ec2 authorize-security-group-ingress":
		port, notPort := strconv.ParseInt(flags["port"], 10, 32)
		if notPort != nil {
			return notPort
		}
		_, err = api.AuthorizeSecurityGroupIngress(ctx, &ec2.AuthorizeSecurityGroupIngressInput{
			GroupId: aws.String(flags["group-id"]),
			IpPermissions: []types.IpPermission{{
				IpProtocol:       aws.String(flags["protocol"]),
				FromPort:         aws.Int32(int32(port)),
				ToPort:           aws.Int32(int32(port)),
				UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: aws.String(flags["source-group"])}},
			}},
		})
	case "efs create-file-system":
		key, value, _ := strings.Cut(strings.TrimPrefix(flags["tags"], "Key="), ",Value=")
		var made *efs.CreateFileSystemOutput
		made, err = efs.NewFromConfig(sdk).CreateFileSystem(ctx, &efs.CreateFileSystemInput{
			CreationToken: aws.String(flags["creation-token"]), Tags: []efstypes.Tag{{Key: aws.String(key), Value: aws.String(value)}},
		})
		if err == nil {
			answer = aws.ToString(made.FileSystemId)
		}
	case "efs create-mount-target":
		_, err = efs.NewFromConfig(sdk).CreateMountTarget(ctx, &efs.CreateMountTargetInput{
			FileSystemId: aws.String(flags["file-system-id"]), SubnetId: aws.String(flags["subnet-id"]),
			SecurityGroups: []string{flags["security-group"]}, // the CLI takes a beginning of --security-groups
		})
	default:
		return errNotInGuide
	}
	if err != nil {
		return err
	}
	return os.WriteFile(os.Getenv(answerFile), []byte(answer), 0o600)
}

// kubectl compares names with those of what deploy.sh installs.
func kubectl(_ context.Context, args []string) error {
	node := ""
	for _, a := range args {
		if name, is := strings.CutPrefix(a, "spec.nodeName="); is {
			node = name
		}
	}
	switch {
	case slices.Equal(args, []string{"get", "pods", "--field-selector", "spec.nodeName=" + node, "-A"}):
		if !strings.Contains(string(deploy.EKS), "--nodename="+node+"\n") {
			return fmt.Errorf("deploy.sh makes no node %s", node)
		}
		return nil
	case slices.Equal(args, []string{"delete", "namespace", eks.DefaultNamespace}):
		return nil
	}
	return errNotInGuide
}

// unreachable is the way to a registry of images that is not there.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no route to host")
}

var errNoCluster = errors.New("this test has no cluster")

// kipctl is that of deploy.sh, up to the checks of the cluster, and prints Kip's policy.
func kipctl(ctx context.Context, args []string) error {
	if slices.Equal(args, []string{"eks", "policy"}) {
		_, err := os.Stdout.Write(kipaws.CorePolicy())
		return err
	}
	if len(args) != 3 || args[0] != "eks" || args[1] != "deploy" || !strings.HasPrefix(args[2], "--image-folder=") {
		return errNotInGuide
	}
	d := eks.Deployment{
		Request:    eks.Request{Namespace: os.Getenv(eks.NamespaceVariable), BootImage: eks.DefaultBootImage},
		Connect:    func() (*eks.Kubernetes, error) { return nil, errNoCluster },
		Say:        func(format string, args ...any) { fmt.Printf(format+"\n", args...) },
		Clock:      clock.RealClock{},
		Registries: unreachable{},
	}
	for _, v := range eks.Variables {
		*v.Value(&d.Request) = os.Getenv(v.Name)
	}
	err := d.Run(ctx, true)
	if problems, is := errors.AsType[eks.Problems](err); is && slices.Equal(problems, eks.Problems{errNoCluster.Error()}) {
		fmt.Printf("the account is as Kip needs it, in namespace %s, with the group %q\n", d.Namespace, d.Group)
		return nil
	}
	return err
}

// account is what the guide's account has, with the role that the guide has made with today's policies.
func account(t *testing.T) *model.Model {
	t.Helper()
	const issuer, id = "oidc.eks.us-west-2.amazonaws.com/id/AAAABBBBCCCCDDDDEEEEFFFF00001111", "012345678910"
	m, err := model.New(model.Config{
		Region:  "us-west-2",
		Account: id,
		Sim: sim.Config{Catalogue: []catalog.InstanceType{{Name: "t3.micro", MilliCPU: 2000, MemoryBytes: 1 << 30, Arch: "amd64",
			Offerings: []catalog.PurchaseOption{{Zone: "us-west-2a", Subnet: "subnet-a"}}}}},
		Subnets:   []model.Subnet{{ID: "subnet-a", VPC: "vpc-1", Zone: "us-west-2a"}},
		Routes:    []model.Route{model.NATRoute("vpc-1")},
		Groups:    []model.Group{{ID: "sg-00000001", Name: "eks-cluster-sg", VPC: "vpc-1"}},
		Images:    []model.Image{{ID: "ami-1", Name: "kip-cell-amd64-1", Owner: "self", RootDevice: "/dev/xvda", GiB: 1}},
		Profiles:  []string{"kip-cell"},
		Providers: []cloudmodel.Provider{{Issuer: "https://" + issuer, Audiences: []string{"sts.amazonaws.com"}}},
		Clusters: []model.Cluster{{Name: "kip", Version: "1.36", Endpoint: "https://ABC.gr7.us-west-2.eks.amazonaws.com", VPC: "vpc-1",
			Subnets: []string{"subnet-a"}, Group: "sg-00000001", Issuer: "https://" + issuer}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Roles.PutIAMRole(model.IAMRole{
		ARN: "arn:aws:iam::" + id + ":role/kip-enterprise",
		Trust: `{"Statement": [` + wellknown.TrustStatement("arn:aws:iam::"+id+":oidc-provider/"+issuer, issuer,
			"system:serviceaccount:kip:kip-provider") + `]}`,
		Inline: map[string]string{"kip": string(kipaws.CorePolicy())},
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// carryOut has a shell carry out a guide at the root of the repository.
func carryOut(t *testing.T, m *model.Model, script string) (string, error) {
	t.Helper()
	api := httptest.NewServer(wire.Checked(t, m))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		api.Close()
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	answer := `$(cat "$` + answerFile + `")`
	top, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command(filepath.Join(top, "hack/guide"), append([]string{self}, slices.Collect(maps.Keys(programs))...)...)
	shell.Dir = top
	shell.Stdin = strings.NewReader(strings.NewReplacer("<subnet-id of VPC>", "subnet-a",
		"<kip-cells SG ID>", answer, "<kip-efs-mt SG ID>", answer, "<EFS filesystem ID>", answer).Replace(script))
	shell.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KIPCTL=that of the PATH",
		answerFile + "=" + filepath.Join(t.TempDir(), "answer"), "AWS_REGION=us-west-2", "AWS_ENDPOINT_URL=" + api.URL,
		"AWS_ACCESS_KEY_ID=AKIAADMIN", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true", "AWS_MAX_ATTEMPTS=1",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
	}
	out, err := shell.CombinedOutput()
	return string(out), err
}

func TestTheGuideOf2020WorksAsItIsTyped(t *testing.T) {
	text, err := os.ReadFile("testdata/guides-of-2020.txt")
	if err != nil {
		t.Fatal(err)
	}
	const script, fine = "./kustomize/deploy.sh\n", "the account is as Kip needs it, in namespace kip, with the group "
	is := map[string]struct {
		says []string
		// then is typed after the guide has ended with what it says; "" if the guide works.
		then, thenSays string
		// made says what is wrong with what the guide has made in the account. Optional.
		made func(*model.Model) error
	}{
		"the settings": {says: []string{fine + `""`}},
		// Its example is no ARN: accounts have twelve digits.
		"the settings that are rarely needed": {
			says: []string{`CELL_INSTANCE_PROFILE_ARN is "arn:aws:iam::11123456789:instance-profile/kip-cell": want the ARN of an instance profile`},
			// The role's trust policy is of another namespace, and it may pass no role to cells. The commands that deploy.sh prints change both.
			then: "export CELL_INSTANCE_PROFILE_ARN=arn:aws:iam::012345678910:instance-profile/kip-cell\n" +
				"if " + strings.TrimSpace(script) + " > \"$HOME/said\" 2>&1; then exit 9; fi\n" +
				"grep -o 'aws iam .*' \"$HOME/said\" > \"$HOME/commands\"; [ \"$(wc -l < \"$HOME/commands\")\" = 2 ]; . \"$HOME/commands\"\n" + script,
			thenSays: strings.Replace(fine, "namespace kip,", "namespace elotl-kip,", 1) + `""`,
		},
		"the image cache": {
			says:     []string{"not in this release; unset NFS_VOLUME_ENDPOINT", "cells.registryMirrors"},
			then:     "unset NFS_VOLUME_ENDPOINT\n" + script,
			thenSays: fine + `"sg-`,
			made:     cellsReachTheFileSystem,
		},
	}
	all := strings.Split(string(text), "\n== ")[1:]
	if len(all) != len(is) {
		t.Errorf("%d guides are in testdata: want %d", len(all), len(is))
	}
	for _, one := range all {
		name, guide, _ := strings.Cut(one, "\n")
		t.Run(name, func(t *testing.T) {
			want, known := is[name]
			if !known {
				t.Fatal("nothing is known of this guide")
			}
			if want.then != "" {
				before, ends := strings.CutSuffix(guide, script)
				if !ends {
					t.Fatalf("it does not end with deploy.sh:\n%s", guide)
				}
				guide = before + "if " + strings.TrimSpace(script) + "; then exit 9; fi\n" + want.then
			}
			m := account(t)
			said, err := carryOut(t, m, guide)
			if err != nil {
				t.Errorf("it ends with %v: %s", err, said)
			}
			for _, words := range append(want.says, want.thenSays) {
				if !strings.Contains(said, words) {
					t.Errorf("it does not say %q:\n%s", words, said)
				}
			}
			if want.made != nil {
				if err := want.made(m); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// cellsReachTheFileSystem is an error unless the account has one file system, with a mount target whose groups let cells mount it by NFS:
// cells are members of the group kip-cells. No machine mounts it: the model has no NFS server.
func cellsReachTheFileSystem(m *model.Model) error {
	systems, targets := m.FileSystems.All(), m.MountTargets.All()
	if len(systems) != 1 || systems[0].Tags["Name"] != "kip-efs" || len(targets) != 1 || targets[0].FileSystem != systems[0].ID ||
		targets[0].Subnet != "subnet-a" {
		return fmt.Errorf("there are the file systems %+v and the mount targets %+v", systems, targets)
	}
	groups := map[string]model.Group{}
	for _, g := range m.Groups.All() {
		groups[g.Name] = g
	}
	nfs := model.Rule{Protocol: "tcp", From: 2049, To: 2049, Source: groups["kip-cells"].ID}
	if !slices.Equal(targets[0].Groups, []string{groups["kip-efs-mt"].ID}) || !slices.Contains(groups["kip-efs-mt"].Rules, nfs) {
		return fmt.Errorf("the mount target has the groups %v of %+v: want NFS from kip-cells", targets[0].Groups, groups)
	}
	return nil
}

// EKS refuses an association of a role that does not trust it, so docs/eks.md makes the role first.
func TestARoleByPodIdentityIsMadeInTheOrderOfThePage(t *testing.T) {
	const settings = `export CLUSTER_NAME=kip USE_REGION=us-west-2 IMAGE_TAG=1
export KIP_SERVICE_ACCOUNT_ROLE_ARN=arn:aws:iam::012345678910:role/kip
`
	const associate = "aws eks create-pod-identity-association --cluster-name $CLUSTER_NAME --region $USE_REGION --namespace kip " +
		"--service-account kip-provider --role-arn $KIP_SERVICE_ACCOUNT_ROLE_ARN"
	page, err := os.ReadFile("../../../../docs/eks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, commands, _ := strings.Cut(string(page), "By EKS Pod Identity, instead of the identity provider.")
	_, commands, _ = strings.Cut(commands, "```sh\n")
	commands, _, _ = strings.Cut(commands, "```")
	commands = strings.NewReplacer("bin/kipctl", "kipctl", "kip.json", `"$HOME/kip.json"`).Replace(commands)
	for what, tc := range map[string]struct {
		script, says string
		fails        bool
	}{
		"the page":               {commands + "./kustomize/deploy.sh\n", "the account is as Kip needs it, in namespace kip", false},
		"without a role":         {associate, "Role provided in the request does not exist", true},
		"a role of the provider": {strings.Replace(associate, "$KIP_SERVICE_ACCOUNT_ROLE_ARN", "arn:aws:iam::012345678910:role/kip-enterprise", 1), "Trust policy of the role provided is invalid", true},
	} {
		said, err := carryOut(t, account(t), settings+tc.script)
		if (err != nil) != tc.fails || !strings.Contains(said, tc.says) {
			t.Errorf("%s: %v: %s\nwant %q", what, err, said, tc.says)
		}
	}
}
