package aws

import (
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

var update = flag.Bool("update", false, "write docs/aws-permissions.md and the policies in deploy/aws")

// The policies are files, too, for Terraform and for aws iam create-policy.
func TestPermissionsPage(t *testing.T) {
	for path, want := range map[string]string{
		"../../../docs/aws-permissions.md":             PermissionsPage(),
		"../../../deploy/aws/kip-policy.json":          string(policyOf(corePermissions).text()),
		"../../../deploy/aws/kip-policy-features.json": string(policyOf(featurePermissions).text()),
	} {
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is out of date: go test ./internal/cloud/aws -run TestPermissionsPage -update (%v)", path, err)
		}
	}
}

// services are what the fields are called that hold the clients, with the services' names to IAM.
var services = map[string]string{"api": "ec2", "sts": "sts", "ecr": "ecr", "pricing": "pricing", "serviceQuotas": "servicequotas"}

// callsOf are the actions that a package's sources ask AWS for: the methods of its clients,
// and the paginators.
func callsOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := method.Sel.Name
			if of, ok := method.X.(*ast.SelectorExpr); ok && services[of.Sel.Name] != "" {
				all = append(all, services[of.Sel.Name]+":"+name)
			}
			if paged := strings.TrimSuffix(strings.TrimPrefix(name, "New"), "Paginator"); "New"+paged+"Paginator" == name {
				all = append(all, "ec2:"+paged)
			}
			return true
		})
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Each policy of the page can be made, also when it is narrowed as the page says.
func TestTheQuotaOfIAMLeavesRoomToNarrowThePolicies(t *testing.T) {
	const subnets = "arn:aws:ec2:us-east-1:123456789012:subnet/subnet-0123456789abcdef0"
	for name, some := range map[string][]permission{"for all": corePermissions, "for features": featurePermissions} {
		text, err := json.Marshal(policyOf(some))
		if err != nil {
			t.Fatal(err)
		}
		narrow := strings.ReplaceAll(string(text), `"`+resource("subnet")+`"`, `"`+subnets+`","`+subnets+`"`)
		narrow = strings.ReplaceAll(narrow, cloud.TagOwner+`":["*"]`, cloud.TagOwner+`":["01234567-89ab-cdef-0123-456789abcdef"]`)
		if narrow == string(text) && name == "for all" || len(narrow) > policyMost {
			t.Errorf("%s: %d characters of %d", name, len(narrow), policyMost)
		}
	}
}

func TestThePolicyHasTheCallsOfTheCodeAndNoOther(t *testing.T) {
	// Asked for by RunInstances, and by cells that pull.
	besides := slices.Concat([]string{
		"iam:PassRole", "iam:CreateServiceLinkedRole",
		"kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncrypt*",
	}, pullActions, fillActions)
	// STS API reference, "GetCallerIdentity": no permissions are required.
	free := func(call string) bool { return call == "sts:GetCallerIdentity" }
	calls := slices.DeleteFunc(callsOf(t, "."), free)
	allowed := slices.DeleteFunc(actions(), func(a string) bool { return slices.Contains(besides, a) })
	if !slices.Equal(calls, allowed) {
		t.Errorf("the code calls %v; the policy allows %v", calls, allowed)
	}
}

// underPolicy is the driver at a model that knows its key, and what that may do.
func underPolicy(t *testing.T, knobs sim.Knobs) (*Cloud, *ec2.Model, *ec2.Policy) {
	t.Helper()
	policy, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	cfg := withRepositories(t, anAccount(knobs))
	cfg.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	cfg.NoSpotRole = true
	cfg.Keys, cfg.DefaultKey = []string{keyOfDisks}, keyOfDisks
	cfg.Reservations = anAccountThatReserves().Reservations
	cfg.Routes = []ec2.Route{{Table: "rtb-main-" + vpc, List: "pl-s3", Target: "vpce-1"}}
	cfg.PrefixLists = map[string][]netip.Prefix{"pl-s3": {netip.MustParsePrefix("203.0.113.0/24")}}
	for id, tag := range map[string]string{"ami-backup": "aws:backup:source-resource", "ami-policy": "aws:dlm:lifecycle-policy-id"} {
		cfg.Images = append(cfg.Images, ec2.Image{
			ID: id, Name: id, Owner: "self", Created: "2026-01-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 4, Tags: map[string]string{tag: "x"},
		})
	}
	cfg.Hosts = []ec2.Host{{ID: "h-1", Family: "c5", Zone: "us-east-1a", VCPUs: 8}}
	model, url := serve(t, cfg)
	lends := settings(url)
	lends.ImageRole, lends.Reservations.IDs = imageRole, []string{"cr-1"}
	lends.Hosts.IDs = []string{"h-1"}
	return open(t, lends), model, policy
}

