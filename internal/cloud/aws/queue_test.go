package aws

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// queueName is the one that the policy allows.
const queueName = "kip-interruptions"

// listening is a driver at a model with a queue, whose listener notes what it is told. Nothing
// looks by itself but at the beginning: the clock stands still, but for what until steps it.
type listening struct {
	*testing.T
	model *ec2.Model
	clock *testclock.FakeClock
	spot  string // an instance
	ended chan error

	mu   sync.Mutex
	told []string
	read map[cloud.Message]int
}

// listen starts one; change may change what it is configured with.
func listen(t *testing.T, change func(*Config, *ec2.Model), planned ...string) *listening {
	t.Helper()
	w := &listening{
		T:     t,
		clock: testclock.NewFakeClock(time.Now()),
		ended: make(chan error, 1),
		read:  map[cloud.Message]int{},
	}
	account := anAccount(sim.Knobs{})
	account.Queue, account.Sim.Clock = queueName, w.clock
	var url string
	w.model, url = serve(t, account)
	cfg := settings(url)
	cfg.InterruptionQueue, cfg.Clock = queueName, w.clock
	cfg.InterruptionsEvery, cfg.MaintenanceEvery = 24*time.Hour, 24*time.Hour
	if change != nil {
		change(&cfg, w.model)
	}
	c := open(t, cfg)
	r := request("t", 1)
	r.Market = cloud.Spot
	got, err := c.Launch(t.Context(), r).All()
	if err != nil {
		t.Fatal(err)
	}
	w.spot = got[0].ID
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		w.ended <- c.Interruptions(ctx, cloud.Listener{
			Notify: func(i cloud.Interruption) {
				what, _, _ := strings.Cut(i.Reason, ":")
				w.note(what + " " + i.InstanceID)
				if planned := what != marked; i.Planned != planned {
					w.note(fmt.Sprintf("planned %t", i.Planned))
				}
			},
			Mine:    func(id string) bool { return id == w.spot },
			Planned: func() []string { return planned },
			Changed: func(id string) { w.note("changed " + id) },
			AtRisk:  func(id string) { w.note("at risk " + id) },
			Counted: func(about cloud.Message) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.read[about]++
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-w.ended
	})
	return w
}

func (w *listening) note(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, text)
}

func (w *listening) all() (told []string, read map[cloud.Message]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told), maps.Clone(w.read)
}

// until lets time pass until something is so.
func (w *listening) until(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			told, read := w.all()
			w.Fatalf("it is never so that %s: told %q, read %v, %d are queued", what, told, read, w.model.Queued())
		}
		w.clock.Step(leastPause)
	}
}

// pass lets so much time pass that a message is a reason to look.
func (w *listening) pass() {
	w.Helper()
	w.until("it looks", func() bool { return w.model.Calls()["DescribeInstanceStatus"] > 0 })
	w.clock.Step(2 * soonestMaintenance)
}

// emptied waits until all messages are read and deleted.
func (w *listening) emptied() {
	w.Helper()
	w.until("the queue is empty", func() bool { return w.model.Queued() == 0 })
}

func (w *listening) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func TestWhatTheQueueSaysOfKipsInstancesIsAskedOfEC2(t *testing.T) {
	w := listen(t, nil)
	w.pass()
	w.must(w.model.Rebalance(ec2.Rebalance{Instance: w.spot}))
	for _, state := range []string{"pending", "running", "shutting-down"} {
		w.must(w.model.Send(fromEC2, typeState, ec2.Detail{"instance-id": w.spot, "state": state}))
	}
	w.must(w.model.Maintain(ec2.Maintenance{Instance: w.spot, Code: "instance-retirement", NotBefore: w.clock.Now().Add(maintenanceLead / 2)}))
	w.emptied()
	w.must(w.model.Interrupt(ec2.Interruption{Instance: w.spot, Notice: 2 * time.Minute}))
	w.emptied()
	want := []string{"at risk " + w.spot, "changed " + w.spot, "instance-retirement " + w.spot, marked + " " + w.spot}
	w.until("all was told", func() bool { told, _ := w.all(); return len(told) >= len(want) })
	counts := map[cloud.Message]int{
		cloud.MessageAtRisk:      1,
		cloud.MessageChanged:     1,
		cloud.MessageMaintenance: 1,
		cloud.MessageTakenBack:   1,
		cloud.MessageForeign:     2,
	}
	told, read := w.all()
	slices.Sort(told) // each kind is asked by itself
	if !slices.Equal(told, want) || !maps.Equal(read, counts) {
		t.Errorf("told %q of %v; want %q of %v", told, read, want, counts)
	}
}

