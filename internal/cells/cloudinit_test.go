package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// operators is a cloud-init file whose content is its digest.
type operators struct {
	mu    sync.Mutex
	now   string
	unfit []string // what was told of it
}

func (o *operators) Unfit(why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unfit = append(o.unfit, why)
}

func (o *operators) told() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.unfit)
}

func (o *operators) set(now string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = now
}

func (o *operators) Digest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

func (o *operators) NeedsLogin() bool { return o.Digest() == "users" }

func (o *operators) Document(_ context.Context, digest string) ([]byte, error) {
	return []byte("the file " + digest), nil
}

// setUps are agents that answer a cloud-init file with a status and a text, and note what
// they are asked.
type setUps struct {
	mu     sync.Mutex
	status int
	answer string
	asked  []string
	polls  []string // asked by the digest, or how otherwise
	began  map[string]bool
}

func (s *setUps) say(status int, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.answer = status, answer
}

func (s *setUps) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, ", ")
}

func (s *setUps) serve(r *http.Request) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, answer := http.StatusOK, ""
	switch r.URL.Path {
	case agentapi.PathCloudInit:
		switch digest := r.URL.Query().Get(agentapi.ParamDigest); {
		case r.Method == http.MethodGet && !s.began[digest]:
			s.polls = append(s.polls, "not begun")
			return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}
		case r.Method == http.MethodGet:
			s.polls = append(s.polls, digest)
			return &http.Response{StatusCode: s.status, Body: io.NopCloser(strings.NewReader(s.answer))}
		}
		s.polls = append(s.polls, r.Method)
		var c agentapi.CloudInit
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			c.Document = []byte(err.Error())
		}
		if s.began == nil {
			s.began = map[string]bool{}
		}
		s.began[strings.TrimPrefix(string(c.Document), "the file ")] = true
		if n := len(s.asked); n == 0 || s.asked[n-1] != string(c.Document) {
			s.asked = append(s.asked, string(c.Document))
		}
		status, answer = s.status, s.answer
	case agentapi.PathConfig:
		s.asked = append(s.asked, "configured")
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}
}

// withFile gives a Kip a cloud-init file.
func withFile(o *operators) func(*setup) {
	return func(c *setup) { c.CloudInit = o }
}

func TestACellCarriesOutItsCloudInitFileBeforeItIsConfigured(t *testing.T) {
	file, agents := &operators{now: "one"}, &setUps{}
	inBubble(t, withFile(file), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		agents.say(http.StatusServiceUnavailable, "it is being carried out")
		offering := Offering{InstanceType: "nano", Zone: "z", BootTimeout: time.Minute}
		if _, err := b.cells.Request(t.Context(), Request{Pod: ref("a"), Seen: time.Now(), Offerings: []Offering{offering}}); err != nil {
			t.Fatal(err)
		}
		b.later(5 * time.Minute)
		cell, _ := b.cells.ForPod(ref("a").UID)
		if got := agents.all(); got != "the file one" || b.phase("a") != apiv1.Booting {
			t.Fatalf("while it goes on: asked %s, phase %s, said %v", got, b.phase("a"), b.events)
		}
		if got := b.cells.WaitsFor(cell.ID); got != "its cloud-init file is being carried out" {
			t.Errorf("it waits for %q", got)
		}
		// Neither a Kip that begins anew nor another file changes what the cell has.
		file.set("two")
		b.stop()
		b.run()
		b.later(3 * time.Minute)
		if b.phase("a") != apiv1.Booting {
			t.Fatalf("another Kip: phase %q, said %v", b.phase("a"), b.events)
		}
		agents.say(http.StatusOK, `{"failures":["user ann: no\u001b such program"]}`)
		b.later(10 * time.Second)
		if got := agents.all(); got != "the file one, configured" || b.phase("a") != apiv1.Bound {
			t.Errorf("asked %s, phase %s", got, b.phase("a"))
		}
		if said := b.said("Warning CloudInitFailed", "user ann: no? such program"); len(said) != 1 {
			t.Errorf("said %v", b.events)
		}
		b.request("b", "nano")
		b.later(10 * time.Second)
		if got := agents.all(); got != "the file one, configured, the file two, configured" || b.phase("b") != apiv1.Bound {
			t.Errorf("the next cell: asked %s, phase %s", got, b.phase("b"))
		}
		b.stop()
		b.run()
		b.later(10 * time.Second)
		if got := strings.Count(agents.all(), "the file"); got != 2 {
			t.Errorf("cells that have joined are asked again: %s", agents.all())
		}
	})
}

