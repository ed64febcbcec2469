package cells

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/pki"
)

func labels(pairs ...string) Account {
	a := Account{Labels: map[string]string{}}
	for n := 0; n+1 < len(pairs); n += 2 {
		a.Labels[pairs[n]] = pairs[n+1]
	}
	return a
}

func TestLabelsOnWhichAllPodsOfALaunchAgreeAreTagsInItsCall(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		for what, tc := range map[string]struct {
			cells []Cell
			want  map[string]string
		}{
			"one": {[]Cell{{Account: labels("team", "a", "app", "")}}, map[string]string{"team": "a", "app": ""}},
			"some agree": {
				[]Cell{{Account: labels("team", "a", "app", "x")}, {Account: labels("team", "a", "app", "y")}},
				map[string]string{"team": "a"},
			},
			"one has none":   {[]Cell{{Account: labels("team", "a")}, {}}, nil},
			"one of standby": {[]Cell{{}}, nil},
			"Kip's own": {
				[]Cell{{Account: labels(cloud.TagOwner, "thief", cloud.TagName, "x", "team", "a", "kipdisk", "x")}},
				map[string]string{"team": "a"},
			},
			"refused before": {[]Cell{{Account: labels("team", "a"), NoLabels: true}, {Account: labels("team", "a"), NoLabels: true}}, nil},
		} {
			for n := range tc.cells {
				tc.cells[n].ID, tc.cells[n].Offerings = fmt.Sprint("cell-", n), []Offering{{InstanceType: "nano"}}
				tc.cells[n].Launch = &Launch{ID: "launch-1", Index: n, Cells: len(tc.cells), Shared: true, NameTag: "prod"}
			}
			r, err := b.cells.launches.launching.intents.builder.launchRequest(tc.cells, pki.NewBatchSecret())
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{cloud.TagOwner: "me", cloud.TagNameTag: "prod", cloud.TagBatch: "launch-1"}
			maps.Copy(want, tc.want)
			if !maps.Equal(r.Tags, want) {
				t.Errorf("%s: the launch has the tags %v, want %v", what, r.Tags, want)
			}
			// In a cloud in which each machine has tags of its own, too, none takes the place of Kip's.
			for n := range tc.cells {
				tc.cells[n].Launch.Shared = false
			}
			r, err = b.cells.launches.launching.intents.builder.launchRequest(tc.cells, pki.BatchSecret{})
			if err != nil || r.TagsOf(0)[cloud.TagOwner] != "me" {
				t.Errorf("%s: a machine has the tags %v, %v", what, r.TagsOf(0), err)
			}
		}
	})
}

// instanceOf is the ID of a pod's instance.
func (b *bubble) instanceOf(pod string) string {
	b.Helper()
	cell, _ := b.cells.ForPod(ref(pod).UID)
	if cell.Instance == nil {
		b.Fatalf("pod %s has no instance; said %v", pod, b.events)
	}
	return cell.Instance.ID
}

// A full call has the cells with one set of labels where there are as many, and no call more than without labels.
func TestCellsWithTheSameLabelsGoTogetherIfThatCostsNoCall(t *testing.T) {
	for what, tc := range map[string]struct {
		labels string // of the cells in their order, a letter each; a capital one is launched without
		want   []string
	}{
		"they fill calls":       {"xyxyxy", []string{"x0 x2 x4", "y1 y3 y5"}},
		"they do not":           {"xyzxyz", []string{"x0 x3 y1", "z2 z5 y4"}},
		"all fit into one call": {"xyz", []string{"x0 y1 z2"}},
		"the oldest comes first, whatever its labels": {"yxxxx", []string{"y0 x1 x2", "x3 x4"}},
		"those without labels go with their like":     {"xXxX", []string{"x0 x2", "X1 X3"}},
	} {
		q := newLaunchQueue()
		for n, label := range tc.labels {
			cell := Cell{ID: fmt.Sprintf("%c%d", label, n), Account: labels("team", string(label)), Offerings: []Offering{{InstanceType: "nano"}}}
			cell.NoLabels = unicode.IsUpper(label)
			item, err := queuedCellOf(newEntry(cell, 0))
			if err != nil {
				t.Fatal(err)
			}
			q.add(item)
		}
		var got []string
		for len(q.items) > 0 {
			var ids []string
			for _, e := range q.next(func(offering.Key) int { return 3 }, func(n int) int { return n }) {
				ids = append(ids, e.id)
			}
			got = append(got, strings.Join(ids, " "))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", what, got, tc.want)
		}
	}
}