func TestAQueueThatLiesMovesNothingAndIsEmptied(t *testing.T) {
	w := listen(t, nil)
	w.pass()
	looks := w.model.Calls()
	event := func(source, kind, region, detail string) {
		w.model.SendText(fmt.Sprintf(`{"source":%q,"detail-type":%q,"region":%q,"detail":%s}`, source, kind, region, detail))
	}
	// Of none of Kip's instances.
	event(fromEC2, typeSpot, "us-east-1", `{"instance-id":"i-another"}`)
	event(fromEC2, typeRisk, "us-east-1", `{"instance-id":"i-another"}`)
	event(fromEC2, typeState, "us-east-1", `{"instance-id":"i-another","state":"terminated"}`)
	event(fromEC2, typeSpot, "eu-west-1", fmt.Sprintf(`{"instance-id":%q}`, w.spot))
	event("aws.s3", "Object Created", "us-east-1", `{}`)
	event("mine", typeSpot, "us-east-1", fmt.Sprintf(`{"instance-id":%q}`, w.spot))
	event(fromEC2, "EC2 AMI State Change", "us-east-1", `[]`)
	event(fromHealth, "AWS Health Event", "us-east-1", `{"service":"RDS","eventTypeCategory":"scheduledChange"}`)
	event(fromHealth, "AWS Health Event", "us-east-1",
		`{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{"entityValue":"i-another"}]}`)
	const foreign = 9
	// Of nothing.
	unusable := []string{
		"", "no event", `"text"`, `[]`, `{"source":1}`, strings.Repeat("[", 1<<16), "\x00\xff",
		`{"source":"` + strings.Repeat("x", maxEvent) + `"}`,
	}
	for _, body := range unusable {
		w.model.SendText(body)
	}
	event(fromEC2, typeSpot, "us-east-1", `[]`)
	event(fromEC2, typeSpot, "us-east-1", `{"instance-id":""}`)
	event(fromEC2, typeState, "us-east-1", `{"instance-id":{}}`)
	event(fromHealth, "AWS Health Event", "us-east-1", `{"affectedEntities":1}`)
	w.emptied()
	told, read := w.all()
	if now := w.model.Calls(); now["DescribeSpotInstanceRequests"] != looks["DescribeSpotInstanceRequests"] ||
		now["DescribeInstanceStatus"] != looks["DescribeInstanceStatus"] || len(told) > 0 {
		t.Errorf("told %q; EC2 was asked %v, before %v", told, now, looks)
	}
	if read[cloud.MessageForeign] != foreign || read[cloud.MessageUnusable] != len(unusable)+4 {
		t.Errorf("read %v: want %d foreign ones and %d that are unusable", read, foreign, len(unusable)+4)
	}
	// Of Kip's own, and EC2 knows nothing of it: it is asked, and not more often than it may be.
	for range 50 {
		event(fromEC2, typeSpot, "us-east-1", fmt.Sprintf(`{"instance-id":%q}`, w.spot))
		event(fromHealth, "AWS Health Event", "us-east-1", fmt.Sprintf(
			`{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{"entityValue":"arn:aws:ec2:us-east-1:1:instance/%s"}]}`, w.spot))
	}
	began := w.clock.Now()
	w.emptied()
	most := int(w.clock.Since(began)/soonest) + 2
	told, read = w.all()
	now := w.model.Calls()
	spot := now["DescribeSpotInstanceRequests"] - looks["DescribeSpotInstanceRequests"]
	maintenance := now["DescribeInstanceStatus"] - looks["DescribeInstanceStatus"]
	if len(told) > 0 || spot < 1 || spot > most || maintenance < 1 || maintenance > most || read[cloud.MessageTakenBack] != 50 ||
		read[cloud.MessageMaintenance] != 50 {
		t.Errorf("told %q; EC2 was asked %d and %d times, want 1 to %d; read %v", told, spot, maintenance, most, read)
	}
}

