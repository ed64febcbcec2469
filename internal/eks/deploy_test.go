package eks

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/catalog"
	kipaws "github.com/elotl/kip/internal/cloud/aws"
	awseks "github.com/elotl/kip/internal/cloud/aws/eks"
	"github.com/elotl/kip/internal/cloud/aws/wire"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/eks/wellknown"
)

const (
	region  = "us-west-2"
	issuer  = "oidc.eks.us-west-2.amazonaws.com/id/AAAABBBBCCCCDDDDEEEEFFFF00001111"
	account = "123456789012"
	roleARN = "arn:aws:iam::" + account + ":role/kip-enterprise"
)

// trust is the trust policy of the first Kip's documents, for a namespace.
func trust(namespace string) string {
	return fmt.Sprintf(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
		"Principal": {"Federated": "arn:aws:iam::%s:oidc-provider/%s"}, "Action": "sts:AssumeRoleWithWebIdentity",
		"Condition": {"StringEquals": {"%s:sub": "system:serviceaccount:%s:kip-provider"}}}]}`, account, issuer, issuer, namespace)
}

// installed is the policy of the first Kip's documents, with its missing comma.
const installed = `{
"Version": "2012-10-17",
"Statement": [
{
"Sid": "",
"Effect": "Allow",
"Action": [
"aws-marketplace:RegisterUsage",
"aws-marketplace:MeterUsage"
"ec2:ModifyVolume",
"ec2:AuthorizeSecurityGroupIngress",
"ec2:DescribeInstances",
"ec2:TerminateInstances",
"ec2:CreateTags",
"ec2:DeleteRoute",
"ecr:GetAuthorizationToken",
"ecr:GetDownloadUrlForLayer",
"ecr:BatchGetImage",
"ec2:DescribeDhcpOptions",
"ec2:RunInstances",
"ec2:DescribeSecurityGroups",
"ec2:RevokeSecurityGroupIngress",
"ec2:DescribeImages",
"ec2:DescribeNetworkInterfaces",
"ec2:DescribeAvailabilityZones",
"ec2:ModifyInstanceCreditSpecification",
"ec2:CreateRoute",
"ec2:DescribeVpcs",
"ec2:CreateSecurityGroup",
"ec2:DescribeVolumes",
"ec2:DeleteSecurityGroup",
"ec2:ModifyInstanceAttribute",
"ec2:DescribeSubnets",
"ec2:DescribeRouteTables",
"ec2:AssociateIamInstanceProfile",
"iam:PassRole"
],
"Resource": "*"
}
]
}`

// mended is the same with the comma.
var mended = strings.Replace(installed, "MeterUsage\"\n", "MeterUsage\",\n", 1)

// world is an account with a cluster, and who installs Kip there.
type world struct {
	*testing.T
	aws   ec2.Config
	role  ec2.IAMRole
	api   *apiServer
	model *ec2.Model
	d     Deployment
	said  []string
	// registry is how the registry of Kip's image answers: 0 if it has the image.
	registry int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	for key, value := range map[string]string{
		"AWS_REGION": "", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_PROFILE": "",
		"AWS_ACCESS_KEY_ID": "AKIAADMIN", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_MAX_ATTEMPTS": "1",
	} {
		t.Setenv(key, value)
	}
	w := &world{T: t, api: newAPIServer(t, clusterObjects())}
	cells := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	w.role = ec2.IAMRole{ARN: roleARN, Trust: trust("kip"), Inline: map[string]string{"kip": string(kipaws.CorePolicy())}}
	w.aws = ec2.Config{
		Region: region,
		Sim: sim.Config{Catalogue: []catalog.InstanceType{
			{Name: "t3.micro", MilliCPU: 2000, MemoryBytes: 1 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "us-west-2a",
				Subnet: "subnet-a"}}},
			{Name: "t4g.micro", MilliCPU: 2000, MemoryBytes: 1 << 30, Arch: "arm64", Offerings: []catalog.PurchaseOption{{Zone: "us-west-2a",
				Subnet: "subnet-a"}}},
		}},
		Subnets: []ec2.Subnet{
			{ID: "subnet-a", VPC: "vpc-1", Zone: "us-west-2a"},
			{ID: "subnet-b", VPC: "vpc-1", Zone: "us-west-2b"},
			{ID: "subnet-public", VPC: "vpc-1", Zone: "us-west-2a", Public: true},
		},
		Routes:    []ec2.Route{ec2.NATRoute("vpc-1")},
		Groups:    []ec2.Group{{ID: "sg-00000001", Name: "eks-cluster-sg", VPC: "vpc-1"}, {ID: "sg-00000002", Name: "kip-cells", VPC: "vpc-1"}},
		Images:    []ec2.Image{{ID: "ami-1", Name: "kip-cell-amd64-1", Owner: "self", RootDevice: "/dev/xvda", GiB: 1}},
		Profiles:  []string{"kip-cell"},
		Providers: []cloudmodel.Provider{{Issuer: "https://" + issuer, Audiences: []string{"sts.amazonaws.com"}}},
		Clusters: []ec2.Cluster{{
			Name:     "kip",
			Version:  "1.34",
			Endpoint: w.api.URL,
			VPC:      "vpc-1",
			Subnets:  []string{"subnet-a", "subnet-b", "subnet-public"},
			Group:    "sg-00000001",
			Issuer:   "https://" + issuer,
		}},
	}
	w.d = Deployment{
		Request: Request{
			Cluster:   "kip",
			Region:    region,
			Tag:       "1.0-latest",
			Role:      roleARN,
			Group:     "sg-00000002",
			Profile:   "arn:aws:iam::" + account + ":instance-profile/kip-cell",
			BootImage: DefaultBootImage,
			Folder:    bootImage(t, "amd64"),
		},
		Connect: w.api.connect,
		Say:     func(format string, args ...any) { w.said = append(w.said, fmt.Sprintf(format, args...)) },
		Clock:   &hasty{},
		Registries: roundTripper(func(r *http.Request) (*http.Response, error) {
			recorder := httptest.NewRecorder()
			switch {
			case strings.HasPrefix(r.URL.Path, "/v2/elotl/kip-cell/"):
				served := r.Clone(r.Context())
				if served.Body == nil { // which a server's request always has
					served.Body = http.NoBody
				}
				cells.ServeHTTP(recorder, served)
			case r.URL.Path == "/v2/" || r.Method == http.MethodHead && strings.HasPrefix(r.URL.Path, "/v2/elotl/kip/manifests/") && w.registry == 0:
				recorder.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
				recorder.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
				recorder.Header().Set("Content-Length", "2")
			case w.registry == 0:
				return nil, fmt.Errorf("%s %s is no question about Kip's image", r.Method, r.URL)
			default:
				recorder.WriteHeader(w.registry)
			}
			response := recorder.Result()
			response.Request = r
			return response, nil
		}),
	}
	w.role.Inline["profiles"] = passing(t)
	return w
}

// hasty is a clock that is ahead by all that was waited for, so that no wait takes any time.
type hasty struct {
	clock.RealClock
	ahead time.Duration
}

func (h *hasty) Now() time.Time { return h.RealClock.Now().Add(h.ahead) }

func (h *hasty) After(long time.Duration) <-chan time.Time {
	h.ahead += long
	now := make(chan time.Time, 1)
	now <- h.Now()
	return now
}

// passing is the policy's statement for the roles of cells.
func passing(t *testing.T) string {
	t.Helper()
	var doc struct {
		Version   string
		Statement []map[string]any
	}
	if err := json.Unmarshal(kipaws.Policy(), &doc); err != nil {
		t.Fatal(err)
	}
	doc.Statement = slices.DeleteFunc(doc.Statement, func(s map[string]any) bool { return s["Sid"] != "KipPassesRoles" })
	text, err := json.Marshal(doc)
	if err != nil || len(doc.Statement) != 1 {
		t.Fatal(err, len(doc.Statement))
	}
	return string(text)
}

// bootImage makes a folder as make image does, with a disk of a few blocks.
func bootImage(t *testing.T, arch string) string {
	t.Helper()
	dir, disk := t.TempDir(), bytes.Repeat([]byte{1}, 3<<19)
	sum := sha256.Sum256(disk)
	manifest := fmt.Sprintf(`{"version": "1.0", "arch": %q, "outputs": [{"name": "kip-cell-%s.raw", "bytes": %d, "sha256": %q}]}`,
		arch, arch, len(disk), hex.EncodeToString(sum[:]))
	for file, content := range map[string][]byte{"kip-cell-" + arch + ".raw": disk, "kip-cell-" + arch + ".manifest.json": []byte(manifest)} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// open makes the account, once a test has changed what is in it.
func (w *world) open() {
	w.Helper()
	var err error
	if w.model, err = ec2.New(w.aws); err != nil {
		w.Fatal(err)
	}
	if w.role.ARN != "" {
		if err := w.model.Roles.PutIAMRole(w.role); err != nil {
			w.Fatal(err)
		}
	}
	server := httptest.NewServer(wire.Checked(w, w.model))
	w.Cleanup(func() {
		if err := w.model.Close(); err != nil {
			w.Error(err)
		}
		server.Close()
	})
	w.Setenv("AWS_ENDPOINT_URL", server.URL)
}

func (w *world) run() error {
	w.Helper()
	return w.d.Run(w.Context(), false)
}

// may gives who installs Kip the right to all, and a statement more.
func (w *world) may(statement string) {
	w.Helper()
	policy, err := ec2.ParsePolicy([]byte(`{"Statement": [{"Sid": "All", "Effect": "Allow", "Action": "*", "Resource": "*"}, ` + statement + `]}`))
	if err != nil {
		w.Fatal(err)
	}
	w.aws.Policies = map[string]*ec2.Policy{"AKIAADMIN": policy}
}

// Who has each statement of the policy in docs/boot-image.md may publish, and who lacks one is told which.
func TestWhoMayPublishHasThePolicyOfThePage(t *testing.T) {
	text, err := os.ReadFile("../../deploy/aws/boot-image-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ Statement []map[string]any }
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	rest := `{"Sid": "Rest", "Effect": "Allow", "NotAction": ["ebs:*", "ec2:DescribeImages", "ec2:DescribeSnapshots", "ec2:CreateTags",
		"ec2:RegisterImage"], "Resource": "*"}`
	for _, without := range []string{"", "BeginsSnapshots", "WritesAndRemovesItsOwn", "RegistersImages", "TagsImages", "TagsSnapshots"} {
		statements := []string{rest}
		for _, s := range document.Statement {
			if one, err := json.Marshal(s); s["Sid"] != without && err == nil {
				statements = append(statements, string(one))
			}
		}
		policy, err := ec2.ParsePolicy([]byte(`{"Statement": [` + strings.Join(statements, ", ") + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t)
		w.aws.Images, w.aws.Policies = nil, map[string]*ec2.Policy{"AKIAADMIN": policy}
		w.open()
		err = w.d.Run(t.Context(), true)
		if (err == nil) != (without == "") || err != nil && !strings.Contains(err.Error(), "\n    "+without+": ") {
			t.Errorf("without %q: %v\n%s", without, err, strings.Join(w.said, "\n"))
		}
		if said := strings.Join(w.said, "\n"); strings.Contains(said, "not checked: whether you") {
			t.Errorf("it said %s", said)
		}
	}
}

// deploy.sh goes from an account without a boot image to a node that is Ready, and a second run changes nothing.
func TestKipIsInstalledAndASecondRunLeavesItAsItIs(t *testing.T) {
	w := newWorld(t)
	w.aws.Images = nil
	w.open()
	if err := w.run(); err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(w.said, "\n"))
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "kipctl try") || !strings.Contains(said, "kipctl doctor") {
		t.Errorf("it does not say what proves that Kip works, and what finds why not:\n%s", said)
	}
	const in = "/namespaces/kip/"
	account := "/api/v1" + in + "serviceaccounts/kip-provider"
	if got := w.api.at(account, "metadata", "annotations", wellknown.RoleAnnotation); got != roleARN {
		t.Errorf("the service account's role is %v", got)
	}
	set := "/apis/apps/v1" + in + "statefulsets/kip-provider"
	containers, _ := w.api.at(set, "spec", "template", "spec", "containers").([]any)
	if len(containers) != 1 || containers[0].(object)["image"] != "ghcr.io/elotl/kip:1.0-latest" {
		t.Errorf("the containers are %v", containers)
	} else if policy := containers[0].(object)["terminationMessagePolicy"]; policy != "FallbackToLogsOnError" {
		t.Errorf("of a Kip that ends deploy.sh would not say why: the policy of its message is %v", policy)
	}
	claims, _ := w.api.at(set, "spec", "volumeClaimTemplates").([]any)
	if len(claims) != 1 || claims[0].(object)["spec"].(object)["storageClassName"] != "gp2" {
		t.Errorf("the claims are %v", claims)
	}
	text, _ := w.api.at("/api/v1"+in+"configmaps/kip-provider-config", "data", "provider.yaml").(string)
	c, warnings, err := config.Parse("provider.yaml", []byte(text))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %v in\n%s", err, warnings, text)
	}
	if got := c.Cloud.AWS.Subnets(); !slices.Equal(got, []string{"subnet-a", "subnet-b"}) || !c.Cells.PrivateIPOnly ||
		c.Cloud.AWS.Region != region {
		t.Errorf("cells are in %v of %s", got, c.Cloud.AWS.Region)
	}
	if got := c.Cells.ExtraSecurityGroups; !slices.Equal(got, []string{"sg-00000001", "sg-00000002"}) {
		t.Errorf("cells have the groups %v", got)
	}
	// What is not in the namespace goes with it.
	for _, path := range w.api.paths() {
		owners, _ := w.api.at(path, "metadata", "ownerReferences").([]any)
		ours := strings.Contains(path, "kip") && !strings.HasPrefix(path, "/api/v1/nodes/") && !strings.Contains(path,
			"customresourcedefinitions")
		within := strings.Contains(path, in) || path == "/api/v1/namespaces/kip"
		if ours && !within && (len(owners) != 1 || owners[0].(object)["uid"] != "uid of /api/v1/namespaces/kip") {
			t.Errorf("%s has the owners %v", path, owners)
		}
	}
	if n := len(w.model.Images.All()); n != 1 {
		t.Errorf("there are %d images", n)
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "not checked: whether the driver of disks has its role") {
		t.Errorf("it says nothing of the rights of the driver of disks:\n%s", said)
	}
	// A claim keeps its class, whatever is the default later.
	w.api.objects["/apis/storage.k8s.io/v1/storageclasses/gp3"] = object{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
		"metadata": object{"name": "gp3", "annotations": object{wellknown.DefaultClass: "true"}}, "provisioner": wellknown.EBSDriver}
	calls, before := w.model.Calls(), w.api.paths()
	objects := map[string]any{}
	for _, path := range before {
		objects[path] = w.api.at(path)
	}
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	if after := w.api.paths(); !slices.Equal(after, before) {
		t.Errorf("a second run leaves\n%v\nafter\n%v", after, before)
	}
	for path, was := range objects {
		if now := w.api.at(path); !reflect.DeepEqual(now, was) {
			t.Errorf("a second run changes %s from\n%v\nto\n%v", path, was, now)
		}
	}
	if now := w.model.Calls(); now["StartSnapshot"] != calls["StartSnapshot"] || len(w.model.Images.All()) != 1 {
		t.Error("a second run publishes the boot image again")
	}
}

// Without a folder that has it, deploy.sh takes the boot image from the registry that has Kip's own, and reads it when all is checked.
func TestTheBootImageComesFromTheRegistryOfKipsOwn(t *testing.T) {
	w := newWorld(t)
	disk, err := os.ReadFile(filepath.Join(w.d.Folder, "kip-cell-amd64.raw"))
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.Create(filepath.Join(w.d.Folder, "kip-cell-amd64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(packed)
	archive := tar.NewWriter(z)
	err = archive.WriteHeader(&tar.Header{Name: "disk.raw", Mode: 0o644, Size: int64(len(disk)), Format: tar.FormatGNU})
	if err == nil {
		_, err = archive.Write(disk)
	}
	if err := errors.Join(err, archive.Close(), z.Close(), packed.Close()); err != nil {
		t.Fatal(err)
	}
	index, err := bootimages.Pack(w.d.Folder, []string{"amd64"})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := imagename.NewTag("ghcr.io/elotl/kip-cell:1.0-latest")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index, remote.WithTransport(w.d.Registries)); err != nil {
		t.Fatal(err)
	}
	w.d.Folder, w.aws.Images = t.TempDir(), nil
	w.open()
	if err := w.d.Run(t.Context(), true); err != nil || len(w.model.Snapshots.All()) > 0 {
		t.Fatalf("a check ends with %v, and there are %d snapshots", err, len(w.model.Snapshots.All()))
	}
	if err := w.run(); err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(w.said, "\n"))
	}
	n := len(w.model.Images.All())
	if n != 1 || !strings.Contains(strings.Join(w.said, "\n"), "ghcr.io/elotl/kip-cell:1.0-latest will be published") {
		t.Errorf("there are %d images, and it said\n%s", n, strings.Join(w.said, "\n"))
	}
}

// Each thing that is in the way is named with its cure, before anything is changed.
func TestWhatIsInTheWayIsNamedAndNothingIsChanged(t *testing.T) {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("another")})
	answering := func(status int, body string) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			recorder := httptest.NewRecorder()
			recorder.WriteHeader(status)
			recorder.WriteString(body)
			return recorder.Result(), nil
		})
	}
	for name, test := range map[string]struct {
		change func(w *world)
		words  []string
	}{
		"no such cluster": {func(w *world) { w.d.Cluster = "prod" }, []string{`no cluster "prod" in us-west-2`, "there are kip"}},
		"no cluster at all": {func(w *world) { w.aws.Clusters = nil },
			[]string{`no cluster "kip" in us-west-2`, "is the region right"}},
		"no such region": {func(w *world) {
			w.d.Region = "us-west-9"
			w.d.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				return nil, &net.DNSError{Err: "no such host", Name: r.URL.Host, IsNotFound: true}
			})
		}, []string{"no such region as us-west-9"}},
		"expired token": {func(w *world) {
			w.d.Transport = answering(http.StatusForbidden,
				`<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>`+
					`<Code>ExpiredToken</Code><Message>The security token included in the request is expired</Message></Error></ErrorResponse>`)
		}, []string{"credentials have expired", "aws sso login"}},
		"IPv6": {func(w *world) { w.aws.Clusters[0].Family = "ipv6" }, []string{"kip is an IPv6 cluster", "ipFamily ipv4"}},
		"a kubeconfig of another cluster": {func(w *world) { w.aws.Clusters[0].Endpoint = "https://AAAA.gr7.us-west-2.eks.amazonaws.com" },
			[]string{"which is no cluster of EKS", "aws eks update-kubeconfig --name kip --region us-west-2"}},
		"another CA": {func(w *world) {
			w.aws.Clusters[0].Endpoint, w.aws.Clusters[0].CA = "https://AAAA.gr7.us-west-2.eks.amazonaws.com", ca
		}, []string{"aws eks update-kubeconfig"}},
		"a private endpoint": {func(w *world) { w.aws.Clusters[0].Private = true; w.api.Close() },
			[]string{"private endpoint alone", "VPC vpc-1"}},
		"an endpoint for other networks": {func(w *world) { w.aws.Clusters[0].PublicFrom = []string{"192.0.2.0/24"}; w.api.Close() },
			[]string{"lets in 192.0.2.0/24 alone (publicAccessCidrs)", "publicAccessCidrs=192.0.2.0/24,ADDRESS/32"}},
		"no right to definitions": {func(w *world) { w.api.denied = "customresourcedefinitions" },
			[]string{"you may not change CustomResourceDefinitions", "cluster admin"}},
		"the secret key as the guide of 2020 calls it": {func(w *world) {
			w.Setenv("AWS_SECRET_ACCESS_KEY", "")
			w.Setenv("AWS_SECRET_KEY_ID", "secret")
		}, []string{`AWS_SECRET_KEY_ID is set, which AWS does not read: export AWS_SECRET_ACCESS_KEY="$AWS_SECRET_KEY_ID"`}},
		"who has no access": {func(w *world) { w.api.status = http.StatusUnauthorized }, []string{"does not know you",
			"aws eks create-access-entry"}},
		"an old cluster":    {func(w *world) { w.api.version = "v1.29.3-eks-1" }, []string{"Kubernetes v1.29.3-eks-1", "1.30 or later"}},
		"no right to roles": {func(w *world) { w.api.denied = "clusterroles" }, []string{"you may not apply ClusterRole", "cluster admin"}},
		"no right to sets":  {func(w *world) { w.api.denied = "statefulsets" }, []string{"you may not patch statefulsets.apps in namespace kip"}},
		"no DNS": {func(w *world) { delete(w.api.objects, "/api/v1/namespaces/kube-system/services/kube-dns") },
			[]string{"no Service kube-system/kube-dns", "--addon-name coredns"}},
		"Auto Mode without DNS": {func(w *world) {
			w.aws.Clusters[0].Auto = true
			delete(w.api.objects, "/api/v1/namespaces/kube-system/services/kube-dns")
		}, []string{"Auto Mode", "aws eks create-addon --region us-west-2 --cluster-name kip --addon-name coredns"}},
		"Auto Mode with public subnets": {func(w *world) {
			w.aws.Clusters[0].Auto, w.aws.Clusters[0].Subnets = true, []string{"subnet-public"}
		}, []string{"route to a NAT gateway"}},
		"public subnets": {func(w *world) { w.aws.Clusters[0].Subnets = []string{"subnet-public"} },
			[]string{"the subnets of cells (subnet-public) have routes to an internet gateway", "NAT gateway", "--subnets=subnet-public"}},
		"no default route": {func(w *world) { w.aws.Routes, w.aws.Clusters[0].Subnets = nil, []string{"subnet-a", "subnet-b"} },
			[]string{"no subnet of the cluster (subnet-a, subnet-b) has a default route", "--subnets"}},
		"a default route to what is gone": {func(w *world) {
			w.aws.Routes[0].Target, w.aws.Routes[0].Instance, w.aws.Clusters[0].Subnets = "", "i-gone", []string{"subnet-a", "subnet-b"}
		}, []string{"no subnet of the cluster (subnet-a, subnet-b) has a default route"}},
		"full private subnets": {func(w *world) { w.aws.Subnets[0].Bits, w.aws.Subnets[1].Bits = 32, 32 },
			[]string{"no subnet has room", "subnet-a in us-west-2a has 0 free addresses", "subnet-b"}},
		"a role that may not pass the cells'": {func(w *world) { delete(w.role.Inline, "profiles") },
			[]string{"may not pass arn:aws:iam::123456789012:role/kip-cell", "aws iam put-role-policy --role-name kip-enterprise",
				`"Resource":["arn:aws:iam::123456789012:role/kip-cell"]`, `"Action":["iam:PassRole"]`}},
		"trust that denies": {func(w *world) {
			w.role.Trust = strings.Replace(trust("kip"), "]}", `, {"Effect": "Deny", "Principal": {"Federated": "*"}, "Action": "*"}]}`, 1)
		}, []string{"a Deny statement in the trust policy of role kip-enterprise"}},
		"Pod Identity of another role": {func(w *world) {
			podIdentity(w)
			w.aws.Clusters[0].Associations[0].Role = "arn:aws:iam::" + account + ":role/other"
		}, []string{"kip/kip-provider of cluster kip has the role arn:aws:iam::123456789012:role/other by EKS Pod Identity",
			"aws eks delete-pod-identity-association --region us-west-2 --cluster-name kip --association-id a-1"}},
		"Pod Identity with another target role": {func(w *world) {
			podIdentity(w)
			w.aws.Clusters[0].Associations[0].Target = "arn:aws:iam::" + account + ":role/other"
		}, []string{"kip/kip-provider of cluster kip has the role arn:aws:iam::123456789012:role/other by EKS Pod Identity",
			"--association-id a-1"}},
		"Pod Identity of a role that is gone": {func(w *world) {
			podIdentity(w)
			w.role = ec2.IAMRole{}
		}, []string{"no role kip-enterprise", "aws iam create-role --role-name kip-enterprise --assume-role-policy-document '{",
			`"Service":"pods.eks.amazonaws.com"`, `"sts:TagSession"`}},
		"Pod Identity whose sessions have no tags": {func(w *world) {
			podIdentity(w)
			w.aws.Clusters[0].Associations[0].NoTags = true
			w.role.Trust = strings.Replace(w.role.Trust, `"Effect"`, `"Condition": {"StringEquals": {"aws:RequestTag/kubernetes-namespace":
				"kip"}}, "Effect"`, 1)
		}, []string{"the role kip-enterprise does not let pods.eks.amazonaws.com assume it, by which"}},
		"Pod Identity without trust": {func(w *world) {
			podIdentity(w)
			w.role.Trust = trust("kip")
		}, []string{"the role kip-enterprise does not let pods.eks.amazonaws.com assume it and tag the session", "the others stay",
			`"Service":"pods.eks.amazonaws.com"`, `"sts:TagSession"`, issuer}},
		"Pod Identity for another namespace": {func(w *world) {
			podIdentity(w)
			w.role.Trust = strings.Replace(w.role.Trust, `"Effect"`, `"Condition": {"StringEquals": {"aws:RequestTag/kubernetes-namespace":
				"kube-system"}}, "Effect"`, 1)
		}, []string{"does not let pods.eks.amazonaws.com assume it"}},
		"Pod Identity without its agent": {func(w *world) {
			podIdentity(w)
			delete(w.api.objects, agentPath)
		}, []string{"no DaemonSet kube-system/eks-pod-identity-agent",
			"aws eks create-addon --region us-west-2 --cluster-name kip --addon-name eks-pod-identity-agent"}},
		"Pod Identity with agents that are not Ready": {func(w *world) {
			podIdentity(w)
			w.api.objects[agentPath]["status"] = object{"desiredNumberScheduled": 2, "numberReady": 0}
		}, []string{"no pod of the DaemonSet kube-system/eks-pod-identity-agent is Ready, of 2",
			"kubectl --namespace kube-system describe pods --selector app.kubernetes.io/name=eks-pod-identity-agent"}},
		"Pod Identity in Auto Mode with another node": {func(w *world) {
			podIdentity(w)
			w.aws.Clusters[0].Auto = true
			delete(w.api.objects, agentPath)
			w.api.objects["/api/v1/nodes/auto"] = nodeObject("auto", object{wellknown.ComputeType: "auto"})
			w.api.objects["/api/v1/nodes/mine"] = nodeObject("mine", object{})
		}, []string{"no DaemonSet kube-system/eks-pod-identity-agent"}},
		"no such image": {func(w *world) { w.registry = http.StatusNotFound },
			[]string{`IMAGE_TAG is "1.0-latest": there is no image ghcr.io/elotl/kip:1.0-latest`, "IMAGE_REGISTRY"}},
		"no driver of disks": {func(w *world) { delete(w.api.objects, "/apis/storage.k8s.io/v1/csidrivers/"+wellknown.EBSDriver) },
			[]string{"no driver for disks", "eksctl utils associate-iam-oidc-provider --cluster kip --region us-west-2 --approve",
				"arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy", "--region us-west-2 --cluster-name kip --addon-name aws-ebs-csi-driver " +
					"--service-account-role-arn arn:aws:iam::123456789012:role/kip-ebs-driver"}},
		"full subnets": {func(w *world) {
			for i := range w.aws.Subnets {
				w.aws.Subnets[i].Bits = 32
			}
		}, []string{"no subnet has room", "subnet-a in us-west-2a has 0 free addresses", "--subnets"}},
		"no such group":   {func(w *world) { w.d.Group = "sg-00000009" }, []string{"no security group sg-00000009 in vpc-1"}},
		"no such profile": {func(w *world) { w.aws.Profiles = []string{} }, []string{"no instance profile kip-cell"}},
		"no role": {func(w *world) { w.role = ec2.IAMRole{} }, []string{"no role kip-enterprise",
			"aws iam create-role --role-name kip-enterprise --assume-role-policy-document '{", "system:serviceaccount:kip:kip-provider",
			"aws iam put-role-policy --role-name kip-enterprise --policy-name kip-passes-roles"}},
		"a role without trust": {func(w *world) {
			w.role.Trust = `{"Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}`
		}, []string{"trusts no identity provider", "the others stay", `"Service":"ec2.amazonaws.com"`, issuer}},
		"trust of another namespace": {func(w *world) { w.role.Trust = trust("elotl-kip") },
			[]string{":sub does not allow system:serviceaccount:kip:kip-provider"}},
		"no identity provider": {func(w *world) { w.aws.Providers = nil },
			[]string{"eksctl utils associate-iam-oidc-provider --cluster kip --region us-west-2 --approve"}},
		"the policy of the first documents": {func(w *world) { w.role.Inline = map[string]string{"kip": mended} },
			[]string{"lacks rights that Kip needs", "KipReads: ec2:DescribeCapacityReservations", "ec2:DescribeInstanceTypes", "kipctl eks policy",
				"KipMakesDisks: ec2:CreateVolume"}},
		"no right to publish the boot image": {func(w *world) {
			w.aws.Images = nil
			w.may(`{"Sid": "Not", "Effect": "Deny", "Action": "ebs:StartSnapshot", "Resource": "*"}`)
		}, []string{"lack rights to publish the boot image", "BeginsSnapshots: ebs:StartSnapshot (denied)", "deploy/aws/boot-image-policy.json",
			"kipctl image publish --region us-west-2 --arch amd64"}},
		"no boot image": {func(w *world) { w.d.Folder, w.aws.Images = w.TempDir(), nil }, []string{"no boot image kip-cell-* in us-west-2",
			"make image IMAGE_ARCH=amd64", "find the boot image ghcr.io/elotl/kip-cell:1.0-latest for amd64"}},
		"a boot image of another architecture": {func(w *world) {
			w.d.BootImage, w.d.Type = "ami-arm", "t3.micro"
			w.aws.Images = []ec2.Image{{ID: "ami-arm", Name: "mine", Owner: "self", Architecture: "arm64", RootDevice: "/dev/xvda", GiB: 1}}
		}, []string{"ami-arm is for arm64, and t3.micro is amd64"}},
		"another Kip": {func(w *world) {
			w.api.objects["/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kip."+node] = object{
				"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": "kip." + node},
				"subjects": []any{object{"kind": "ServiceAccount", "name": "kip-provider", "namespace": "elotl-kip"}},
			}
		}, []string{"is of the Kip in namespace elotl-kip", "NAMESPACE=elotl-kip"}},
		"a node of a Kip whose namespace was deleted": {func(w *world) {
			w.api.objects["/api/v1/nodes/"+node] = object{"apiVersion": "v1", "kind": "Node",
				"metadata": object{"name": node, "labels": object{apiv1.LabelController: "abc"}}}
		}, []string{"whose store is gone (controller ID abc)", "kipctl cleanup -f provider.yaml --controller abc --yes",
			"kubectl delete nodes -l kip.elotl.co/controller=abc"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			test.change(w)
			w.open()
			err := w.run()
			problems, is := errors.AsType[Problems](err)
			if !is {
				t.Fatalf("it ended with %v\n%s", err, strings.Join(w.said, "\n"))
			}
			for _, word := range test.words {
				if !strings.Contains(problems.Error(), word) {
					t.Errorf("it lacks %q:\n%v", word, problems)
				}
			}
			if len(problems) != 1 {
				t.Errorf("there are %d problems:\n%v", len(problems), problems)
			}
			if len(w.api.writes) > 0 || len(w.model.Snapshots.All()) > 0 {
				t.Errorf("it has changed %v, and made %d snapshots", w.api.writes, len(w.model.Snapshots.All()))
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Where IAM may not be asked to simulate, the role's policies are read, with the same outcome; who may do neither is told so.
func TestTheRoleIsCheckedByWhatTheCallerMayAsk(t *testing.T) {
	for rights, words := range map[string]string{
		`"iam:SimulatePrincipalPolicy"`: "KipReads: ec2:DescribeCapacityReservations",
		`["iam:SimulatePrincipalPolicy", "iam:GetRole*", "iam:ListRolePolicies", "iam:GetOpenIDConnectProvider"]`: "",
	} {
		w := newWorld(t)
		w.role.Inline = map[string]string{}
		w.role.Attached = map[string]string{"first": mended}
		w.may(`{"Sid": "Not", "Effect": "Deny", "Action": ` + rights + `, "Resource": "*"}`)
		w.open()
		err := w.run()
		if words == "" {
			if said := strings.Join(w.said, "\n"); err != nil || !strings.Contains(said, "not checked: what role kip-enterprise may do") ||
				!strings.Contains(said, "not checked: the role's trust policy") {
				t.Errorf("without %s: %v\n%s", rights, err, said)
			}
		} else if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "KipMakesDisks: ec2:CreateVolume") {
			t.Errorf("without %s: %v", rights, err)
		}
	}
}

// The first Kip's policy is not even JSON.
func TestAMissingCommaIsNamed(t *testing.T) {
	_, _, err := awseks.Lacks([]byte(installed))
	if want := `a comma is missing at the end of line 9, after "aws-marketplace:MeterUsage"`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v", err)
	}
	needed, optional, err := awseks.Lacks([]byte(mended))
	if err != nil || !slices.Contains(needed["KipReads"], "ec2:DescribeInstanceTypes") || slices.Contains(needed["KipReads"],
		"ec2:DescribeInstances") ||
		!slices.Equal(optional["KipReadsPrices"], []string{"pricing:GetProducts"}) {
		t.Errorf("it lacks %v and %v, %v", needed, optional, err)
	}
	if needed, optional, err := awseks.Lacks(kipaws.CorePolicy()); err != nil || len(needed)+len(optional) > 0 {
		t.Errorf("Kip's own lacks %v and %v, %v", needed, optional, err)
	}
}

const agentPath = "/apis/apps/v1/namespaces/kube-system/daemonsets/" + wellknown.PodIdentityAgent

// podIdentity has EKS give Kip's pod its role, for which the cluster needs no identity provider in IAM.
func podIdentity(w *world) {
	w.aws.Providers = nil
	w.aws.Clusters[0].Associations = []ec2.Association{{ID: "a-1", Namespace: "kip", ServiceAccount: "kip-provider", Role: roleARN}}
	w.role.Trust = `{"Statement": [{"Effect": "Allow", "Principal": {"Service": "pods.eks.amazonaws.com"}, "Action": ["sts:AssumeRole", "sts:TagSession"]}]}`
	w.api.objects[agentPath] = object{"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": object{"name": wellknown.PodIdentityAgent, "namespace": "kube-system"},
		"spec":     object{"selector": object{"matchLabels": object{"app.kubernetes.io/name": wellknown.PodIdentityAgent}}},
		"status":   object{"desiredNumberScheduled": 2, "numberReady": 1}}
}

func nodeObject(name string, labels object) object {
	return object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": name, "labels": labels}}
}

func TestKipMayHaveItsRoleByPodIdentity(t *testing.T) {
	for _, auto := range []bool{false, true} {
		w := newWorld(t)
		podIdentity(w)
		if w.aws.Clusters[0].Auto = auto; auto {
			delete(w.api.objects, agentPath) // each of its nodes has one that is no pod
			w.api.objects["/api/v1/nodes/auto"] = nodeObject("auto", object{wellknown.ComputeType: "auto"})
			w.api.objects["/api/v1/nodes/virtual"] = nodeObject("virtual", object{apiv1.LabelController: "another"})
		}
		w.open()
		if err := w.run(); err != nil {
			t.Errorf("Auto Mode %v: %v\n%s", auto, err, strings.Join(w.said, "\n"))
		}
	}
}

// The target role of an association has the rights, and the other one the trust.
func TestKipMayHaveATargetRoleByPodIdentity(t *testing.T) {
	for lacks, policy := range map[string]string{
		"": string(kipaws.CorePolicy()),
		"the role kip-enterprise lacks rights that Kip needs": mended,
	} {
		w := newWorld(t)
		podIdentity(w)
		by := ec2.IAMRole{ARN: "arn:aws:iam::" + account + ":role/eks", Trust: w.role.Trust}
		w.aws.Clusters[0].Associations[0].Role, w.aws.Clusters[0].Associations[0].Target = by.ARN, roleARN
		w.aws.Clusters[0].Associations[0].Policy = "{}"
		w.role.Trust, w.role.Inline["kip"] = `{"Statement": []}`, policy
		w.open()
		if err := w.model.Roles.PutIAMRole(by); err != nil {
			t.Fatal(err)
		}
		if err := w.run(); (err == nil) != (lacks == "") || err != nil && !strings.Contains(err.Error(), lacks) {
			t.Errorf("it ended with %v, want %q", err, lacks)
		}
		for _, words := range []string{"whether role " + by.ARN + ", which EKS assumes for the association a-1, may assume the target role kip-enterprise",
			"the policy of the EKS Pod Identity association a-1"} {
			if said := strings.Join(w.said, "\n"); !strings.Contains(said, "not checked: "+words) {
				t.Errorf("it does not say %q:\n%s", words, said)
			}
		}
	}
}

// Without session tags a role that is not bound to them needs no right to write them.
func TestPodIdentityWithoutTagsNeedsNoneInTheTrust(t *testing.T) {
	w := newWorld(t)
	podIdentity(w)
	w.aws.Clusters[0].Associations[0].NoTags = true
	w.role.Trust = `{"Statement": [{"Effect": "Allow", "Principal": {"Service": "pods.eks.amazonaws.com"}, "Action": "sts:AssumeRole"}]}`
	w.open()
	if err := w.run(); err != nil {
		t.Error(err)
	}
}

// A registry that refuses or fails does not say that an image is missing: a node may have other credentials, or another way to it.
func TestARegistryThatDoesNotAnswerIsNotChecked(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusServiceUnavailable} {
		w := newWorld(t)
		w.registry = status
		w.open()
		err := w.d.Run(t.Context(), true)
		said := strings.Join(w.said, "\n")
		if err != nil || !strings.Contains(said, "not checked: whether there is an image ghcr.io/elotl/kip:1.0") {
			t.Errorf("status %d: %v\n%s", status, err, said)
		}
	}
}