func TestLabelsThatTheCallHadNotAreWrittenAfterwardsOnTheInstanceAndItsParts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.later(time.Second)
		for n, pod := range []string{"a", "b", "c"} {
			b.requestFor(pod, labels("team", "blue", "app", fmt.Sprint("app-", n)))
		}
		b.later(time.Second)
		b.cloud.set(func() {
			for id, i := range b.cloud.instances {
				i.Owned = []string{"vol-of-" + id}
				b.cloud.instances[id] = i
			}
		})
		b.later(time.Minute)
		for n, pod := range []string{"a", "b", "c"} {
			id := b.instanceOf(pod)
			if tags := b.cloud.instances[id].Tags; tags["team"] != "blue" || tags["app"] != fmt.Sprint("app-", n) || tags[cloud.TagPod] != pod {
				t.Errorf("the instance of %s has the tags %v", pod, tags)
			}
			if last := b.cloud.taggings[id]; !slices.Equal(last.Owned, []string{"vol-of-" + id}) {
				t.Errorf("the tagging of %s is %+v", id, last)
			}
		}
		// Nor has the instance of an earlier Kip its labels, which has all other tags.
		id := b.instanceOf("a")
		b.cloud.set(func() {
			i := b.cloud.instances[id]
			i.Tags = maps.Clone(i.Tags)
			delete(i.Tags, "app")
			b.cloud.instances[id] = i
		})
		b.later(5 * time.Minute)
		if tags := b.cloud.instances[id].Tags; tags["app"] != "app-0" {
			t.Errorf("then the instance has the tags %v", tags)
		}
	})
}

// An instance that is tagged looks done: its root disk, which the cloud shows later, would never be tagged.
func TestTagsWaitUntilTheCloudShowsAllPartsOfAnInstance(t *testing.T) {
	share := func(c *setup) {
		m := c.Cloud.(*modelCloud)
		m.capabilities.SharedUserData, m.optional.Tagger, m.partsLate = true, m, true
	}
	shows := func(b *bubble, parts ...string) {
		b.cloud.set(func() {
			for id, i := range b.cloud.instances {
				i.Owned, i.OwnedLate = parts, false
				b.cloud.instances[id] = i
			}
		})
	}
	for what, standby := range map[string]bool{"a cell": false, "a standby cell": true} {
		kept := func(c *setup) {
			if share(c); standby {
				keep(1)(c)
			}
		}
		inBubble(t, kept, nil, func(t *testing.T, b *bubble) {
			if standby {
				b.later(2 * time.Minute) // it has booted
			}
			b.requestFor("a", labels("team", "blue"))
			b.later(30 * time.Second)
			if cell, _ := b.cells.ForPod(ref("a").UID); (cell.Standby != "") != standby {
				t.Fatalf("%s: the pod has cell %+v", what, cell)
			}
			id := b.instanceOf("a")
			if n := b.cloud.tagged[id]; n > 0 {
				t.Errorf("%s: it is tagged %d times without its root disk", what, n)
			}
			shows(b, "vol-1", "eni-1")
			b.later(time.Minute)
			if last := b.cloud.taggings[id]; !slices.Equal(last.Owned, []string{"vol-1", "eni-1"}) || last.Tags["team"] != "blue" {
				t.Errorf("%s: the tagging is %+v", what, last)
			}
		})
	}
	inBubble(t, share, nil, func(t *testing.T, b *bubble) {
		b.requestFor("a", labels("team", "blue"))
		b.later(time.Second)
		b.later(longestOwnedWait + time.Minute)
		if tags := b.cloud.instances[b.instanceOf("a")].Tags; tags[cloud.TagPod] != "a" {
			t.Errorf("where the cloud shows no root disk at all the instance has the tags %v", tags)
		}
	})
}

func TestAStandbyCellGetsTheTagsOfItsPodWhenItIsGivenToIt(t *testing.T) {
	share := func(c *setup) {
		keep(1)(c)
		m := c.Cloud.(*modelCloud)
		m.capabilities.SharedUserData, m.optional.Tagger = true, m
	}
	inBubble(t, share, nil, func(t *testing.T, b *bubble) {
		b.later(time.Minute)
		// No look shows it before.
		b.requestFor("a", labels("team", "blue"))
		synctest.Wait()
		cell, _ := b.cells.ForPod(ref("a").UID)
		if cell.Standby == "" {
			t.Fatal("the pod has no standby cell")
		}
		if tags := b.cloud.instances[cell.Instance.ID].Tags; tags["team"] != "blue" || tags[cloud.TagPodUID] != string(ref("a").UID) {
			t.Errorf("its instance has the tags %v", tags)
		}
	})
	// Nor do tries count that were of the tags that it had before.
	inBubble(t, share, nil, func(t *testing.T, b *bubble) {
		refused := cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("UnauthorizedOperation"))
		b.cloud.set(func() { b.cloud.failTags["i-0"] = refused })
		b.later(time.Hour)
		if n := b.cloud.tagged["i-0"]; n != mostTagTries {
			t.Fatalf("the tags of the standby cell were tried %d times", n)
		}
		b.requestFor("a", labels("team", "blue"))
		synctest.Wait()
		b.cloud.set(func() { clear(b.cloud.failTags) })
		b.later(time.Minute)
		if tags := b.cloud.instances["i-0"].Tags; b.instanceOf("a") != "i-0" || tags["team"] != "blue" || tags[cloud.TagPod] != "a" {
			t.Errorf("after tries that were refused its instance has the tags %v", tags)
		}
	})
}

