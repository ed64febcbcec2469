package cleanup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
	"k8s.io/utils/clock"
)

const theKey, aNobody, aReader = "AKIATESTS", "AKIANOBODY", "AKIAREADS"

// account is an account of EC2 with the cells of two Kips, "gone" and "lives". It may lie.
type account struct {
	*testing.T
	model *ec2.Model

	mu    sync.Mutex
	lies  int             // lists of instances from now on that show none
	lag   time.Duration   // for so long lists show no parts, from the first after an end
	since time.Time       // that list
	fails map[string]int  // calls from now on that EC2 fails by itself, by action
	alive func() error    // what is seen of the Kip
	asked map[string]bool // actions
	looks int             // at all instances, before the first end
	said  []string
}

// RoundTrip implements http.RoundTripper.
func (a *account) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	action := form.Get("Action")
	if a.asked[action] = true; action == "DescribeInstances" && !a.asked["TerminateInstances"] {
		a.looks++
	}
	fails := a.fails[action] > 0
	if fails {
		a.fails[action]--
	} else if action == "DescribeInstances" && a.lies > 0 {
		a.lies--
		form.Set("Filter.1.Value.1", "nobody's")
	} else if a.asked["TerminateInstances"] && (action == "DescribeNetworkInterfaces" || action == "DescribeSecurityGroups") {
		if a.since.IsZero() {
			a.since = time.Now()
		}
		if time.Since(a.since) < a.lag {
			form.Set("Filter.1.Value.1", "nobody's")
		}
	}
	a.mu.Unlock()
	if fails {
		answer := httptest.NewRecorder()
		answer.WriteHeader(http.StatusInternalServerError)
		_, _ = answer.WriteString("<Response><Errors><Error><Code>InternalError</Code><Message>of a zone</Message></Error></Errors></Response>")
		return answer.Result(), nil
	}
	sent := r.Clone(r.Context())
	body = []byte(form.Encode())
	sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer, err := cloudmodel.Answer(a.model, sent)
	if err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

func (a *account) driver(change func(*aws.Config)) *aws.Cloud {
	a.Helper()
	cfg := aws.Config{Region: "us-east-1", AccessKeyID: theKey, SecretAccessKey: "x", Endpoint: "http://ec2.test", Transport: a}
	change(&cfg)
	c, err := aws.New(a.Context(), cfg)
	if err != nil {
		a.Fatal(err)
	}
	return c
}

// Lives implements Watch.
func (a *account) Lives(context.Context) error { return a.alive() }

// outside is who cleans up after the Kip "gone".
func (a *account) outside(key string) *Outside {
	c := a.driver(func(cfg *aws.Config) { cfg.EndsOnly, cfg.AccessKeyID = true, key })
	return NewOutside(OutsideConfig{
		Controller: "gone", Cloud: pipe.New(pipe.Config{Cloud: c, Clock: clock.RealClock{}}), Watch: a, Clock: clock.RealClock{},
	})
}

func (a *account) end(o *Outside) (Names, error) {
	ctx, cancel := context.WithTimeoutCause(a.Context(), 10*time.Minute, errors.New("not within 10m0s"))
	defer cancel()
	return o.End(ctx, func(line string) { a.said = append(a.said, line) })
}

// running are the owners of the instances that run, in order.
func (a *account) running() (owners []string) {
	for _, i := range a.model.Machines().Truth() {
		owners = append(owners, i.Tags[cloud.TagOwner])
	}
	slices.Sort(owners)
	return owners
}

// groups are the owners of the security groups.
func (a *account) groups() (owners []string) {
	a.model.Change(func(cfg *ec2.Config) {
		for _, g := range cfg.Groups {
			owners = append(owners, g.Tags[cloud.TagOwner])
		}
	})
	slices.Sort(owners)
	return owners
}

