package cells

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
)

// modelNames resolves launches to an image that changes each time.
type modelNames struct {
	mu    sync.Mutex
	specs []cloud.LaunchSpec
	// answer is the error of the nth call, counted from 1; nil for none. It may wait for ctx.
	answer func(ctx context.Context, n int, s cloud.LaunchSpec) error
}

func (m *modelNames) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	m.mu.Lock()
	m.specs = append(m.specs, s)
	n := len(m.specs)
	m.mu.Unlock()
	if m.answer != nil {
		if err := m.answer(ctx, n, s); err != nil {
			return cloud.Resolved{}, err
		}
	}
	return cloud.Resolved{Image: fmt.Sprint("image-", n), PublicAddress: true}, nil
}

func (m *modelNames) asked() []cloud.LaunchSpec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.specs)
}

// inResolvingBubble is a bubble in which the cloud resolves launches.
func inResolvingBubble(t *testing.T, names *modelNames, f func(t *testing.T, b *bubble)) {
	t.Helper()
	inBubble(t, func(c *setup) {
		c.Cloud.(*modelCloud).optional.Resolver = names
		c.NameTag = "prod"
	}, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.later(time.Second)
		f(t, b)
	})
}

func images(sent []cloud.LaunchRequest) (all []string) {
	for _, r := range sent {
		image := "unresolved"
		if r.Resolved != nil {
			image = r.Resolved.Image
		}
		all = append(all, fmt.Sprint(r.InstanceType, " ", image))
	}
	return all
}

// The model refuses a token that comes with another request.
func TestALaunchIsResolvedOnceAndSentAsItIsStored(t *testing.T) {
	names := &modelNames{}
	inResolvingBubble(t, names, func(t *testing.T, b *bubble) {
		var sent []cloud.LaunchRequest
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				if sent = append(sent, r); len(sent) < 4 {
					return errors.New("connection reset"), len(sent) == 1
				}
				return nil, false
			}
		})
		b.hour("a")
		b.later(time.Second)
		b.stop()
		b.run()
		b.later(time.Minute)
		if got := images(sent); len(sent) < 4 || len(slices.Compact(got)) != 1 || sent[0].Token != sent[3].Token {
			t.Errorf("sent %v", got)
		}
		if b.phase("a") != apiv1.Bound || len(b.cloud.running()) != 1 {
			t.Errorf("it is %s, and %v run", b.phase("a"), b.cloud.running())
		}
		if cell, _ := b.cells.ForPod(ref("a").UID); cell.Launch == nil || !cell.Launch.PublicAddress {
			t.Errorf("its launch is %+v, want it to say that it has a public address", cell.Launch)
		}
		spec := names.asked()
		if len(spec) != 1 || spec[0].InstanceType != "nano" || spec[0].Tags[cloud.TagOwner] != "me" || spec[0].Tags[cloud.TagNameTag] != "prod" {
			t.Errorf("resolved %+v", spec)
		}
	})
}

func TestALaunchOfWhatIsGoneIsResolvedAnewOnce(t *testing.T) {
	stale := cloud.No(cloud.ErrStale, cloud.Scope{}, errors.New("the image is gone"))
	for what, tc := range map[string]struct {
		stale int
		sent  string
		said  int
	}{
		"gone once":          {1, "[nano image-1 nano image-2]", 1},
		"shown, but gone":    {2, "[nano image-1 nano image-2 small image-3]", 1},
		"each time, of each": {9, "[nano image-1 nano image-2 small image-3 small image-4]", 2},
	} {
		inResolvingBubble(t, &modelNames{}, func(t *testing.T, b *bubble) {
			var sent []cloud.LaunchRequest
			b.cloud.set(func() {
				b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
					if sent = append(sent, r); len(sent) <= tc.stale {
						return stale, false
					}
					return nil, false
				}
			})
			b.ask("a", Options{}, "nano", "small")
			b.later(time.Minute)
			tokens := map[string]bool{}
			for _, r := range sent {
				tokens[r.Token] = true
			}
			if got := fmt.Sprint(images(sent)); got != tc.sent || len(tokens) != len(sent) {
				t.Errorf("%s: sent %s with %d tokens, want %s", what, got, len(tokens), tc.sent)
			}
			want := map[bool]apiv1.Phase{true: apiv1.Bound, false: ""}[tc.stale < 4]
			if b.phase("a") != want || len(b.cooled) > 0 || len(b.said(events.LaunchDelayed, "preparing the launch again")) != tc.said ||
				len(b.launchesStored()) > 0 {
				t.Errorf("%s: it is %q, remembered %v, stored %v, said %v", what, b.phase("a"), b.cooled, b.launchesStored(), b.events)
			}
		})
	}
}