// launched is how many launches were asked for.
func (b *bubble) launched() int {
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	return len(b.cloud.launches)
}

func TestACellThatCannotCarryOutItsCloudInitFileEndsAndOthersWaitUntilItIsMended(t *testing.T) {
	for status, answer := range map[int]string{
		http.StatusBadRequest: "nobody can log in on Kip's own image",
		http.StatusNotFound:   "404 page not found",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			agents, file := &setUps{status: status, answer: answer}, &operators{now: "one"}
			inBubble(t, withFile(file), nil, func(t *testing.T, b *bubble) {
				b.links.agents = agents.serve
				b.request("a", "nano")
				b.later(10 * time.Second)
				if b.phase("a") != "" || len(b.said("Warning CloudInitUnfit", answer, "Kip terminates it")) != 1 {
					t.Errorf("phase %q, said %v", b.phase("a"), b.events)
				}
				if got := agents.all(); got != "the file one" {
					t.Errorf("asked %s", got)
				}
				// The pod asks again, and so do others: nothing is launched for a while.
				pods := []string{"a", "b", "c"}
				for _, pod := range pods {
					b.request(pod, "nano")
				}
				b.later(30 * time.Second)
				cell, _ := b.cells.ForPod(ref("c").UID)
				if n := b.launched(); n != 1 || b.phase("a") != apiv1.Requested || len(b.cooled) > 0 ||
					!strings.Contains(b.cells.WaitsFor(cell.ID), answer) {
					t.Errorf("%d launches; a is %q, cooled %v; c waits for %q", n, b.phase("a"), b.cooled, b.cells.WaitsFor(cell.ID))
				}
				if said := b.said("Warning CloudInitUnfit", answer, "The pod waits"); len(said) != 3 || len(file.told()) != 3 {
					t.Errorf("said %v, told the operator %q", said, file.told())
				}
				// Those of an image of its own are launched all the same.
				b.ask("own", Options{Image: map[string]string{"imageid": "mine"}}, "nano")
				b.later(10 * time.Second)
				if n := b.launched(); n != 2 {
					t.Errorf("%d launches with one of another image", n)
				}
				// One goes in each of the pauses, of 1, 2, 4, 8, 16 and 30 minutes. Its pod asks again.
				for range 61 {
					b.later(time.Minute)
					for _, pod := range pods {
						if b.phase(pod) == "" {
							b.request(pod, "nano")
						}
					}
				}
				if n := b.launched(); n < 6 || n > 8 {
					t.Errorf("%d launches in an hour, want one for each pause", n)
				}
				agents.say(http.StatusOK, "{}")
				file.set("two")
				b.later(30 * time.Second)
				for _, pod := range pods {
					if b.phase(pod) != apiv1.Bound {
						t.Errorf("with another file %s is %q; said %v", pod, b.phase(pod), b.events)
					}
				}
			})
		})
	}
}

func TestWhatDoesNotFitTheImageOfOneArchitectureHoldsUpNoOther(t *testing.T) {
	agents := &setUps{status: http.StatusBadRequest, answer: "no"}
	inBubble(t, withFile(&operators{now: "one"}), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		request := func(pod, arch string) {
			offering := Offering{
				InstanceType: "nano",
				Zone:         "z",
				Arch:         arch,
				BootTimeout:  time.Minute,
			}
			r := Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Offerings: []Offering{offering}}
			if _, err := b.cells.Request(b.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		request("a", "amd64")
		b.later(10 * time.Second)
		agents.say(http.StatusOK, "{}")
		request("b", "amd64")
		request("c", "arm64")
		b.later(10 * time.Second)
		if b.phase("a") != "" || b.phase("b") != apiv1.Requested || b.phase("c") != apiv1.Bound {
			t.Errorf("a is %q, b, of its architecture, %q, and c, of another, %q; said %v", b.phase("a"), b.phase("b"), b.phase("c"), b.events)
		}
		b.later(2 * time.Minute) // c says nothing of the image of b
		if b.phase("b") != apiv1.Bound || b.launched() != 3 {
			t.Errorf("b is %q after its pause, with %d launches", b.phase("b"), b.launched())
		}
	})
}

