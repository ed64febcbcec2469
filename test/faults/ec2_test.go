package faults

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/sim"
)

// asked is what Kip asks of a cloud: the simulated one, or the driver of another.
type asked interface {
	cloud.Cloud
	cloud.Stopper
	cloud.Interrupter
	cloud.Parts
	cloud.Tagger
}

const ec2Image = "ami-1"

// subnetOf is the only one of a zone.
func subnetOf(zone string) string { return "subnet-" + zone }

// newModel is a model of EC2 before the simulated machines.
func newModel(machines sim.Config) (*ec2.Model, error) {
	machines.Catalogue = slices.Clone(machines.Catalogue)
	for n, t := range machines.Catalogue {
		t.Offerings = slices.Clone(t.Offerings)
		for i, o := range t.Offerings {
			t.Offerings[i].Subnet = subnetOf(o.Zone)
		}
		machines.Catalogue[n] = t
	}
	policy, err := ec2.ParsePolicy(aws.Policy())
	if err != nil {
		return nil, err
	}
	return ec2.New(ec2.Config{
		Sim:      machines,
		Subnets:  []ec2.Subnet{{ID: subnetOf("a"), VPC: "vpc-1", Zone: "a"}, {ID: subnetOf("b"), VPC: "vpc-1", Zone: "b"}},
		Images:   []ec2.Image{{ID: ec2Image, Owner: "self", RootDevice: "/dev/xvda", GiB: 1}},
		Policies: map[string]*ec2.Policy{ec2Key: policy},
	})
}

const ec2Key = "AKIATESTS"

// newDriver is that of one life of Kip, which remembers nothing of the life before.
func newDriver(k *kip) (*aws.Cloud, error) {
	return aws.New(k.ctx, aws.Config{
		Region:          "us-east-1",
		AccessKeyID:     ec2Key,
		SecretAccessKey: "secret",
		VPC:             "vpc-1",
		Endpoint:        "http://ec2.test",
		Clock:           kipClock{k: k},
		Transport:       wire{k},
		// No story has one, and the quiet hour is long.
		InterruptionsEvery: time.Hour,
	})
}

// onEC2 is a launch with what only EC2 asks for.
func onEC2(r cloud.LaunchRequest) cloud.LaunchRequest {
	r.Subnet, r.Image = subnetOf(r.Zone), map[string]string{"imageID": ec2Image}
	return r
}

// wire carries the requests of one Kip to the model, in this process. Kip can be killed
// before each leaves, and before its answer comes.
type wire struct{ k *kip }

func (t wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w := t.k.w
	if err := t.k.alive(); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	n := 0
	// How many looks at spot requests fit between two calls is the clock's affair.
	if form.Get("Action") != "DescribeSpotInstanceRequests" {
		n = w.nextPoint()
	}
	if err := w.point(n, false); err != nil {
		return nil, err
	}
	w.happened("EC2 " + form.Get("Action"))
	got := r.Clone(r.Context())
	got.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	if err := w.answers(answer, got); err != nil {
		return nil, err
	}
	if err := w.point(n, true); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// answers lets the model answer; an answer that is lost is an error.
func (w *world) answers(answer http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			err = io.ErrUnexpectedEOF
		} else if p != nil {
			panic(p)
		}
	}()
	w.model.ServeHTTP(answer, r)
	return nil
}

// ofEC2 are the stories that are played on EC2 as well, by name.
var ofEC2 = []string{
	"a pod runs to its end", "a pod is deleted while it runs", "a burst shares its user data",
	"a part of a batch finds room, and the answer is lost", deletedIn("Launching").name,
}

// TestKipIsKilledBetweenAnyTwoCallsToEC2 plays them on a model of EC2, by the driver and
// its SDK: each request of a call is one at which Kip is killed.
func TestKipIsKilledBetweenAnyTwoCallsToEC2(t *testing.T) {
	deaths, played := 0, 0
	// Neighbours are of one request, or nearly: in a row of stories each is met.
	step := 5
	if testing.Short() {
		step = 25
	}
	for _, sc := range scenarios {
		if !slices.Contains(ofEC2, sc.name) {
			continue
		}
		played++
		sc.ec2, sc.shared = true, true
		violations, passed := playUntil(t, sc, failpoint{})
		if len(violations) > 0 {
			t.Fatalf("%s on EC2, and Kip is not killed:\n  %s", sc.name, strings.Join(violations, "\n  "))
		}
		if len(passed) < leastOnEC2 {
			t.Errorf("%s on EC2 has %d points at which to die: want %d or more", sc.name, len(passed), leastOnEC2)
		}
		for _, f := range passed {
			if *pointFlag != 0 && f.n != *pointFlag || *pointFlag == 0 && f.n%step != played%step {
				continue
			}
			if violations, _ := playUntil(t, sc, f); len(violations) > 0 {
				t.Fatalf("%s on EC2, and Kip is killed %s write or call %d:\n  %s\nreplay: go test ./test/faults -run '%s' -point %d [-trace]",
					sc.name, map[bool]string{false: "before", true: "after"}[f.after], f.n, strings.Join(violations, "\n  "), t.Name(), f.n)
			}
			deaths++
		}
	}
	if played != len(ofEC2) {
		t.Errorf("%d stories were played, want %d", played, len(ofEC2))
	}
	t.Log(fmt.Sprint(deaths, " deaths"))
}

// leastOnEC2 are the least points at which to die of a story on EC2: a launch alone is
// eight requests.
const leastOnEC2 = 50

var (
	_ asked = (*sim.Cloud)(nil)
	_ asked = (*aws.Cloud)(nil)
)