func TestAQueueThatFailsIsHeardStill(t *testing.T) {
	for name, faults := range map[string]ec2.QueueFaults{
		"messages come twice":    {Doubled: true},
		"deletions are lost":     {LostDeletes: 3},
		"deletions are refused":  {FailedDeletes: 3},
		"calls are throttled":    {Throttled: 3},
		"it does not wait":       {Impatient: true},
		"checksums do not match": {BadChecksums: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := listen(t, func(_ *Config, m *ec2.Model) { m.FailQueue(faults) })
			w.pass()
			for range 12 { // more than one receipt gives
				w.must(w.model.Send(fromEC2, typeState, ec2.Detail{"instance-id": w.spot, "state": "stopping"}))
			}
			w.must(w.model.Interrupt(ec2.Interruption{Instance: w.spot, Notice: 2 * time.Minute}))
			w.emptied()
			w.until("it was told", func() bool { told, _ := w.all(); return slices.Contains(told, marked+" "+w.spot) })
			told, read := w.all()
			if times := slices.DeleteFunc(told, func(text string) bool { return !strings.HasPrefix(text, marked) }); len(times) != 1 ||
				read[cloud.MessageChanged] < 12 {
				t.Errorf("told %q, read %v", told, read)
			}
		})
	}
}

func TestAQueueThatIsNotThereEndsNothing(t *testing.T) {
	w := listen(t, func(cfg *Config, _ *ec2.Model) {
		cfg.InterruptionQueue, cfg.InterruptionsEvery = "another", leastPause
	})
	w.must(w.model.Interrupt(ec2.Interruption{Instance: w.spot, Notice: 2 * time.Minute}))
	w.until("it was told", func() bool { told, _ := w.all(); return len(told) > 0 })
	w.until("the queue was asked for again", func() bool { return w.model.Calls()["GetQueueUrl"] > 1 })
	if told, _ := w.all(); !slices.Equal(told, []string{marked + " " + w.spot}) || w.model.Calls()["ReceiveMessage"] > 0 {
		t.Errorf("told %q, calls %v", told, w.model.Calls())
	}
}

// A URL of AWS' own is a name where there is another endpoint: what it names is asked for there.
func TestWithAnEndpointNoQueueOfAWSIsAsked(t *testing.T) {
	w := listen(t, func(cfg *Config, m *ec2.Model) {
		t.Setenv("AWS_ENDPOINT_URL_SQS", "")
		cfg.InterruptionQueue = m.QueueURL("https://sqs.us-east-1.amazonaws.com")
	})
	w.model.SendText("anything")
	w.emptied()
	if calls := w.model.Calls(); calls["ReceiveMessage"] == 0 || calls["GetQueueUrl"] > 0 {
		t.Errorf("the endpoint was asked %v", calls)
	}
}

func TestAMessageThatNamesManyInstancesIsComparedWithFew(t *testing.T) {
	for n, want := range map[int]struct {
		compared int
		asks     bool
	}{
		1:                    {1, false},
		maxAffected:          {maxAffected, false},
		maxAffected + 1:      {0, true}, // it may name one of Kip's
		maxEvent / len(`""`): {0, true},
	} {
		compared := 0
		mine := func(string) bool {
			compared++
			return false
		}
		asks := hear(said{cloud.MessageMaintenance, make([]string, n)}, cloud.Listener{Mine: mine})
		if compared != want.compared || compared > 10 || asks != (due{maintenance: want.asks}) {
			t.Errorf("%d instances: %d are compared, and it asks for %+v; want %+v", n, compared, asks, want)
		}
	}
}