func TestEachStatementOfThePolicyIsNeeded(t *testing.T) {
	c, model, policy := underPolicy(t, sim.Knobs{OwnedLeft: 1, StoppedKeepsAddresses: true})
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := c.Catalogue(t.Context())
	must("the catalogue", err)
	_, err = c.Bounds(t.Context(), owner)
	must("the bounds", err)
	r := request("t", 2)
	r.InstanceProfile = "arn:aws:iam::123456789012:instance-profile/x"
	got, err := runLaunch(t.Context(), c, r).All()
	must("a launch", err)
	spot := request("spot", 1)
	spot.CapacityType = cloud.Spot
	must("a spot launch", runLaunch(t.Context(), c, spot).Err())
	must("a launch into a reservation", runLaunch(t.Context(), c, into("reserved", "cr-1", 1)).Err())
	must("a launch onto a host", runLaunch(t.Context(), c, ontoHost("hosted", "h-1", 1)).Err())
	id := got[0].ID
	_, err = c.Ways(t.Context(), r.Subnet)
	must("the ways to the internet", err)
	_, err = c.Console(t.Context(), id)
	must("the console", err)
	disk, err := c.CreateDisk(t.Context(), diskRequest("disk"))
	must("a disk", err)
	_, err = c.GrowDisk(t.Context(), disk.ID, 2*disk.SizeBytes)
	must("growing it", err)
	must("attaching it", c.AttachDisk(t.Context(), disk.ID, id))
	must("detaching it", c.DetachDisk(t.Context(), disk.ID, id))
	must("deleting it", c.DeleteDisk(t.Context(), disk.ID))
	drivers := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1, Tags: map[string]string{ebsDriverTag: "true"}})
	must("attaching one of the driver's", c.AttachDisk(t.Context(), drivers, id))
	must("detaching one of the driver's", c.DetachDisk(t.Context(), drivers, id))
	must("tags", c.Tag(t.Context(), cloud.Tagging{ID: id, Tags: map[string]string{
		cloud.TagCell: "a", cloud.TagNamespace: "a", cloud.TagPod: "a", cloud.TagPodUID: "a", cloud.TagName: "a",
	}}).Err())
	must("CPU credits", c.EndBoost(t.Context(), id).Err())
	must("routes", c.Route(t.Context(), id, routes))
	must("routes taken back", c.Unroute(t.Context(), id, routes))
	must("a stop", c.Stop(t.Context(), id).Err())
	must("a start", c.Start(t.Context(), id).Err())
	must("an end", c.Terminate(t.Context(), id).Err())
	_, err = c.maintained(t.Context())
	must("maintenance", err)
	parts, err := c.ListOwned(t.Context(), owner)
	must("the parts", err)
	for _, p := range parts {
		if p.Kind == "network interface" && p.Instance == "" {
			must("a sweep", c.DeleteOwned(t.Context(), p.ID).Err())
		}
	}
	_, err = c.PullCredentials(t.Context(), registryHere, "team/app")
	must("credentials for images", err)
	untagged := runInstances(resolved(t, c, request("w", 1)))
	untagged.TagSpecifications = nil
	_, err = c.api.RunInstances(t.Context(), untagged)
	if err == nil || !strings.Contains(err.Error(), "no policy allows ec2:RunInstances on arn:aws:ec2") {
		t.Errorf("a launch that is not allowed: %v", err)
	}
	if unused := policy.Unused(); len(unused) > 0 {
		t.Errorf("nothing needs the statements %v", unused)
	}
	if len(model.Machines().OwnedResources.OwnedNow()) != 4 {
		t.Errorf("%v", model.Machines().OwnedResources.OwnedNow())
	}
}

