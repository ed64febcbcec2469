package pipe

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"k8s.io/utils/clock"
)

var errHeld = errors.New("held back")

func TestEveryCallGoesThroughThePipe(t *testing.T) {
	var kinds []cloud.Call
	p := New(Config{Cloud: hangs{}, Clock: clock.RealClock{}, Guard: func(_ context.Context, call Call, _ Send) []Answer {
		kinds = append(kinds, call.Kind)
		return call.Fail(errHeld)
	}})
	sent := func(kind cloud.Call, err error) {
		t.Helper()
		if !errors.Is(err, errHeld) || !slices.Equal(kinds, []cloud.Call{kind}) {
			t.Errorf("%s went through the pipe as %v, and ended with %v", kind, kinds, err)
		}
		kinds = nil
	}
	for kind, call := range everyCall(p) {
		sent(kind, call(t.Context()))
	}
	_, err := p.Optional().Owners.ListOwners(t.Context())
	sent(cloud.CallList, err)
	if p.limiter.of(cloud.CallLaunch).underWay != 0 {
		t.Error("a launch that was held back keeps its turn")
	}
}

// bare is a cloud without optional interfaces.
type bare struct{ hangs }

func (bare) Optional() cloud.Optional { return cloud.Optional{} }

func TestAPipeHasExactlyTheFeaturesOfItsCloud(t *testing.T) {
	if got := New(Config{Cloud: bare{}, Clock: clock.RealClock{}}).Optional(); got != (cloud.Optional{}) {
		t.Errorf("the pipe to a cloud without optional interfaces has %+v", got)
	}
	all := reflect.ValueOf(New(Config{Cloud: hangs{}, Clock: clock.RealClock{}}).Optional())
	for field, of := range reflect.ValueOf(hangs{}.Optional()).Fields() {
		switch through := all.FieldByIndex(field.Index); {
		case of.IsNil():
			t.Errorf("the test's cloud lacks the feature %s: add it to hangs and everyCall", field.Name)
		case through.IsNil() || through.Elem().Type() != reflect.TypeFor[*optional]():
			t.Errorf("the pipe's feature %s is %v, want the one that goes through the pipe: add it to through", field.Name, through)
		}
	}
}

// tags is a cloud that tags, and has parts.
type tags struct{ *told }

func (c *tags) Optional() cloud.Optional {
	return cloud.Optional{Tagger: c, OwnedResources: c, Resolver: c}
}

func (c *tags) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	return cloud.Resolved{Image: "of " + s.Subnet}, c.each(ctx, cloud.CallResolve, s.Subnet).Err()
}

func (c *tags) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	ids := make([]string, len(taggings))
	for n, t := range taggings {
		ids[n] = t.ID + "=" + t.Tags["for"]
	}
	results := c.each(ctx, cloud.CallTag, ids...)
	for n := range results {
		results[n].ID = taggings[n].ID
	}
	return results
}

func (c *tags) ListOwned(ctx context.Context, owner string) ([]cloud.OwnedResource, error) {
	return []cloud.OwnedResource{{ID: "p"}}, c.each(ctx, cloud.CallListOwned, owner).Err()
}

func (c *tags) DeleteOwned(ctx context.Context, ids ...string) cloud.Results {
	return c.each(ctx, cloud.CallDeleteOwned, ids...)
}