// In Auto Mode with CoreDNS Kip's store gets a disk of Auto Mode's driver, for which EKS makes no StorageClass.
func TestAutoModeGetsAStorageClass(t *testing.T) {
	w := newWorld(t)
	w.aws.Clusters[0].Auto = true
	maps := w.api.objects
	delete(maps, "/apis/storage.k8s.io/v1/storageclasses/gp2")
	delete(maps, "/apis/storage.k8s.io/v1/csidrivers/"+wellknown.EBSDriver)
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	if got := w.api.at("/apis/storage.k8s.io/v1/storageclasses/"+storeClass, "provisioner"); got != wellknown.AutoDriver {
		t.Errorf("the provisioner is %v", got)
	}
	if err := w.run(); err != nil {
		t.Errorf("the second run: %v", err)
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	good := Request{Cluster: "kip", Region: region, Tag: "1", Role: roleARN, Namespace: "kip", Registry: bootimages.Published}
	if p := good.check(); len(p) > 0 {
		t.Fatal(p)
	}
	for _, test := range []struct {
		change func(*Request)
		words  string
	}{
		{func(r *Request) { r.Cluster = "arn:aws:eks:us-west-2:1:cluster/kip" }, "CLUSTER_NAME is"},
		{func(r *Request) { r.Region = "us-west-2a" }, "USE_REGION is \"us-west-2a\": want a region"},
		{func(r *Request) { r.Tag = "kip:1" }, "IMAGE_TAG is"},
		{func(r *Request) { r.Role = "kip" }, "KIP_SERVICE_ACCOUNT_ROLE_ARN is \"kip\": want the ARN"},
		{func(r *Request) { r.Namespace = "Kip" }, "NAMESPACE is"},
		{func(r *Request) { r.Registry = "https://ghcr.io/elotl" }, "IMAGE_REGISTRY is"},
		{func(r *Request) { r.Profile = "kip-cell" }, "CELL_INSTANCE_PROFILE_ARN is"},
		{func(r *Request) { r.Group = "kip-cells" }, "KIP_CELL_SG is"},
		{func(r *Request) { r.NFS = "fs-1.efs.us-west-2.amazonaws.com:/" }, "not in this release"},
	} {
		r := good
		test.change(&r)
		if p := r.check(); len(p) != 1 || !strings.Contains(p[0], test.words) {
			t.Errorf("%s: %q", test.words, p)
		}
	}
}

// Who sets the trust policy that is printed keeps all others whom the role trusts.
func TestThePrintedTrustPolicyKeepsOthers(t *testing.T) {
	const other = `{"Sid":"Node","Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}`
	for name, was := range map[string]string{
		"a list":        `{"Version": "2012-10-17", "Id": "mine", "Statement": [` + other + `]}`,
		"one statement": `{"Version": "2012-10-17", "Id": "mine", "Statement": ` + other + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.role.Trust = was
			w.open()
			err := w.run()
			if err == nil || !strings.Contains(err.Error(), "--policy-document '{") {
				t.Fatalf("it ended with %v", err)
			}
			_, document, _ := strings.Cut(err.Error(), "--policy-document '")
			document, _, _ = strings.Cut(document, "'")
			if !strings.Contains(document, other) || !strings.Contains(document, `"Id":"mine"`) {
				t.Errorf("the document is %s", document)
			}
			w.role.Trust = document
			if err := w.model.Roles.PutIAMRole(w.role); err != nil {
				t.Fatal(err)
			}
			if err := w.run(); err != nil {
				t.Errorf("with the printed document: %v", err)
			}
		})
	}
}