func TestThePolicyKeepsKipFromWhatIsNotItsOwn(t *testing.T) {
	c, model, _ := underPolicy(t, sim.Knobs{OwnedLeft: 1})
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	// What somebody else launched has no tag.
	launch := cloud.LaunchRequest{
		Token:      "other",
		LaunchSpec: cloud.LaunchSpec{InstanceType: "c5.large", Zone: "us-east-1a", Subnet: "subnet-a1"},
		UserData:   []byte{},
		Machines:   make([]cloud.Machine, 2),
	}
	others := model.Machines().Launch(t.Context(), launch)
	if others.Err() != nil {
		t.Fatal(others.Err())
	}
	other, ended := others[0].Instance.ID, others[1].Instance.ID
	if err := model.Machines().Terminate(t.Context(), ended).Err(); err != nil {
		t.Fatal(err)
	}
	// Nor have another's disks, of which some cell has one.
	free := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1, Kind: "gp3"})
	taken := model.Volumes.Add(ec2.Volume{
		Zone:     "us-east-1a",
		GiB:      1,
		Kind:     "gp3",
		Instance: got[0].ID,
		Device:   "/dev/sdf",
	})
	drivers := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1, Tags: map[string]string{ebsDriverTag: "true"}})
	root := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1, Tags: map[string]string{cloud.TagOwner: owner}})
	mine, err := c.CreateDisk(t.Context(), diskRequest("mine"))
	if err != nil {
		t.Fatal(err)
	}
	hidden := runInstances(resolved(t, c, request("v", 1)))
	for _, s := range hidden.TagSpecifications {
		for n := range s.Tags {
			if aws.ToString(s.Tags[n].Key) == cloud.TagOwner {
				s.Tags[n].Key = aws.String(strings.ToLower(cloud.TagOwner))
			}
		}
	}
	in := runInstances(resolved(t, c, request("u", 1)))
	in.TagSpecifications = in.TagSpecifications[:1] // the instance's, and neither disk's nor interface's
	reads := runInstances(resolved(t, c, request("r", 1)))
	reads.BlockDeviceMappings = append(reads.BlockDeviceMappings, types.BlockDeviceMapping{
		DeviceName: aws.String("/dev/sdx"),
		Ebs:        &types.EbsBlockDevice{SnapshotId: aws.String("snap-0123456789abcdef0"), VolumeSize: aws.Int32(1)},
	})
	launches := func(image string) error {
		in := runInstances(resolved(t, c, request(image, 1)))
		in.ImageId = aws.String(image)
		_, err := c.api.RunInstances(t.Context(), in)
		return classify(err, cloud.Scope{})
	}
	for what, err := range map[string]error{
		"launching a backup":     launches("ami-backup"),
		"launching a policy's":   launches("ami-policy"),
		"reading a snapshot":     func() error { _, err := c.api.RunInstances(t.Context(), reads); return classify(err, cloud.Scope{}) }(),
		"ending another's":       c.Terminate(t.Context(), other).Err(),
		"stopping another's":     c.Stop(t.Context(), other).Err(),
		"tagging another's":      c.Tag(t.Context(), cloud.Tagging{ID: other, Tags: map[string]string{cloud.TagPod: "a"}}).Err(),
		"taking another's":       c.Tag(t.Context(), cloud.Tagging{ID: other, Tags: map[string]string{cloud.TagOwner: owner}}).Err(),
		"giving away its own":    c.Tag(t.Context(), cloud.Tagging{ID: got[0].ID, Tags: map[string]string{cloud.TagOwner: "b"}}).Err(),
		"what makes it a disk":   c.Tag(t.Context(), cloud.Tagging{ID: got[0].ID, Tags: map[string]string{"team": "b", tagDisk: "b"}}).Err(),
		"the same in lower case": c.Tag(t.Context(), cloud.Tagging{ID: got[0].ID, Tags: map[string]string{strings.ToLower(tagDisk): "b"}}).Err(),
		"what no list shows":     func() error { _, err := c.api.RunInstances(t.Context(), hidden); return classify(err, cloud.Scope{}) }(),
		"sweeping another's":     c.DeleteOwned(t.Context(), "eni-"+strings.TrimPrefix(ended, "i-")).Err(),
		"another's group":        c.DeleteOwned(t.Context(), "sg-2").Err(),
		"taking another's disk":  c.AttachDisk(t.Context(), free, got[0].ID),
		"giving its disk away":   c.AttachDisk(t.Context(), mine.ID, other),
		"freeing another's disk": c.DetachDisk(t.Context(), taken, got[0].ID),
		"ending another's disk":  c.DeleteDisk(t.Context(), free),
		"a cell's root disk":     c.AttachDisk(t.Context(), root, got[0].ID),
		"ending a root disk":     c.DeleteDisk(t.Context(), root),
		"ending the driver's":    c.DeleteDisk(t.Context(), drivers),
		"another's CPU credits":  c.EndBoost(t.Context(), other).Err(),
		"leading to another's":   c.Route(t.Context(), other, routes),
		"attaching it elsewhere": c.AttachDisk(t.Context(), drivers, other),
		"both in one call":       c.Terminate(t.Context(), got[0].ID, other).Err(),
		"a launch without a tag": func() error { _, err := c.api.RunInstances(t.Context(), in); return classify(err, cloud.Scope{}) }(),
	} {
		if !errors.Is(err, cloud.ErrUnauthorised) {
			t.Errorf("%s: %v, want %q", what, err, cloud.ErrUnauthorised)
		}
	}
	if n := len(model.Machines().Truth()); n != 2 {
		t.Errorf("%d run, want both", n)
	}
	thief := settings(c.cfg.Endpoint)
	thief.AccessKeyID = "AKIAOTHER"
	if _, err := open(t, thief).List(t.Context(), owner); !errors.Is(err, cloud.ErrUnauthorised) {
		t.Errorf("a key that nobody has: %v", err)
	}
}

// In an account that never had a spot instance EC2 needs a role of its own. Who may not make it can
// launch on demand; that Kip can do nothing at all is not said.
func TestAnAccountWithoutTheRoleOfSpotLaunchesOnDemand(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.NoSpotRole = true
	without, err := ec2.ParsePolicy([]byte(strings.ReplaceAll(string(Policy()), "iam:CreateServiceLinkedRole", "iam:GetRole")))
	if err != nil {
		t.Fatal(err)
	}
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": without}
	_, url := serve(t, account)
	c := open(t, settings(url))
	spot := request("spot", 1)
	spot.CapacityType = cloud.Spot
	err = runLaunch(t.Context(), c, spot).Err()
	if s := cloud.ScopeOf(err); !errors.Is(err, cloud.ErrQuota) || s.String() != "spot instances" || !cloud.NothingDone(err) {
		t.Errorf("spot: %v, of %s", err, s)
	}
	if err := runLaunch(t.Context(), c, request("on demand", 1)).Err(); err != nil {
		t.Errorf("on demand: %v", err)
	}
}