// What the operator has to put right ends no cell, however long that takes, and blames no offering.
func TestALaunchThatTheConfigurationDoesNotFitWaitsForTheOperator(t *testing.T) {
	var began time.Time
	barred := map[time.Duration]bool{} // by whole minutes
	unfit := func() error {
		if is := barred[time.Since(began)/time.Minute]; !is {
			return nil
		}
		return cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: "nano"}, errors.New("nobody has subscribed to the image"))
	}
	names := &modelNames{answer: func(context.Context, int, cloud.LaunchSpec) error { return unfit() }}
	inResolvingBubble(t, names, func(t *testing.T, b *bubble) {
		began = time.Now()
		sent := 0
		b.cloud.set(func() {
			b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
				// Each launch shows that the image is not put right, until the third.
				if sent++; sent > 2 {
					return nil, false
				}
				now := time.Since(began) / time.Minute
				for n := range time.Duration(5) {
					barred[now+n] = true
				}
				return unfit(), false
			}
		})
		b.special = true
		b.ask("a", Options{}, "nano", "small")
		b.later(4 * time.Minute)
		if sent != 1 || b.phase("a") != apiv1.Requested {
			t.Errorf("before it is put right: %d launches, it is %q", sent, b.phase("a"))
		}
		b.later(30 * time.Minute)
		if cell, _ := b.cells.ForPod(ref("a").UID); sent != 3 || b.phase("a") != apiv1.Bound || cell.Offering().InstanceType != "nano" {
			t.Errorf("after that: %d launches, it is %q as %s", sent, b.phase("a"), cell.Offering())
		}
		if len(b.cooled) > 0 || len(b.said("subscribed", "The pod waits")) == 0 {
			t.Errorf("remembered %v, said %v", b.cooled, b.events)
		}
	})
}

// Each offering is another launch: what was gone for one before is not held against it.
func TestALaunchOfWhatIsGoneIsResolvedAnewOnceForEachOffer(t *testing.T) {
	inResolvingBubble(t, &modelNames{}, func(t *testing.T, b *bubble) {
		answers := []error{cloud.ErrStale, cloud.ErrCapacity, cloud.ErrStale, nil}
		var sent []cloud.LaunchRequest
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				sent = append(sent, r)
				return answers[min(len(sent), len(answers))-1], false
			}
		})
		b.ask("a", Options{}, "nano", "small")
		b.later(time.Minute)
		if got := fmt.Sprint(images(sent)); b.phase("a") != apiv1.Bound || got != "[nano image-1 nano image-2 small image-3 small image-4]" {
			t.Errorf("it is %q; sent %s", b.phase("a"), got)
		}
	})
}

// That of a call that may have been made before is no proof that nothing runs.
func TestAStaleLaunchThatMayHaveWorkedIsGivenUp(t *testing.T) {
	inResolvingBubble(t, &modelNames{}, func(t *testing.T, b *bubble) {
		n := 0
		b.cloud.set(func() {
			b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
				if n++; n == 1 {
					return errors.New("connection reset"), true
				}
				return cloud.ErrStale, false
			}
		})
		b.hour("a")
		b.later(time.Minute)
		if n != 2 || len(b.cloud.running()) != 0 || b.phase("a") != "" || len(b.cooled) > 0 {
			t.Errorf("%d calls; it is %q, %v run; remembered %v", n, b.phase("a"), b.cloud.running(), b.cooled)
		}
	})
}