// What Kip said when it ended explains why it waits to start again, and nothing else that its pod waits for.
func TestTheLastWordsOfAKipThatEndedAreSaid(t *testing.T) {
	const words = "kip: leadership: read the catalogue of cloud aws: find the subnets of the cells"
	for _, test := range []struct{ reason, message, said string }{
		{"CrashLoopBackOff", "back-off 10s", words},
		{"ImagePullBackOff", "Back-off pulling image", "Back-off pulling image"},
		{"CreateContainerConfigError", "configmap not found", "configmap not found"},
	} {
		k := Kubernetes{Client: fake.NewClientset(
			&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kip", Name: name}},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kip", Name: node},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: test.reason, Message: test.message}},
					LastTerminationState: corev1.ContainerState{
						Terminated: &corev1.ContainerStateTerminated{Message: "level=INFO msg=starting\n" + words + "\n"},
					},
				}}},
			})}
		if got, err := k.waitsFor(t.Context(), "kip"); err != nil || got != "Kip's pod: "+test.reason+": "+test.said {
			t.Errorf("it waits for %q (%v)", got, err)
		}
	}
}

// A role that is not there hides no other problem.
func TestWithoutARoleTheIdentityProviderIsChecked(t *testing.T) {
	w := newWorld(t)
	w.role, w.aws.Providers = ec2.IAMRole{}, nil
	w.open()
	if err := w.run(); err == nil || !strings.Contains(err.Error(), "no role kip-enterprise") ||
		!strings.Contains(err.Error(), "eksctl utils associate-iam-oidc-provider") {
		t.Errorf("it ended with %v", err)
	}
}