func inAccount(t *testing.T, f func(t *testing.T, a *account)) {
	t.Helper()
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "")
	}
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, "/dev/null")
	}
	synctest.Test(t, func(t *testing.T) {
		policy, err := ec2.ParsePolicy(aws.Policy())
		if err != nil {
			t.Fatal(err)
		}
		reads, err := ec2.ParsePolicy([]byte(
			`{"Version":"2012-10-17","Statement":[{"Sid":"Reads","Effect":"Allow","Action":"ec2:Describe*","Resource":"*"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		offering := []catalog.PurchaseOption{{Zone: "us-east-1a", Subnet: "subnet-1"}}
		model, err := ec2.New(ec2.Config{
			Sim: sim.Config{
				Catalogue: []catalog.InstanceType{{Name: "t3.nano", MilliCPU: 2000, MemoryBytes: 1 << 29, Arch: "amd64", Offerings: offering}},
				Knobs:     sim.Knobs{Termination: sim.Distribution{Median: 30 * time.Second}},
			},
			Subnets:  []ec2.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "us-east-1a"}},
			Images:   []ec2.Image{{ID: "ami-1", Name: "kip", Owner: "self", RootDevice: "/dev/xvda", GiB: 2}},
			Policies: map[string]*ec2.Policy{theKey: policy, aNobody: {}, aReader: reads},
		})
		if err != nil {
			t.Fatal(err)
		}
		a := &account{T: t, model: model, fails: map[string]int{}, alive: func() error { return nil }, asked: map[string]bool{}}
		kip := a.driver(func(cfg *aws.Config) { cfg.Subnets = []string{"subnet-1"} })
		for _, owner := range []string{"gone", "lives"} {
			tags := map[string]string{cloud.TagOwner: owner, cloud.TagName: "Kip " + owner}
			spec := cloud.LaunchSpec{InstanceType: "t3.nano", Zone: "us-east-1a", Subnet: "subnet-1", Tags: tags,
				Options: cloud.Options{Image: map[string]string{"imageID": "ami-1"}}}
			if err := cloudtest.Launch(t.Context(), kip, cloud.LaunchRequest{
				Token: owner, LaunchSpec: spec, Machines: make([]cloud.Machine, 2), UserData: []byte("x"),
			}).Err(); err != nil {
				t.Fatal(err)
			}
			disk := cloud.DiskRequest{Token: owner, SizeBytes: 1 << 30, Zone: "us-east-1a", Tags: tags}
			if _, err := kip.CreateDisk(t.Context(), disk); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // they run
		f(t, a)
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFromOutsideOneKipsInstancesAndPartsEndAndNothingElse(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		o := a.outside(theKey)
		before, err := o.Names(t.Context())
		if err != nil || len(before.Instances) != 2 || len(before.Parts) != 3 || len(before.Disks) != 1 {
			t.Fatalf("there is %+v, %v: want 2 instances, their interfaces, a group, a disk", before, err)
		}
		a.looks = 0
		n, err := a.end(o)
		if err != nil || len(n.Left()) != 0 {
			t.Fatalf("left %q, %v; said %q", n.Left(), err, a.said)
		}
		if a.looks != 3 { // whether there is a list at all, and two that are compared
			t.Errorf("instances end after %d lists", a.looks)
		}
		if len(n.Disks) != 1 || !strings.Contains(n.Disks[0], "of 1Gi: Kip gone") || len(a.model.Volumes.All()) != 2 {
			t.Errorf("disks %q, volumes %v: want that of the claim named and kept", n.Disks, a.model.Volumes.All())
		}
		if got := a.running(); !slices.Equal(got, []string{"lives", "lives"}) {
			t.Errorf("instances of %q run: want those of the other Kip alone", got)
		}
		if got := a.groups(); !slices.Equal(got, []string{"lives"}) {
			t.Errorf("there are groups of %q: want that of the other Kip alone", got)
		}
	})
}

func TestFromOutsideAListThatLiesOnceHidesNothing(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		a.lies = 2 // that before anything, and the first that counts
		if n, err := a.end(a.outside(theKey)); err != nil || len(n.Left()) != 0 {
			t.Fatalf("left %q, %v; said %q", n.Left(), err, a.said)
		}
		if got := a.running(); !slices.Equal(got, []string{"lives", "lives"}) {
			t.Errorf("instances of %q run", got)
		}
	})
}

// The interfaces show what the lists of instances hide, and keep the group.
func TestFromOutsideListsThatAlwaysLieProveNothing(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		a.lies = 1 << 20
		n, err := a.end(a.outside(theKey))
		if err == nil || len(n.Left()) == 0 || !strings.Contains(err.Error(), "security group") || len(a.running()) != 4 {
			t.Errorf("left %q, %v", n.Left(), err)
		}
	})
}

func TestFromOutsidePartsAreGoneOnceTwoListsAListLagApartShowNone(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		a.lag = leastWatch - time.Second
		n, err := a.end(a.outside(theKey))
		if got := a.groups(); err != nil || len(n.Left()) != 0 || !slices.Equal(got, []string{"lives"}) {
			t.Errorf("left %q, %v; there are groups of %q; said %q", n.Left(), err, got, a.said)
		}
	})
}

func TestFromOutsideItIsKnownWhetherAListHasShownAnything(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		o := a.outside(theKey)
		if o.Shown() {
			t.Error("something is shown before any list")
		}
		if _, err := a.end(o); err != nil || !o.Shown() {
			t.Errorf("shown: %t, %v", o.Shown(), err)
		}
		none := NewOutside(OutsideConfig{Controller: "none", Cloud: o.cfg.Cloud, Watch: a, Clock: o.cfg.Clock})
		if _, err := a.end(none); err != nil || none.Shown() {
			t.Errorf("shown of a controller that has nothing: %t, %v", none.Shown(), err)
		}
	})
}

func TestFromOutsideAListThatIsNotWholeEndsNothingAndIsNoProof(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		a.fails["DescribeInstances"] = 1 << 20
		n, err := a.end(a.outside(theKey))
		if err == nil || !strings.Contains(err.Error(), "nothing was done") || a.asked["TerminateInstances"] || len(a.running()) != 4 {
			t.Errorf("%+v, %v; running %q", n, err, a.running())
		}
		// Only later.
		o := a.outside(theKey)
		a.fails["DescribeInstances"] = 0
		asked := 0
		a.alive = func() error {
			if asked++; asked > 1 { // the first end
				a.fails["DescribeInstances"] = 1 << 20
			}
			return nil
		}
		n, err = a.end(o)
		if err == nil || !strings.Contains(err.Error(), "see what is left") || !slices.Equal(a.groups(), []string{"gone", "lives"}) {
			t.Errorf("%+v, %v; groups of %q", n, err, a.groups())
		}
	})
}

func TestFromOutsideCredentialsWithoutTheRightAreToldWhichAtOnce(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		_, err := a.end(a.outside(aNobody))
		if !errors.Is(err, cloud.ErrUnauthorised) || !strings.Contains(err.Error(), "ec2:DescribeInstances") ||
			!strings.Contains(err.Error(), "see KipReads in docs/aws-permissions.md") || len(a.running()) != 4 {
			t.Errorf("%v: want the right named", err)
		}
		// To look is not to end.
		began := time.Now()
		_, err = a.end(a.outside(aReader))
		if !errors.Is(err, cloud.ErrUnauthorised) || !strings.Contains(err.Error(), "ec2:TerminateInstances") ||
			!strings.Contains(err.Error(), "see KipEnds in") ||
			!strings.Contains(err.Error(), "left: 2 instances") || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestFromOutsideNothingOfAKipThatLivesEnds(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		lives := &LivesError{Sign: "node kip-0 is Ready"}
		a.alive = func() error { return lives }
		if _, err := a.end(a.outside(theKey)); !errors.Is(err, lives) || len(a.asked) == 0 || len(a.running()) != 4 {
			t.Errorf("%v; running %q", err, a.running())
		}
		// It begins while the lists are compared.
		asked := 0
		a.alive = func() error {
			if asked++; asked > 1 {
				return lives
			}
			return nil
		}
		if _, err := a.end(a.outside(theKey)); !errors.Is(err, lives) || len(a.running()) != 4 {
			t.Errorf("%v; running %q", err, a.running())
		}
		// Whether it does is not known for a while.
		asked = 0
		a.alive = func() error {
			if asked++; asked == 2 {
				return errors.New("the cluster does not answer")
			}
			return nil
		}
		if n, err := a.end(a.outside(theKey)); err != nil || len(n.Left()) != 0 {
			t.Errorf("left %q, %v", n.Left(), err)
		}
	})
}

func TestTheKipsOfACloudAreListed(t *testing.T) {
	inAccount(t, func(t *testing.T, a *account) {
		all, err := Controllers(t.Context(), a.driver(func(cfg *aws.Config) { cfg.EndsOnly = true }))
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		if k := all[0]; k.ID != "gone" || k.Instances != 2 || k.Parts != 3 || k.Disks != 1 || k.Newest.IsZero() {
			t.Errorf("%+v", k)
		}
		if _, err := Controllers(t.Context(), worldCloud{}); !errors.Is(err, ErrNoOwners) {
			t.Errorf("of a cloud that cannot: %v", err)
		}
	})
}