func TestALaunchThatCannotBeResolvedIsNotSentAndSaysWhy(t *testing.T) {
	var began time.Time
	noSubnet := cloud.No(cloud.ErrRefused, cloud.Scope{Subnet: "s"}, errors.New("no subnet"))
	for what, tc := range map[string]struct {
		answer func(n int, s cloud.LaunchSpec) error
		asked  int
		sent   string
		cooled string
		said   string // and once
		phase  apiv1.Phase
	}{
		"not by this offering": {
			answer: func(_ int, s cloud.LaunchSpec) error {
				if s.InstanceType == "nano" {
					return noSubnet
				}
				return nil
			},
			asked:  2,
			sent:   "[small image-2]",
			cooled: "[nano]",
			said:   "no subnet",
			phase:  apiv1.Bound,
		},
		"by none": {
			answer: func(int, cloud.LaunchSpec) error { return noSubnet },
			asked:  2,
			sent:   "[]",
			cooled: "[nano small]",
			said:   "no other type fits",
		},
		"not for a while": {
			answer: func(int, cloud.LaunchSpec) error {
				if time.Since(began) < 30*time.Second {
					return errors.New("connection reset")
				}
				return nil
			},
			asked:  9, // 0.2 s after the first, then twice as late each time
			sent:   "[nano image-9]",
			cooled: "[]",
			said:   events.LaunchDelayed,
			phase:  apiv1.Bound,
		},
		"without rights": {
			answer: func(n int, _ cloud.LaunchSpec) error {
				if n == 1 {
					return cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("no right"))
				}
				return nil
			},
			asked:  2,
			sent:   "[nano image-2]",
			cooled: "[]",
			said:   events.LaunchesPaused,
			phase:  apiv1.Bound,
		},
	} {
		names := &modelNames{answer: func(_ context.Context, n int, s cloud.LaunchSpec) error { return tc.answer(n, s) }}
		inResolvingBubble(t, names, func(t *testing.T, b *bubble) {
			sent := b.calls()
			began = time.Now()
			b.ask("a", Options{}, "nano", "small")
			b.later(time.Minute)
			if got := fmt.Sprint(images(*sent)); got != tc.sent || len(names.asked()) != tc.asked {
				t.Errorf("%s: sent %s after %d questions, want %s after %d", what, got, len(names.asked()), tc.sent, tc.asked)
			}
			if fmt.Sprint(b.cooled) != tc.cooled || len(b.said(tc.said)) != 1 || b.phase("a") != tc.phase {
				t.Errorf("%s: it is %q, want %q; remembered %v, want %s; said %v", what, b.phase("a"), tc.phase, b.cooled, tc.cooled, b.events)
			}
		})
	}
}

// After a launch that was throttled the cloud is sent one at a time: one that is still being
// resolved is none of them.
func TestALaunchThatIsBeingResolvedTakesNoTurnFromOthers(t *testing.T) {
	names := &modelNames{answer: func(ctx context.Context, _ int, s cloud.LaunchSpec) error {
		if s.InstanceType == "nano" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
	inResolvingBubble(t, names, func(t *testing.T, b *bubble) {
		n := 0
		b.cloud.set(func() {
			b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
				if n++; n == 1 {
					return cloud.ErrThrottled, false
				}
				return nil, false
			}
		})
		b.ask("throttled", Options{}, "micro")
		b.later(10 * time.Millisecond)
		b.ask("stuck", Options{}, "nano")
		b.ask("other", Options{}, "small")
		b.later(callTimeout / 2)
		if b.phase("stuck") != apiv1.Requested || b.phase("throttled") != apiv1.Bound || b.phase("other") != apiv1.Bound {
			t.Errorf("one is being resolved, %q; the others are %q and %q", b.phase("stuck"), b.phase("throttled"), b.phase("other"))
		}
	})
}

// A pod that goes while its launch, which is resolved, waits for its turn is not launched.
func TestALaunchIsNotSentOfAPodThatWentBeforeItsTurn(t *testing.T) {
	inResolvingBubble(t, &modelNames{answer: func(context.Context, int, cloud.LaunchSpec) error {
		time.Sleep(2 * time.Second)
		return nil
	}}, func(t *testing.T, b *bubble) {
		var sent []string // by goroutines that hold the cloud's lock
		types := func() (text string) {
			b.cloud.set(func() { text = fmt.Sprint(sent) })
			return text
		}
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				if sent = append(sent, r.InstanceType); len(sent) == 1 {
					return &cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: 30 * time.Second, NothingDone: true}, false
				}
				return nil, false
			}
		})
		b.ask("throttled", Options{}, "micro")
		b.later(time.Second)
		b.ask("gone", Options{}, "nano")
		b.later(5 * time.Second)
		if got := types(); got != "[micro]" {
			t.Fatalf("%s are sent while the cloud wants none", got)
		}
		b.cells.Release(ref("gone").UID, "its pod was deleted", false)
		b.later(time.Minute)
		if types() != "[micro micro]" || b.phase("gone") != "" || b.phase("throttled") != apiv1.Bound {
			t.Errorf("sent %s; the one that went is %q, the other %q", types(), b.phase("gone"), b.phase("throttled"))
		}
	})
}