func TestTagsAndPartsKeepToTheirBudgetsAndWhatIsThrottledIsSentAgain(t *testing.T) {
	capabilities := cloud.Capabilities{Budgets: map[cloud.Call]cloud.Budget{
		cloud.CallTag: {Requests: cloud.Bucket{Capacity: 10, Refill: 1}, Resources: cloud.Bucket{Capacity: 2, Refill: 1}},
	}}
	synctest.Test(t, func(t *testing.T) {
		cl := &tags{told: &told{capabilities: capabilities, began: time.Now()}}
		cl.answers = func(_ context.Context, kind cloud.Call, id string) error {
			switch {
			case kind == cloud.CallResolve && time.Since(cl.began) < 6*time.Second,
				id == "b=you" && time.Since(cl.began) == 0, id == "q" && time.Since(cl.began) < 5*time.Second:
				return throttledNow(0)
			case id == "r":
				return fmt.Errorf("%w: it is in use", cloud.ErrRefused)
			}
			return nil
		}
		f := New(Config{Cloud: cl, Random: one, Clock: clock.RealClock{}}).Optional()
		if err := f.Tagger.Tag(t.Context(),
			cloud.Tagging{ID: "a", Tags: map[string]string{"for": "me"}},
			cloud.Tagging{ID: "b", Tags: map[string]string{"for": "you"}},
			cloud.Tagging{ID: "c", Tags: map[string]string{"for": "all"}},
		).Err(); err != nil {
			t.Error(err)
		}
		time.Sleep(4*time.Second - time.Since(cl.began))
		for _, r := range f.OwnedResources.DeleteOwned(t.Context(), "p", "q", "r") {
			if (r.Err != nil) != (r.ID == "r") {
				t.Errorf("part %s: %v", r.ID, r.Err)
			}
		}
		if got, err := f.Resolver.Resolve(t.Context(), cloud.LaunchSpec{Subnet: "s"}); err != nil || got.Image != "of s" ||
			time.Since(cl.began) < 6*time.Second {
			t.Errorf("a launch is resolved to %+v, %v", got, err)
		}
		if list, err := f.OwnedResources.ListOwned(t.Context(), "me"); err != nil || len(list) != 1 {
			t.Errorf("parts %v, %v", list, err)
		}
		want := []string{
			"0s tag a=me,b=you", "1s tag c=all,b=you",
			"4s deleteParts p,q,r", "5s deleteParts q", "5s resolve s", "6s resolve s", "6s listParts me",
		}
		if got := cl.sent(); !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

// looker is a cloud that is asked again and again what it takes back.
type looker struct{ *told }

func (l looker) Optional() cloud.Optional { return cloud.Optional{Interrupter: l} }

func (l looker) Interruptions(ctx context.Context, to cloud.Listener) error {
	for range 3 {
		err := to.Look(ctx, func(ctx context.Context) error { return l.each(ctx, cloud.CallInterruptions, "").Err() })
		if err != nil {
			return err
		}
	}
	to.Notify(cloud.Interruption{InstanceID: "i-a"})
	return nil
}

func TestALookForInterruptionsWaitsInALineOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := 1
		l := looker{&told{
			began:        time.Now(),
			capabilities: budget(cloud.CallInterruptions, 2, 1),
			answers: func(context.Context, cloud.Call, string) error {
				if throttled--; throttled >= 0 {
					return throttledNow(0)
				}
				return nil
			},
		}}
		c := New(Config{Cloud: l, Random: one, Clock: clock.RealClock{}})
		noticed := ""
		err := c.Optional().Interrupter.Interruptions(t.Context(), cloud.Listener{
			Notify: func(i cloud.Interruption) { noticed += i.InstanceID },
		})
		if err != nil || noticed != "i-a" {
			t.Errorf("told of %q, then %v", noticed, err)
		}
		// The first is throttled, and the cloud's bucket is then empty: one a second goes.
		const kind = " interruptions "
		if want := []string{"0s" + kind, "1s" + kind, "2s" + kind, "3s" + kind}; !slices.Equal(l.sent(), want) {
			t.Errorf("sent %q, want %q", l.sent(), want)
		}
	})
}

// lender is a cloud with registries.
type lender struct{ *told }

func (l lender) Optional() cloud.Optional { return cloud.Optional{Registries: l} }

func (l lender) Images() []string { return []string{"*.example.com"} }

func (l lender) PullCredentials(ctx context.Context, registry string, repositories ...string) (cloud.PullCredentials, error) {
	what := registry + "/" + strings.Join(repositories, "+")
	return cloud.NewPullCredentials("u", "of "+what, time.Hour), l.each(ctx, cloud.CallPullCredentials, what).Err()
}

func TestPullCredentialsWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := 1
		l := lender{&told{
			began:        time.Now(),
			capabilities: budget(cloud.CallPullCredentials, 2, 1),
			answers: func(context.Context, cloud.Call, string) error {
				if throttled--; throttled >= 0 {
					return throttledNow(0)
				}
				return nil
			},
		}}
		registries := New(Config{Cloud: l, Random: one, Clock: clock.RealClock{}}).Optional().Registries
		for range 2 {
			got, err := registries.PullCredentials(t.Context(), "r.example.com", "a", "b")
			if err != nil || got.Reveal() != "of r.example.com/a+b" || len(registries.Images()) != 1 {
				t.Errorf("%v, %v, for images %v", got, err, registries.Images())
			}
		}
		// The first is throttled, and the cloud's bucket is then empty: one a second goes.
		const call = " pullCredentials r.example.com/a+b"
		if want := []string{"0s" + call, "1s" + call, "2s" + call}; !slices.Equal(l.sent(), want) {
			t.Errorf("sent %q, want %q", l.sent(), want)
		}
	})
}

// keeper is a cloud that keeps consoles.
type keeper struct {
	*told
	text []byte
}

func (k keeper) Optional() cloud.Optional { return cloud.Optional{Console: k} }

func (k keeper) Console(ctx context.Context, id string) ([]byte, error) {
	return k.text, k.each(ctx, cloud.CallConsole, id).Err()
}

func TestAConsoleWaitsForItsTurnAndIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := 1
		k := keeper{text: []byte(strings.Repeat("x", mostConsole) + "end"), told: &told{
			began: time.Now(),
			answers: func(context.Context, cloud.Call, string) error {
				if throttled--; throttled >= 0 {
					return cloud.ErrThrottled
				}
				return nil
			},
		}}
		c := New(Config{Cloud: k, Clock: clock.RealClock{}})
		text, err := c.Optional().Console.Console(t.Context(), "i-1")
		if err != nil || len(text) != mostConsole || !strings.HasSuffix(string(text), "xend") {
			t.Errorf("%d bytes, %v", len(text), err)
		}
		if len(k.calls) != 2 {
			t.Errorf("sent %q, want a second call after one that was throttled", k.calls)
		}
	})
}