func TestTheQueueIsAskedAtTheEndpointOrWhereTheEnvironmentSays(t *testing.T) {
	counting := func() (string, *atomic.Int32) {
		var asked atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusBadRequest)
		}))
		t.Cleanup(s.Close)
		return s.URL, &asked
	}
	endpoint, atEndpoint := counting()
	sts, atSTS := counting()
	queue, atQueue := counting()
	cfg := settings(endpoint)
	cfg.InterruptionQueue = queueName
	t.Setenv("AWS_ENDPOINT_URL_STS", sts) // which is no word about another service
	for _, tc := range []struct {
		environment string
		want        *atomic.Int32
	}{{"", atEndpoint}, {queue, atQueue}} {
		t.Setenv("AWS_ENDPOINT_URL_SQS", tc.environment)
		q := open(t, cfg).queue
		for _, at := range []*atomic.Int32{atEndpoint, atSTS, atQueue} {
			at.Store(0)
		}
		if err := q.find(t.Context()); err == nil || tc.want.Load() != 1 || atEndpoint.Load()+atSTS.Load()+atQueue.Load() != 1 {
			t.Errorf("with AWS_ENDPOINT_URL_SQS %q: %v after %d calls of the endpoint, %d of STS, %d of the queue's", tc.environment, err,
				atEndpoint.Load(), atSTS.Load(), atQueue.Load())
		}
	}
}

func TestMaintenanceThatWasCalledOffWhileNobodyListenedIsToldToBe(t *testing.T) {
	w := listen(t, func(cfg *Config, _ *ec2.Model) {
		cfg.InterruptionQueue, cfg.MaintenanceEvery = "", leastPause
	}, "i-of-an-earlier-life")
	w.until("it looked", func() bool { return w.model.Calls()["DescribeInstanceStatus"] > 3 })
	if told, _ := w.all(); !slices.Equal(told, []string{"called off i-of-an-earlier-life"}) {
		t.Errorf("told %q, want once what is called off", told)
	}
}

func TestMaintenanceIsToldOnceAndAnHourBefore(t *testing.T) {
	w := listen(t, func(cfg *Config, _ *ec2.Model) {
		cfg.InterruptionQueue, cfg.MaintenanceEvery = "", leastPause
	})
	looked := func() { // twice from now on
		w.Helper()
		until := w.model.Calls()["DescribeInstanceStatus"] + 2
		w.until("it looked", func() bool { return w.model.Calls()["DescribeInstanceStatus"] > until })
	}
	of := ec2.Maintenance{Instance: w.spot, Code: "instance-stop", NotBefore: w.clock.Now().Add(10 * 24 * time.Hour)}
	w.must(w.model.Maintain(of))
	looked()
	of.NotBefore, of.Over = w.clock.Now().Add(time.Minute), true
	w.must(w.model.Maintain(of))
	looked()
	if told, _ := w.all(); len(told) > 0 {
		t.Errorf("told %q long before, or of what is over", told)
	}
	of.NotBefore, of.Over = w.clock.Now().Add(maintenanceLead/2), false
	w.must(w.model.Maintain(of))
	looked()
	want := []string{"instance-stop " + w.spot}
	if told, _ := w.all(); !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	// Put off, by however little, it is told again.
	of.NotBefore = of.NotBefore.Add(time.Minute)
	w.must(w.model.Maintain(of))
	looked()
	want = append(want, want[0])
	if told, _ := w.all(); !slices.Equal(told, want) {
		t.Errorf("put off: told %q, want %q", told, want)
	}
	// Put off for long, or called off, it is no reason to move a pod.
	of.NotBefore = w.clock.Now().Add(10 * 24 * time.Hour)
	w.must(w.model.Maintain(of))
	looked()
	want = append(want, "called off "+w.spot)
	if told, _ := w.all(); !slices.Equal(told, want) {
		t.Errorf("put off for long: told %q, want %q", told, want)
	}
	of.NotBefore = w.clock.Now().Add(maintenanceLead / 2)
	w.must(w.model.Maintain(of))
	looked()
	// Others are none of Kip's, and a look that is refused ends nothing.
	w.mu.Lock()
	w.told = nil
	w.mu.Unlock()
	launch := request("other", 1)
	others, err := w.model.Machines().Launch(t.Context(), launch).All()
	w.must(err)
	w.must(w.model.Maintain(ec2.Maintenance{Instance: others[0].ID, Code: "system-reboot", NotBefore: w.clock.Now()}))
	w.model.Machines().FailNth(sim.KindInterruptions, 1, sim.Fault{Before: sim.ErrInternal})
	looked()
	if told, _ := w.all(); len(told) > 0 {
		t.Errorf("told %q of what is not %s, or once more", told, w.spot)
	}
}