// installedConfig is the configuration that is installed.
func (w *world) installedConfig() *config.Config {
	w.Helper()
	text, _ := w.api.at("/api/v1/namespaces/kip/configmaps/kip-provider-config", "data", "provider.yaml").(string)
	c, _, err := config.Parse("provider.yaml", []byte(text))
	if err != nil {
		w.Fatalf("%v:\n%s", err, text)
	}
	return c
}

// A subnet that is full gets no cells, unless a Kip has cells there. Subnets without a default route get none.
func TestFullSubnetsOfAnInstalledKipStay(t *testing.T) {
	w := newWorld(t)
	w.aws.Subnets[1].Bits = 32
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	if got := w.installedConfig().Cloud.AWS.Subnets(); !slices.Equal(got, []string{"subnet-a"}) {
		t.Errorf("cells are in %v", got)
	}
	w.aws.Subnets[0].Bits = 32
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	c := w.installedConfig()
	if got := c.Cloud.AWS.Subnets(); !slices.Equal(got, []string{"subnet-a"}) || c.Cloud.AWS.PublicAddress || !c.Cells.PrivateIPOnly {
		t.Errorf("cells are in %v, with public addresses: %v", got, c.Cloud.AWS.PublicAddress)
	}
}

// Subnets that are named need no default route: the VPC may have endpoints.
func TestNamedSubnetsNeedNoDefaultRoute(t *testing.T) {
	w := newWorld(t)
	w.aws.Routes, w.d.Subnets = nil, []string{"subnet-a"}
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "subnet-a: no default route") {
		t.Errorf("it said %s", said)
	}
}