// An organization may allow some values of a tag only. Whoever makes pods chooses their labels, and must stop nobody else.
func TestALaunchThatIsRefusedForALabelIsMadeWithoutIt(t *testing.T) {
	for what, refusal := range map[string]error{
		"a tag policy":   cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("TagPolicyViolation")),
		"missing rights": cloud.No(cloud.ErrUnauthorised, cloud.Scope{InstanceType: "nano", Zone: "z"}, errors.New("UnauthorizedOperation")),
	} {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.sharing()
			var sent []string
			b.cloud.set(func() {
				b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
					if sent = append(sent, r.Tags["team"]); r.Tags["team"] == "bad" {
						return refusal, false
					}
					return nil, false
				}
				b.cloud.failTagging = func(t cloud.Tagging) error {
					if t.Tags["team"] == "bad" {
						return refusal
					}
					return nil
				}
			})
			b.later(time.Second)
			b.requestFor("a", labels("team", "bad"))
			b.later(5 * time.Second)
			if !slices.Equal(sent, []string{"bad", ""}) || b.phase("a") != apiv1.Bound {
				t.Errorf("%s: it was sent with the labels %q, the cell is %s; said %v", what, sent, b.phase("a"), b.events)
			}
			if len(b.cooled) > 0 || len(b.cells.shared.rights.denied) > 0 || b.cells.shared.rights.breaker != (rightsBreaker{}) {
				t.Errorf("%s: what is offered is left alone: %v, %v; launches are paused: %+v",
					what, b.cooled, b.cells.shared.rights.denied, b.cells.shared.rights.breaker)
			}
			b.requestFor("b", labels("team", "good"))
			b.later(5 * time.Second)
			if b.phase("b") != apiv1.Bound || sent[len(sent)-1] != "good" {
				t.Errorf("%s: the next pod's cell is %s, sent with the labels %q", what, b.phase("b"), sent)
			}
			// Who it is says the instance all the same.
			b.later(time.Hour)
			id := b.instanceOf("a")
			if tags := b.cloud.instances[id].Tags; tags[cloud.TagPod] != "a" || tags["team"] != "" {
				t.Errorf("%s: its instance has the tags %v", what, tags)
			}
			if n := b.cloud.tagged[id]; n > mostTagTries {
				t.Errorf("%s: its tags were tried %d times", what, n)
			}
		})
	}
}

// What is refused to all of the account no label has caused.
func TestWithoutRightsALabelIsNotToBlame(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.later(time.Second)
		sent, bare := 0, 0
		var none error = cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("AuthFailure"))
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				if sent++; r.Tags["team"] != "blue" {
					bare++
				}
				return none, false
			}
		})
		for n := range 100 {
			b.requestFor(fmt.Sprint("pod-", n), labels("team", "blue"))
		}
		b.later(10 * time.Minute)
		if sent == 0 || sent > 20 {
			t.Errorf("%d launches were sent, want two and one at each look whether the rights are back", sent)
		}
		b.cloud.set(func() { none = nil })
		b.later(5 * time.Minute)
		for n := range 100 {
			if pod := fmt.Sprint("pod-", n); b.phase(pod) != apiv1.Bound {
				t.Errorf("with rights the cell of %s is %s", pod, b.phase(pod))
			}
		}
		if bare > 0 {
			t.Errorf("%d of %d launches were sent without the label", bare, sent)
		}
	})
}