func TestWhatAnImageIsMendedOfIsFoundOutByOneCell(t *testing.T) {
	agents := &setUps{status: http.StatusBadRequest, answer: "no"}
	inBubble(t, withFile(&operators{now: "one"}), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		b.request("a", "nano")
		b.later(10 * time.Second)
		for _, pod := range []string{"a", "b", "c"} {
			b.request(pod, "nano")
		}
		agents.say(http.StatusOK, "{}")
		b.later(2 * time.Minute)
		for _, pod := range []string{"a", "b", "c"} {
			if b.phase(pod) != apiv1.Bound {
				t.Errorf("%s is %q", pod, b.phase(pod))
			}
		}
	})
}

// unfitting runs a bubble with a cloud-init file, which each agent carries out, and a cloud that may find that
// launches do not fit.
func unfitting(t *testing.T, file *operators, names *modelNames, f func(t *testing.T, b *bubble)) {
	t.Helper()
	inBubble(t, func(c *setup) {
		withFile(file)(c)
		c.Cloud.(*modelCloud).optional.Resolver = names
	}, nil, func(t *testing.T, b *bubble) {
		agents := &setUps{status: http.StatusOK, answer: "{}"}
		b.links.agents = agents.serve
		b.later(time.Second)
		f(t, b)
	})
}

func TestWhereTheImageHasNoArchitectureOfATypeAnotherIsTaken(t *testing.T) {
	file := &operators{now: "one"}
	names := &modelNames{answer: func(_ context.Context, _ int, s cloud.LaunchSpec) error {
		if s.Arch == "arm64" {
			return cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: s.InstanceType}, errors.New("no image for arm64"))
		}
		return nil
	}}
	unfitting(t, file, names, func(t *testing.T, b *bubble) {
		for pod, archs := range map[string][]string{"both": {"arm64", "arm64", "amd64"}, "one": {"arm64", "arm64"}} {
			r := Request{Pod: ref(pod), Attempt: 1, Seen: time.Now(), Special: true}
			for n, arch := range archs {
				r.Offerings = append(r.Offerings, Offering{
					InstanceType: fmt.Sprint(arch, n), Arch: arch, Zone: "z", PricePerHour: 1, BootTimeout: time.Hour,
				})
			}
			if _, err := b.cells.Request(b.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		b.later(time.Hour)
		both, _ := b.cells.ForPod(ref("both").UID)
		if both.Phase != apiv1.Bound || both.Offering().InstanceType != "amd642" || b.launched() != 1 {
			t.Errorf("the pod that may have either is %q on %s, after %d launches", both.Phase, both.Offering(), b.launched())
		}
		one, _ := b.cells.ForPod(ref("one").UID)
		const why = "no image for arm64"
		if waits := b.cells.WaitsFor(one.ID); one.Phase != apiv1.Requested || one.Refusals != 0 || !strings.Contains(waits, why) {
			t.Errorf("the pod that may not is %q, and waits for %q", one.Phase, waits)
		}
		if len(b.cooled) > 0 || len(file.told()) > 0 || len(b.said("Warning CloudInitUnfit")) > 0 ||
			len(b.said("Warning LaunchDelayed", why)) == 0 {
			t.Errorf("cooled %v; the cloud-init file is blamed %d times, and said %v", b.cooled, len(file.told()), b.said(""))
		}
	})
}

func TestALaunchThatTheOperatorIsToMendWaitsAndBlamesNobody(t *testing.T) {
	file := &operators{now: "users"}
	unfit := cloud.No(cloud.ErrUnfit, cloud.Scope{}, errors.New("nobody can log in"))
	names := &modelNames{answer: func(_ context.Context, _ int, s cloud.LaunchSpec) error {
		if s.Login && len(s.Image) == 0 {
			return fmt.Errorf("resolve a launch of %s: %w", s.InstanceType, unfit)
		}
		return nil
	}}
	unfitting(t, file, names, func(t *testing.T, b *bubble) {
		b.request("a", "nano", "small")
		b.request("b", "small")
		b.ask("own", Options{Image: map[string]string{"imageid": "mine"}}, "nano")
		b.later(time.Hour)
		const why = "the configuration does not fit: nobody can log in"
		for _, pod := range []string{"a", "b"} {
			cell, _ := b.cells.ForPod(ref(pod).UID)
			if cell.Phase != apiv1.Requested || b.cells.WaitsFor(cell.ID) != why || cell.Refusals != 0 {
				t.Errorf("%s is %q and waits for %q after %d refusals", pod, cell.Phase, b.cells.WaitsFor(cell.ID), cell.Refusals)
			}
		}
		if b.phase("own") != apiv1.Bound || len(b.cooled) > 0 || b.launched() != 1 {
			t.Errorf("one with an image of its own is %q; cooled %v, launched %d", b.phase("own"), b.cooled, b.launched())
		}
		if said := b.said("Warning CloudInitUnfit", why, "The pod waits"); len(said) < 2 || len(said) > 2*13 || len(file.told()) != len(said) {
			t.Errorf("in an hour it is said %d times, and told the operator %d times", len(said), len(file.told()))
		}
		if said := b.said("LaunchDelayed"); len(said) > 0 {
			t.Errorf("said %v", said)
		}
		file.set("two")
		b.later(30 * time.Second)
		for _, pod := range []string{"a", "b"} {
			if b.phase(pod) != apiv1.Bound {
				t.Errorf("with another file %s is %q", pod, b.phase(pod))
			}
		}
	})
}

func TestAnAgentIsGivenItsCloudInitFileOnceAndAskedLessAndLessOften(t *testing.T) {
	agents := &setUps{status: http.StatusServiceUnavailable}
	inBubble(t, withFile(&operators{now: "one"}), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		b.request("a", "nano")
		b.later(5 * time.Minute)
		agents.mu.Lock()
		polls := slices.Clone(agents.polls)
		clear(agents.began) // as if its disk were lost
		agents.mu.Unlock()
		// 25 ms after the first, then twice as late each time up to 5 s.
		n := len(polls)
		if got := strings.Join(slices.Compact(polls), " "); n < 60 || n > 70 || got != "PUT one" {
			t.Errorf("in five minutes it is asked %d times: %s", n, got)
		}
		b.later(16 * time.Second)
		agents.mu.Lock()
		polls = slices.Clone(agents.polls)
		agents.mu.Unlock()
		if got := strings.Join(slices.Compact(polls), " "); got != "PUT one not begun PUT one" {
			t.Errorf("an agent that has lost it is asked %s", got)
		}
		agents.say(http.StatusOK, "{}")
		b.later(6 * time.Second)
		if b.phase("a") != apiv1.Bound {
			t.Errorf("it is %q", b.phase("a"))
		}
	})
}