// Profiles of the installed configuration are the user's: another run leaves them, and the API server asks Kip about their pods.
func TestProfilesOfAnInstalledKipStayAndGetTheirWebhooks(t *testing.T) {
	w := newWorld(t)
	w.open()
	for _, step := range []struct {
		more  string // that the user writes into provider.yaml; "" for nothing
		paths []string
	}{
		{"", []string{"/pods", "/namespaced-pods", "/resizes"}},
		{"{profiles: [{name: batch, namespaces: [ml], mode: burst}]}",
			[]string{"/pods", "/namespaced-pods", "/profiled-pods", "/resizes", "/bindings"}},
		{"", []string{"/pods", "/namespaced-pods", "/profiled-pods", "/resizes", "/bindings"}},
		{"null", []string{"/pods", "/namespaced-pods", "/resizes"}},
	} {
		w.writeAdmission(step.more)
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		var paths []string
		hooks := w.api.at("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"+node, "webhooks").([]any)
		for _, h := range hooks {
			service := h.(object)["clientConfig"].(object)["service"].(object)
			paths = append(paths, service["path"].(string))
			if service["namespace"] != "kip" || service["name"] != "kip-provider-webhook" {
				t.Errorf("it asks %v", service)
			}
		}
		if !slices.Equal(paths, step.paths) {
			t.Errorf("with %q more it asks at %q, want %q", step.more, paths, step.paths)
		}
		if got := w.installedConfig().Admission.Profiles; (len(got) > 0) != (len(paths) == 5) {
			t.Errorf("with %q more the profiles are %+v", step.more, got)
		}
	}
	w.writeAdmission("{profiles: [{name: batch, modus: burst}]}")
	if err := w.run(); err == nil || !strings.Contains(err.Error(), "modus") {
		t.Errorf("with a profile that is none: %v", err)
	}
}