// A cloud that does not answer, or holds a question back, says nothing of the offering.
func TestALaunchThatCannotBeResolvedWaitsForTheCloudAndBlamesNoOffer(t *testing.T) {
	for what, failure := range map[string]error{
		"no answer":    errors.New("ask EC2: connection refused"),
		"it is busy":   cloud.ErrThrottled,
		"it was held":  &pipe.UnsentError{Err: context.DeadlineExceeded},
		"its time out": context.DeadlineExceeded,
	} {
		var back atomic.Bool
		names := &modelNames{answer: func(context.Context, int, cloud.LaunchSpec) error {
			if !back.Load() {
				return failure
			}
			return nil
		}}
		inResolvingBubble(t, names, func(t *testing.T, b *bubble) {
			sent := b.calls()
			b.ask("a", Options{}, "nano", "small")
			b.later(10 * giveUpAfter)
			if n := len(names.asked()); b.phase("a") != apiv1.Requested || n < giveUpTries {
				t.Errorf("%s: it is %q, after %d questions", what, b.phase("a"), n)
			}
			back.Store(true)
			b.later(giveUpAfter)
			b.note(func() {
				if len(b.cooled) != 0 {
					t.Errorf("%s: remembered %v", what, b.cooled)
				}
			})
			if len(*sent) != 1 || (*sent)[0].InstanceType != "nano" || b.phase("a") != apiv1.Bound || len(b.said(events.LaunchDelayed)) != 1 {
				t.Errorf("%s: it is %q, sent %v, said %v", what, b.phase("a"), *sent, b.events)
			}
		})
	}
}

// Whoever runs Kip reads in the log why launches wait, be it the cloud's affair or the image's.
func TestALaunchThatCannotBeResolvedIsLogged(t *testing.T) {
	for _, failure := range []error{
		errors.New("ask EC2: connection refused"),
		cloud.No(cloud.ErrUnfit, cloud.Scope{InstanceType: "nano"}, errors.New("no image for arm64")),
	} {
		var log bytes.Buffer
		names := &modelNames{answer: func(context.Context, int, cloud.LaunchSpec) error { return failure }}
		inBubble(t, func(c *setup) {
			c.Cloud.(*modelCloud).optional.Resolver = names
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		}, nil, func(t *testing.T, b *bubble) {
			b.later(time.Second)
			b.ask("a", Options{}, "nano")
			b.later(time.Minute)
		})
		if !strings.Contains(log.String(), "resolve a launch, retrying") || !strings.Contains(log.String(), failure.Error()) {
			t.Errorf("%v is not logged:\n%s", failure, log.String())
		}
	}
}

// One question that the cloud does not answer keeps no other cell from being launched, and no
// pod from being let go.
func TestALaunchThatIsBeingResolvedHoldsUpNobody(t *testing.T) {
	names := &modelNames{answer: func(ctx context.Context, _ int, s cloud.LaunchSpec) error {
		switch s.InstanceType {
		case "nano":
			<-ctx.Done()
			return ctx.Err()
		case "micro":
			time.Sleep(callTimeout / 2) // virtual
		}
		return nil
	}}
	inResolvingBubble(t, names, func(t *testing.T, b *bubble) {
		sent := b.calls()
		b.ask("stuck", Options{}, "nano")
		b.ask("slow", Options{}, "micro")
		b.later(time.Second)
		b.ask("other", Options{}, "small")
		b.later(10 * time.Second)
		if b.phase("other") != apiv1.Bound || b.phase("stuck") != apiv1.Requested || b.phase("slow") != apiv1.Requested {
			t.Errorf("the other is %q, and the ones %q and %q", b.phase("other"), b.phase("stuck"), b.phase("slow"))
		}
		b.cells.Release(ref("stuck").UID, "its pod was deleted", false)
		b.cells.Release(ref("slow").UID, "its pod was deleted", false)
		b.later(callTimeout)
		if got := images(*sent); b.phase("stuck") != "" || b.phase("slow") != "" || len(got) != 1 {
			t.Errorf("they are %q and %q; sent %v", b.phase("stuck"), b.phase("slow"), got)
		}
	})
}