// A cell whose launch had labels looks for Kip's rights itself once more, without: the next cell's would have labels, too.
func TestALookForRightsThatHadLabelsIsFollowedByOneWithout(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.later(time.Second)
		sent := 0
		b.cloud.set(func() {
			b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
				sent++
				return cloud.No(cloud.ErrUnauthorised, cloud.Scope{InstanceType: r.InstanceType, Zone: "z"}, errors.New("UnauthorizedOperation")), false
			}
		})
		request := func(pod string, account Account) {
			r := nano(pod)
			r.Account = account
			for _, name := range []string{"micro", "small"} {
				o := r.Offerings[0]
				o.InstanceType = name
				r.Offerings = append(r.Offerings, o)
			}
			if _, err := b.cells.Request(b.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		request("first", Account{})
		b.later(time.Second)
		if b.cells.shared.rights.breaker == (rightsBreaker{}) {
			t.Fatal("launches are not paused")
		}
		sent = 0
		for n := range 100 {
			request(fmt.Sprint("pod-", n), labels("team", "blue"))
		}
		b.later(10 * time.Minute)
		if sent == 0 || sent > 40 {
			t.Errorf("%d launches were sent, want two at each look whether the rights are back", sent)
		}
		b.cloud.set(func() { b.cloud.fail = nil })
		b.later(5 * time.Minute)
		// One that looked with all of its offerings was given up, as its pod would be told: pods asks for another cell.
		bound := 0
		for n := range 100 {
			if b.phase(fmt.Sprint("pod-", n)) == apiv1.Bound {
				bound++
			}
		}
		if bound < 100-sent/2 {
			t.Errorf("with rights %d of 100 cells are bound, after %d launches", bound, sent)
		}
	})
}

func TestALaunchThatIsRefusedWithoutLabelsAlikeGetsThemBack(t *testing.T) {
	right := func(name string) error {
		return cloud.No(cloud.ErrUnauthorised, cloud.Scope{InstanceType: name, Zone: "z"}, errors.New("UnauthorizedOperation"))
	}
	policy := cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("TagPolicyViolation"))
	for what, tc := range map[string]struct {
		answers []error // to one launch after the other; the last to all that follow
		want    []string
		phase   apiv1.Phase
	}{
		"rights to one type": {
			[]error{right("nano"), right("nano"), nil},
			[]string{"nano blue", "nano ", "micro blue"}, apiv1.Bound,
		},
		"a policy": {
			[]error{policy, policy, nil},
			[]string{"nano blue", "nano ", "micro blue"}, apiv1.Bound,
		},
		"credentials that expire between the two": {
			[]error{right("nano"), cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, errors.New("RequestExpired")), nil},
			[]string{"nano blue", "nano ", "nano blue"}, apiv1.Bound,
		},
		"no capacity, by which the labels were at fault": {
			[]error{right("nano"), cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "nano"}, errors.New("none")), nil},
			[]string{"nano blue", "nano ", "micro "}, apiv1.Bound,
		},
		"whatever is tried": {
			[]error{policy},
			[]string{"nano blue", "nano ", "micro blue", "micro "}, "",
		},
	} {
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.sharing()
			b.later(time.Second)
			var sent []string
			b.cloud.set(func() {
				b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
					n := min(len(sent), len(tc.answers)-1)
					sent = append(sent, r.InstanceType+" "+r.Tags["team"])
					return tc.answers[n], false
				}
			})
			r := nano("a")
			r.Account = labels("team", "blue")
			micro := r.Offerings[0]
			micro.InstanceType = "micro"
			r.Offerings = append(r.Offerings, micro)
			if _, err := b.cells.Request(b.Context(), r); err != nil {
				t.Fatal(err)
			}
			b.later(10 * time.Minute)
			if phase := b.phase("a"); !slices.Equal(sent, tc.want) || phase != tc.phase {
				t.Errorf("%s: sent %q, want %q; the cell is %q, want %q", what, sent, tc.want, phase, tc.phase)
			}
		})
	}
}

// Policies may trust the operator's value.
func TestALabelDoesNotReplaceAConfiguredTag(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.sharing()
		b.cloud.set(func() { b.cloud.optional.Resolver = tagResolver{"Team": "ops", cloud.TagOwner: "thief"} })
		b.later(time.Second)
		sent := b.calls()
		b.requestFor("a", labels("team", "security", "app", "x"))
		b.later(time.Second)
		if len(*sent) != 1 {
			t.Fatalf("%d launches were sent", len(*sent))
		}
		r := (*sent)[0]
		if _, there := r.Tags["team"]; there || r.Tags["app"] != "x" || r.Tags[cloud.TagOwner] != "me" || r.Resolved.Tags["Team"] != "ops" {
			t.Errorf("it has the tags %v, besides %v", r.Tags, r.Resolved.Tags)
		}
	})
}

// tagResolver resolves each launch to configured tags.
type tagResolver map[string]string

func (r tagResolver) Resolve(context.Context, cloud.LaunchSpec) (cloud.Resolved, error) {
	return cloud.Resolved{Image: "image", Tags: r}, nil
}