// If every profile names its namespaces, the API server asks Kip about pods of these alone. Else deploy.sh says that it asks about all.
func TestProfilesThatNameTheirNamespacesAreAskedAboutThereAlone(t *testing.T) {
	w := newWorld(t)
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	const others = "all namespaces but kube-system, kube-public, kube-node-lease and kip,"
	for _, step := range []struct{ admission, operator, values, says string }{
		{"{profiles: [{name: batch, namespaces: [ml, etl], mode: burst}, {name: web, namespaces: [shop, ml], gpu: true, mode: only}]}",
			"In", "[etl ml shop]", "pods of etl, ml, shop, which"},
		{"{profiles: [{name: batch, namespaces: [kube-system], mode: burst}]}", "In", "[kube-system]", "pods of kube-system, which"},
		{"{profiles: [{name: batch, namespaces: [ml, 'etl-*'], mode: burst}]}", "NotIn", "[kube-system kube-public kube-node-lease kip]", others},
		{"{profiles: [{name: batch, namespaces: [ml], mode: burst}, {name: gpus, gpu: true, mode: only}]}", "NotIn",
			"[kube-system kube-public kube-node-lease kip]", others},
	} {
		w.writeAdmission(step.admission)
		w.said = nil
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(w.said, "\n"); !strings.Contains(said, step.says) {
			t.Errorf("with %s it said %s, want %q", step.admission, said, step.says)
		}
		narrowed := 0
		for _, h := range w.api.at("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"+node, "webhooks").([]any) {
			hook := h.(object)
			if hook["name"] != "profiles.kip.elotl.co" && hook["name"] != "bindings.kip.elotl.co" {
				continue
			}
			narrowed++
			by := hook["namespaceSelector"].(object)["matchExpressions"].([]any)[0].(object)
			if by["key"] != "kubernetes.io/metadata.name" || by["operator"] != step.operator || fmt.Sprint(by["values"]) != step.values {
				t.Errorf("with %s %s asks by %v, want %s %s", step.admission, hook["name"], by, step.operator, step.values)
			}
		}
		if narrowed != 2 {
			t.Errorf("with %s there are %d webhooks of profiles", step.admission, narrowed)
		}
	}
}