func TestACellHasTenMinutesForItsCloudInitFile(t *testing.T) {
	agents := &setUps{status: http.StatusServiceUnavailable}
	inBubble(t, withFile(&operators{now: "one"}), nil, func(t *testing.T, b *bubble) {
		b.links.agents = agents.serve
		b.request("a", "nano")
		b.later(cloudInitTimeout - 10*time.Second)
		if b.phase("a") != apiv1.Booting {
			t.Fatalf("it is %q before its time; said %v", b.phase("a"), b.events)
		}
		b.later(30 * time.Second)
		if b.phase("a") != "" || len(b.said("CellNotReady", "did not finish its cloud-init file in time")) != 1 {
			t.Errorf("it is %q; said %v", b.phase("a"), b.events)
		}
	})
}

func TestStandbyCellsOfAnotherCloudInitFileAreReplaced(t *testing.T) {
	file, agents := &operators{}, &setUps{status: http.StatusOK, answer: "{}"}
	inBubble(t, func(c *setup) {
		keep(1)(c)
		c.CloudInit = file
		c.Tunnels.(*modelLinks).agents = agents.serve // before it asks the pool's cells
	}, nil, func(t *testing.T, b *bubble) {
		b.later(10 * time.Second)
		old := b.cells.List()
		if len(old) != 1 || old[0].CloudInit() != "" || agents.all() != "configured" {
			t.Fatalf("cells %+v, asked %s", old, agents.all())
		}
		file.set("one")
		b.later(time.Minute)
		now := b.cells.List()
		if len(now) != 1 || now[0].ID == old[0].ID || now[0].CloudInit() != "one" || now[0].Phase != apiv1.Ready {
			t.Errorf("cells %+v", now)
		}
		b.later(time.Hour)
		if last := b.cells.List(); len(last) != 1 || last[0].ID != now[0].ID {
			t.Errorf("they go on being replaced: %+v", last)
		}
	})
}