// What somebody has written into the installed configuration stays, grants above all. What the flags and the account say is written anew.
func TestWhatIsWrittenIntoTheInstalledConfigurationStays(t *testing.T) {
	w := newWorld(t)
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	w.write("{namespaces: [{namespace: team-a, allowMetadata: true}]}", "cells", "grants")
	w.write("[{host: registry.example, plainHTTP: true}]", "cells", "registries")
	w.write("{cpu: 7, memory: auto}", "kubelet", "capacity")
	w.write("[{launchTypes: [spot]}]", "nodes")
	w.write("true", "cells", "privateIPOnly")
	w.write("m5.large", "cells", "defaultInstanceType")
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	c := w.installedConfig()
	if g := c.Cells.Grants.Namespaces; len(g) != 1 || g[0].Namespace != "team-a" {
		t.Errorf("the grants are %+v", g)
	}
	if len(c.Cells.Registries) != 1 || c.Kubelet.Capacity.Cpu().Value() != 7 || len(c.Nodes) != 1 || c.AutoNodes != "" {
		t.Errorf("of what was written there is %+v, %v, %+v", c.Cells.Registries, c.Kubelet.Capacity, c.Nodes)
	}
	if c.Cells.DefaultInstanceType == "m5.large" {
		t.Error("the type that --instance-type says is not written anew")
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "cells.grants of the installed provider.yaml stay as they are") {
		t.Errorf("it said %s", said)
	}
	w.write("of many kinds", "cells")
	if err := w.run(); err == nil || !strings.Contains(err.Error(),
		"cells of the installed provider.yaml is of many kinds: want keys and values") {
		t.Errorf("with cells that are none: %v", err)
	}
}

// A provider.yaml that cannot be read is not replaced: all that somebody has written into it would be gone.
func TestAnInstalledConfigurationThatIsNoYAMLIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	w.api.mu.Lock()
	w.api.objects["/api/v1/namespaces/kip/configmaps/kip-provider-config"]["data"].(object)["provider.yaml"] = "cells: {grants"
	w.api.mu.Unlock()
	if err := w.run(); err == nil || !strings.Contains(err.Error(), "provider.yaml of ConfigMap kip/kip-provider-config is not valid YAML") {
		t.Errorf("it says %v", err)
	}
}

// DaemonSets that the installed configuration names stay, too, and the API server asks Kip about these alone.
func TestDaemonSetsOfAnInstalledKipStayAndGetTheirWebhook(t *testing.T) {
	w := newWorld(t)
	w.open()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ sets, admission, asks string }{
		{sets: "[{namespace: logging, name: shipper}, {namespace: agents}]",
			asks: `(request.namespace == "logging" && object.metadata.name == "shipper") ||` + "\n" + `(request.namespace == "agents")`},
		{admission: "{profiles: [{name: batch, namespaces: [ml], mode: burst}]}",
			asks: `(request.namespace == "logging" && object.metadata.name == "shipper") ||` + "\n" + `(request.namespace == "agents")`},
		{sets: "null"},
	} {
		w.writeAdmission(step.admission)
		w.write(step.sets, "cells", "daemonSets")
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		asks := ""
		for _, h := range w.api.at("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"+node, "webhooks").([]any) {
			hook := h.(object)
			if service := hook["clientConfig"].(object)["service"].(object); service["path"] == "/daemonsets" {
				asks = hook["matchConditions"].([]any)[0].(object)["expression"].(string)
				if service["namespace"] != "kip" || hook["failurePolicy"] != "Ignore" {
					t.Errorf("it asks %+v", hook)
				}
			}
		}
		if asks != step.asks {
			t.Errorf("with %+v it asks by %q", step, asks)
		}
		if got := w.installedConfig().Cells.DaemonSets; (len(got) == 2) != (asks != "") {
			t.Errorf("with %+v the sets are %+v", step, got)
		}
	}
}

// writeAdmission writes that part of the installed configuration, in YAML; "" leaves it.
func (w *world) writeAdmission(text string) {
	w.Helper()
	w.write(text, "admission")
}

// write writes a part of the installed configuration, in YAML; "" leaves it.
func (w *world) write(text string, path ...string) {
	w.Helper()
	if text == "" {
		return
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	data := w.api.objects["/api/v1/namespaces/kip/configmaps/kip-provider-config"]["data"].(object)
	var all, part any
	err := yaml.Unmarshal([]byte(data["provider.yaml"].(string)), &all)
	if err == nil {
		err = yaml.Unmarshal([]byte(text), &part)
	}
	if err != nil {
		w.Fatal(err)
	}
	at := all.(object)
	for ; len(path) > 1; path = path[1:] {
		at = at[path[0]].(object)
	}
	at[path[0]] = part
	provider, err := yaml.Marshal(all)
	if err != nil {
		w.Fatal(err)
	}
	data["provider.yaml"] = string(provider)
}

// With an instance profile pods may name that one alone. Without one they may name any, and the risk is said.
func TestPodsMayNameTheGivenProfile(t *testing.T) {
	arn := "arn:aws:iam::" + account + ":instance-profile/kip-cell"
	for profile, want := range map[string][]string{arn: {arn, "kip-cell"}, "": {"*"}} {
		w := newWorld(t)
		w.d.Profile = profile
		w.open()
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		if g := w.installedConfig().Cells.Grants.Namespaces; len(g) != 1 || !slices.Equal(g[0].InstanceProfiles, want) {
			t.Errorf("with profile %q the grants are %v", profile, g)
		}
		said := strings.Join(w.said, "\n")
		if any := strings.Contains(said, "may name any instance profile"); any != (profile == "") {
			t.Errorf("with profile %q it said %q", profile, w.said)
		}
		if !strings.Contains(said, "any security group of the VPC") || !strings.Contains(said, "metadata service") {
			t.Errorf("with profile %q it says nothing of groups, or of the metadata service: %q", profile, w.said)
		}
	}
}

// A pod with a wrong image stays with its StatefulSet's older template until somebody deletes it.
func TestAWrongTagIsOvercome(t *testing.T) {
	w := newWorld(t)
	w.open()
	w.api.pulls = "ghcr.io/elotl/kip:1.0"
	w.d.Tag = "wrong"
	if err := w.run(); err == nil || !strings.Contains(err.Error(), "ImagePullBackOff") || len(w.api.deleted) > 0 {
		t.Fatalf("with a wrong tag it ended with %v, and deleted %v", err, w.api.deleted)
	}
	w.d.Tag = "1.0"
	if err := w.run(); err != nil {
		t.Fatalf("with the right tag it ended with %v", err)
	}
	if !slices.Equal(w.api.deleted, []string{"/api/v1/namespaces/kip/pods/kip-provider-0"}) {
		t.Errorf("it deleted %v", w.api.deleted)
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "of an older template and not Ready: deleting it") {
		t.Errorf("it said %s", said)
	}
}

// Where public subnets are named, cells get public addresses; --check changes nothing.
func TestCellsOfPublicSubnetsGetPublicAddresses(t *testing.T) {
	w := newWorld(t)
	w.d.Subnets = []string{"subnet-public"}
	w.open()
	if err := w.d.Run(t.Context(), true); err != nil || len(w.api.writes) > 0 || len(w.model.Snapshots.All()) > 0 {
		t.Fatalf("a check ends with %v, and has changed %v", err, w.api.writes)
	}
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	text, _ := w.api.at("/api/v1/namespaces/kip/configmaps/kip-provider-config", "data", "provider.yaml").(string)
	c, _, err := config.Parse("provider.yaml", []byte(text))
	if err != nil || !c.Cloud.AWS.PublicAddress || c.Cells.PrivateIPOnly {
		t.Errorf("%v:\n%s", err, text)
	}
	said := strings.Join(w.said, "\n")
	if !strings.Contains(said, "--region us-west-2 --instance-id NODE --http-put-response-hop-limit 2. Then every pod on that node can") {
		t.Errorf("it said %q", w.said)
	}
}

// Through a tunnel the cluster is known by its CA.
func TestAClusterIsKnownByItsCA(t *testing.T) {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("its own")})
	c := awseks.Cluster{Name: "kip", Endpoint: "https://AAAA.gr7.us-west-2.eks.amazonaws.com", CA: ca}
	for _, test := range []struct {
		k    Kubernetes
		same bool
	}{
		{Kubernetes{Host: "https://aaaa.gr7.us-west-2.eks.amazonaws.com"}, true},
		{Kubernetes{Host: "https://127.0.0.1:8443", CA: append([]byte("\n"), ca...)}, true},
		{Kubernetes{Host: "https://127.0.0.1:8443", CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("another")})}, false},
		{Kubernetes{Host: "https://127.0.0.1:8443"}, false},
	} {
		if err := test.k.sameCluster(c, region); (err == nil) != test.same {
			t.Errorf("%s: %v", test.k.Host, err)
		}
	}
}
