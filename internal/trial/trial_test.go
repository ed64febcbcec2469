package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/finding"
)

// planned runs a trial to its end.
func planned(ctx context.Context, t *testing.T, trial *Trial) Report {
	t.Helper()
	if _, err := trial.Plan(ctx); err != nil {
		t.Fatal(err)
	}
	return trial.Run(ctx)
}

// results are those of the steps by name.
func results(r Report) map[string]Result {
	all := map[string]Result{}
	for _, s := range r.Steps {
		all[s.Name] = s.Result
	}
	return all
}

func TestAllStepsAreTriedAndNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		r := planned(t.Context(), t, w.trial(firstID, nil))
		for _, s := range r.Steps {
			if s.Result != OK {
				t.Errorf("%s: %s: %s", s.Name, s.Result, s.Why)
			}
		}
		if err := r.Err(); err != nil || len(r.Steps) != 11 || !r.Left.Nothing() {
			t.Errorf("%v: %d steps, left %+v", err, len(r.Steps), r.Left)
		}
		if left := w.left(); len(left) > 0 {
			t.Errorf("left: %s", left)
		}
		batch := r.Steps[0]
		if len(batch.Pods) != 2 || batch.Pods[0].IP == "" || batch.Pods[0].IP == batch.Pods[1].IP ||
			batch.Pods[0].Instance == batch.Pods[1].Instance {
			t.Fatalf("the pods of the batch are %+v", batch.Pods)
		}
		sum := 0.0
		for _, phase := range batch.Pods[0].Phases {
			sum += phase.Seconds
		}
		if p := batch.Pods[0]; p.Seconds < boots.Seconds() || math.Abs(sum-p.Seconds) > 1e-9 || len(p.Phases) != 3 ||
			p.Phases[2].Name != started {
			t.Errorf("it started after %v s: %+v", p.Seconds, p.Phases)
		}
		if r.Spent <= 0 || r.Spent > r.Price.AtMost || r.Price.AtMost > Cap {
			t.Errorf("it has spent %v of %v", r.Spent, r.Price.AtMost)
		}
		ofThis := func(name string) bool {
			for _, s := range r.Steps {
				if slices.ContainsFunc(s.Pods, func(p PodReport) bool { return p.Instance == name }) {
					return true
				}
			}
			return false
		}
		for _, i := range w.costly {
			if !ofThis(i) {
				t.Errorf("instance %s is in no report", i)
			}
		}
	})
}

// An abandoned trial ends by itself, since all that it makes has an end, and an owner that has one.
func TestAllThatATrialMakesEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		planned(t.Context(), t, w.trial(firstID, nil))
		kinds := map[string]int{}
		for _, a := range w.kube.Actions() {
			create, is := a.(clienttesting.CreateActionImpl)
			if !is {
				continue
			}
			o := create.GetObject().(metav1.Object)
			kind := a.GetResource().Resource
			kinds[kind]++
			if o.GetLabels()[Label] != firstID {
				t.Errorf("%s %s has no label of the trial", kind, o.GetName())
			}
			if kind == "namespaces" || kind == "jobs" {
				continue
			}
			if owners := o.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Job" || owners[0].Name != endsName {
				t.Errorf("%s %s is owned by %+v", kind, o.GetName(), owners)
			}
			pod, is := o.(*corev1.Pod)
			if is && (pod.Spec.ActiveDeadlineSeconds == nil || pod.Annotations["pod.elotl.co/max-price-per-hour"] == "") {
				t.Errorf("pod %s has no bound of time or price", pod.Name)
			}
		}
		if kinds["namespaces"] != 1 || kinds["jobs"] != 1 || kinds["pods"] < 10 || kinds["services"] != 2 ||
			kinds["persistentvolumeclaims"] != 1 {
			t.Errorf("it made %v", kinds)
		}
	})
}

func TestWhatAClusterLacksIsNotTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.noBalancer, w.noClass, w.noSpot, w.noGPU = true, true, true, true })
		r := planned(t.Context(), t, w.trial(firstID, func(c *Config) {
			c.PrivateZone, c.PublicZone, c.Skip = "", "", []string{"large-image"}
			c.Catalogue = nil
		}))
		got := results(r)
		for _, name := range []string{"load-balancer", "egress-public", "egress-private", "volume", "spot", "gpu", "gpu-dry-run", "large-image"} {
			if got[name] != NotTried {
				t.Errorf("%s is %s", name, got[name])
			}
		}
		for _, s := range r.Steps {
			if s.Result == NotTried && s.Why == "" {
				t.Errorf("%s does not say why", s.Name)
			}
		}
		if got["batch"] != OK || got["logs"] != OK || got["egress"] != OK || r.Err() != nil {
			t.Errorf("%v: %v", r.Err(), got)
		}
	})
}

// Where the user names no zones, a pod goes into a zone whose subnets are all public, and another one into one whose are all private.
func TestZonesAreThoseOfKipsSubnets(t *testing.T) {
	mixed := []finding.Subnet{{ID: "s-1", Zone: "a", Public: true}, {ID: "s-2", Zone: "a"}}
	for what, tc := range map[string]struct {
		subnets         []finding.Subnet
		named           string
		public, private string
		why             string
	}{
		"one of each": {append(mixed, finding.Subnet{ID: "s-3", Zone: "c"}, finding.Subnet{ID: "s-4", Zone: "b", Public: true}), "", "b", "c", ""},
		"private ones": {[]finding.Subnet{{ID: "s-1", Zone: "b"}, {ID: "s-2", Zone: "a"}}, "", "", "a",
			"Kip has 2 subnets for cells, and no zone where all are of this kind; --public-zone names"},
		"one that is named": {mixed, "z", "z", "", "Kip has 2 subnets"},
		"no answer":         {nil, "", "", "", "Kip was not asked for its subnets: nobody answers; --public-zone names"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				trial := newWorld(t, nil).trial(firstID, func(c *Config) {
					c.PublicZone, c.PrivateZone, c.Skip = tc.named, "", []string{"batch", "logs", "load-balancer", "volume", "spot", "large-image"}
					if tc.subnets != nil {
						c.Subnets = func(context.Context) ([]finding.Subnet, error) { return tc.subnets, nil }
					}
				})
				plan, err := trial.Plan(t.Context())
				if err != nil || trial.PublicZone != tc.public || trial.PrivateZone != tc.private {
					t.Fatalf("%v: the public zone is %q, the private one %q: want %q and %q", err, trial.PublicZone, trial.PrivateZone, tc.public,
						tc.private)
				}
				for _, s := range plan.Price.Steps {
					if s.Name == stepPublic && (s.Cells == 1) != (tc.public != "") {
						t.Errorf("%s has %d instances", s.Name, s.Cells)
					}
				}
				r := trial.Run(t.Context())
				for _, s := range r.Steps {
					if zone := map[string]string{stepPublic: tc.public, stepPrivate: tc.private}[s.Name]; s.Result == NotTried && zone != "" {
						t.Errorf("%s: %s", s.Name, s.Why)
					} else if s.Name == stepPublic && zone == "" && !strings.HasPrefix(s.Why, tc.why) {
						t.Errorf("%s is %s: %s: want %q", s.Name, s.Result, s.Why, tc.why)
					}
				}
			})
		})
	}
}

func TestAStepThatFailsFailsTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.silentEgress = true })
		r := planned(t.Context(), t, w.trial(firstID, nil))
		got := results(r)
		if err := r.Err(); got["egress"] != Failed || got["volume"] != OK || err == nil || !strings.Contains(err.Error(), "egress-private") {
			t.Errorf("%v: %v", err, got)
		}
		if found := r.Steps[3].Found; len(found) != 1 || !strings.HasPrefix(found[0], "log of pod egress: ") {
			t.Errorf("the step that failed has found %q: want the log of its pod", found)
		}
		if left := w.left(); len(left) > 0 || !r.Left.Nothing() {
			t.Errorf("left: %s, told %+v", left, r.Left)
		}
	})
}

func TestItIsNotProvenThatNothingIsLeftWhereNoKipAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.noHoldings = true })
		r := planned(t.Context(), t, w.trial(firstID, nil))
		if err := r.Err(); r.Left.Nothing() || err == nil || !strings.Contains(err.Error(), "not known") {
			t.Errorf("%v: %+v", err, r.Left)
		}
	})
}

// An instance that no Cell tells of may be of a trial: its cluster has lost it.
func TestAnInstanceWithoutACellIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		trial := w.trial(firstID, func(c *Config) {
			holdings := c.Holdings
			c.Holdings = func(ctx context.Context) (all []adminapi.Holdings, err error) {
				all, err = holdings(ctx)
				all[0].Instances = append(all[0].Instances, "i-lost of cell-lost")
				all[0].Disks = []string{
					"vol-1 of 1Gi: Kip volume me kip-try-" + oldID + "/data", "vol-2 of 1Gi: Kip volume me shop/data",
					"vol-3 of 1Gi: Kip volume me kip-try-out/data",
				}
				return all, err
			}
		})
		r := planned(t.Context(), t, trial)
		got := strings.Join(r.Left.Names, "; ")
		if !strings.Contains(got, "i-lost") || !strings.Contains(got, "vol-1") || strings.Contains(got, "vol-2") ||
			strings.Contains(got, "vol-3") {
			t.Errorf("left: %s", got)
		}
	})
}

// A user may name a namespace like that of a trial, and may use the label for something else.
func TestNamespacesOfOthersAreNeitherRemovedNorWaitedFor(t *testing.T) {
	for what, space := range map[string]struct{ name, label string }{
		"the prefix alone":        {"kip-try-out", ""},
		"the form alone":          {prefix + oldID, ""},
		"the label alone":         {"shop", oldID},
		"the label of another ID": {prefix + oldID, secondID},
		"an ID that is too long":  {prefix + oldID + "2", oldID + "2"},
		"an ID with a vowel":      {prefix + "orders", "orders"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				w.add(space.name, space.label)
				w.use(space.name)
				trial := w.trial(firstID, func(c *Config) {
					holdings := c.Holdings
					c.Holdings = func(ctx context.Context) (all []adminapi.Holdings, err error) {
						all, err = holdings(ctx)
						all[0].Disks = []string{"vol-1 of 1Gi: Kip volume me " + space.name + "/data"}
						return all, err
					}
				})
				if remains, err := trial.Remains(t.Context()); err != nil || len(remains) > 0 {
					t.Errorf("%v: of trials there is %s", err, remains)
				}
				if r := planned(t.Context(), t, trial); r.Err() != nil || !r.Left.Nothing() {
					t.Errorf("%v: left %+v", r.Err(), r.Left)
				}
				if _, err := w.kube.CoreV1().Namespaces().Get(t.Context(), space.name, metav1.GetOptions{}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatATrialHasLeftIsNamed(t *testing.T) {
	for what, exists := range map[string]bool{"the namespace exists": true, "the namespace is gone": false} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, nil)
			if exists {
				w.add(prefix+oldID, oldID)
			}
			w.use(prefix + oldID)
			remains, err := w.trial(firstID, nil).Remains(t.Context())
			got := strings.Join(remains, "; ")
			if err != nil || strings.Contains(got, "namespace "+prefix+oldID) != exists || !strings.Contains(got, "Cell cell-"+prefix+oldID) ||
				!strings.Contains(got, "PersistentVolume pv-"+prefix+oldID) || w.calls > 0 {
				t.Errorf("%v: %d changes: %s", err, w.calls, got)
			}
		})
	}
}

// Between kipctl's list and its request the namespace of a trial goes, and somebody makes another of that name.
func TestANamespaceThatHasComeSinceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) {
			w.changed = func(int) {
				w.must(w.kube.Tracker().Update(spacesOf, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + oldID, UID: "other"}}, ""))
			}
		})
		w.add(prefix+oldID, oldID)
		if l := w.trial(firstID, nil).Clean(t.Context()); !l.Nothing() || w.calls != 1 {
			t.Errorf("%d changes, left %+v", w.calls, l)
		}
		if n, err := w.kube.CoreV1().Namespaces().Get(t.Context(), prefix+oldID, metav1.GetOptions{}); err != nil || n.UID != "other" {
			t.Errorf("%v: %+v", err, n)
		}
	})
}

func TestATrialDoesNotBeginWhereItIsNotKnownWhatAnEarlierOneLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.noHoldings = true })
		w.add(prefix+oldID, oldID)
		r := planned(t.Context(), t, w.trial(firstID, nil))
		if !strings.Contains(r.Problem, "not known whether an earlier trial") || len(r.Steps) > 0 || w.calls != 1 {
			t.Errorf("%q: %d steps, %d changes", r.Problem, len(r.Steps), w.calls)
		}
	})
}

func TestNewIDsAreOfTrials(t *testing.T) {
	for range 100 {
		if id := NewID(); !(spaces{}).ofTrial(prefix + id) {
			t.Errorf("%s is not the ID of a trial", id)
		}
	}
}

// At each change a trial is killed before or after it. The next one removes what it has left, and counts nothing of it.
func TestAKilledTrialLeavesNothingToTheNext(t *testing.T) {
	var whole Report
	all := 0
	few := func(c *Config) {
		c.Skip = []string{"egress", "egress-public", "egress-private", "volume", "spot", "gpu", "gpu-dry-run", "large-image"}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		planned(t.Context(), t, w.trial(firstID, nil))
		all = w.calls
		whole = planned(t.Context(), t, w.trial(secondID, few))
	})
	if all < 20 {
		t.Fatalf("a trial makes %d changes", all)
	}
	for at := 1; at <= all; at++ {
		if testing.Short() && at%3 != 1 {
			continue // make test-all has all of them
		}
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,%v", at, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, func(w *world) { w.killAt, w.after = at, after })
					first := w.trial(firstID, nil)
					func() {
						defer func() {
							if p := recover(); p != nil && p != (killed{}) {
								panic(p)
							}
						}()
						planned(t.Context(), t, first)
					}()
					w.dying, w.killAt = false, 0
					before := slices.Clone(w.costly)
					r := planned(t.Context(), t, w.trial(secondID, few))
					if left := w.left(); len(left) > 0 || !r.Left.Nothing() || r.Err() != nil {
						t.Fatalf("%v: left %s, told %+v", r.Err(), left, r.Left)
					}
					for _, s := range r.Steps {
						for _, p := range s.Pods {
							if slices.Contains(before, p.Instance) {
								t.Errorf("step %s counts instance %s of the trial that was killed", s.Name, p.Instance)
							}
						}
					}
					if math.Abs(r.Spent-whole.Spent) > whole.Spent/20 {
						t.Errorf("it has spent %v, and one that nobody disturbs %v", r.Spent, whole.Spent)
					}
				})
			})
		}
	}
}

// At each change a trial is interrupted. It cleans up itself, and its report says which steps were not tried.
func TestAnInterruptedTrialCleansUp(t *testing.T) {
	const withoutImage = 20 // of the changes, that of the last step's pod is none of these
	for at := 1; at <= withoutImage; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w := newWorld(t, func(w *world) {
					w.changed = func(call int) {
						if call == at {
							cancel(errors.New("interrupted"))
						}
					}
				})
				r := planned(ctx, t, w.trial(firstID, nil))
				if left := w.left(); len(left) > 0 || !r.Left.Nothing() {
					t.Errorf("left: %s, told %+v", left, r.Left)
				}
				if got := results(r)["large-image"]; ctx.Err() == nil || r.Problem == "" && got != NotTried {
					t.Errorf("it went on: %v", results(r))
				}
			})
		})
	}
}

// costing returns a catalogue in which each instance costs as much an hour, a tenth of it for its disk, and none has an address. A disk of
// a GiB costs 73 cents a month.
func costing(hour float64) *Catalogue {
	return &Catalogue{Region: "us-east-1", AsOf: "2026-07-20", DiskPerGiBMonth: 0.73, Quote: func(*corev1.Pod) (Quote, bool) {
		return Quote{InstanceType: "t3.nano", Machine: new(hour * 0.9), Disk: new(hour * 0.1), Address: new(0.0)}, true
	}, Types: func(pod *corev1.Pod) []string {
		if _, has := pod.Spec.Containers[0].Resources.Limits[gpuResource]; has {
			return []string{"g6f.large", "g4dn.xlarge"}
		}
		return []string{"t3.nano"}
	}}
}

func TestATrialThatMayCostTooMuchIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		for what, tc := range map[string]struct {
			change func(*Config)
			words  string
		}{
			"the instances may be dear": {func(c *Config) { c.MaxPricePerHour = 0.5 }, "--max-price-per-hour (0.5)"},
			"no instance is so cheap":   {func(c *Config) { c.Catalogue = costing(0.09) }, "0.0900"},
		} {
			plan, err := w.trial(firstID, tc.change).Plan(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.words) || len(plan.Price.Parts) == 0 {
				t.Errorf("%s: %v, with the parts %+v", what, err, plan.Price.Parts)
			}
		}
		if w.calls > 0 {
			t.Errorf("it has made %d changes", w.calls)
		}
	})
}

// By steps and by parts it is the same sum, and by the catalogue's prices another one, below it.
func TestThePriceOfATrialIsShownByStepAndByPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		plan, err := w.trial(firstID, func(c *Config) { c.Catalogue = costing(0.02) }).Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, sum, cellHours := plan.Price, plan.Price.Killed, 0.0
		for _, s := range p.Steps {
			sum += s.AtMost
			cellHours += float64(s.Cells) * float64(s.Lasts) / 3600
			if s.Cells > 0 && s.InstanceType != "t3.nano" {
				t.Errorf("step %s is expected to have %q", s.Name, s.InstanceType)
			}
		}
		near := func(what string, has, want float64) {
			t.Helper()
			if math.Abs(has-want) > 1e-9 {
				t.Errorf("%s is %v, want %v", what, has, want)
			}
		}
		near("the sum of the steps", p.AtMost, sum)
		near("the dearest instance", *p.QuotedPerHour, 0.02)
		parts, ofParts := map[string]PartPrice{}, 0.0
		for _, part := range p.Parts {
			parts[part.Name] = part
			if part.Of == "" {
				ofParts += *part.AtMost
			}
		}
		near("the sum of the parts", ofParts, sum)
		near("what instances cost at most", *parts["instances"].AtMost, cellHours*p.MaxPerHour)
		near("what they cost by the catalogue", *parts["instances"].Catalogue, cellHours*0.02)
		near("their disks", *parts["root disks"].Catalogue, cellHours*0.002)
		near("their addresses", *parts["public addresses"].Catalogue, 0)
		near("the volume", *parts["volume"].Catalogue, 0.001)
		near("all by the catalogue", *p.Catalogue, cellHours*0.02+*parts["load balancer"].AtMost+*parts["NAT gateway"].AtMost+0.001+
			*parts["if kipctl is killed"].Catalogue)
		if parts["load balancer"].Catalogue != nil || *p.Catalogue >= p.AtMost || p.AtMost > Cap {
			t.Errorf("%+v", p)
		}
		var text strings.Builder
		if err := p.Text(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"2 t3.nano", "$0.0200 an hour", "$0.73 a GiB and month", "us-east-1 of 2026-07-20", "load balancer", "not known",
		} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%q is not in\n%s", want, &text)
			}
		}
		// Where the catalogue does not have the region, the bounds hold all the same.
		without, err := w.trial(firstID, func(c *Config) { c.Catalogue = nil }).Plan(t.Context())
		if err != nil || without.Price.AtMost != p.AtMost || without.Price.Catalogue != nil || without.Price.QuotedPerHour != nil {
			t.Errorf("%v: without a catalogue %+v", err, without.Price)
		}
	})
}

// The step asks Kip's cloud about the types that the catalogue has, and reports what that says.
func TestTheCloudItselfIsAskedForADryRunOfAGPU(t *testing.T) {
	for what, tc := range map[string]struct {
		says   finding.Finding
		err    error
		result Result
		words  string
	}{
		"it would launch":   {finding.Fine("EC2 would launch a g4dn.xlarge"), nil, OK, "EC2 would launch"},
		"it would not":      {finding.Fail("aws iam attach-role-policy", "role/kip may not"), nil, Failed, "role/kip may not. Fix it: aws iam"},
		"it was not asked":  {finding.Unchecked("there is no image"), nil, NotTried, "there is no image"},
		"no pod of Kip's":   {finding.Finding{}, errors.New("no pod of Kip runs"), NotTried, "no pod of Kip runs"},
		"without catalogue": {finding.Finding{}, nil, NotTried, "no catalogue of the region"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, asked := newWorld(t, nil), ""
				r := planned(t.Context(), t, w.trial(firstID, func(c *Config) {
					if what == "without catalogue" {
						c.Catalogue = nil
					}
					c.DryRun = func(_ context.Context, types []string) ([]finding.Finding, error) {
						asked = strings.Join(types, " ")
						return []finding.Finding{tc.says}, tc.err
					}
				}))
				n := slices.IndexFunc(r.Steps, func(s StepReport) bool { return s.Name == "gpu-dry-run" })
				s := r.Steps[n]
				if s.Result != tc.result || !strings.Contains(s.Why+strings.Join(s.Found, " "), tc.words) || (r.Err() != nil) != (tc.result == Failed) {
					t.Errorf("%s: %+v (%v), want %s with %q", what, s, r.Err(), tc.result, tc.words)
				}
				if (asked == "g6f.large g4dn.xlarge") != (what != "without catalogue") {
					t.Errorf("it asks about %q", asked)
				}
			})
		})
	}
}

func TestOptionsThatAreWrongAreNamed(t *testing.T) {
	w := newWorld(t, nil)
	for want, change := range map[string]func(*Config){
		`the trial's ID is "one": it must be 6 characters`:   func(c *Config) { c.ID = "one" },
		`--endpoint is "example.com": it must be HOST:PORT`:  func(c *Config) { c.Endpoint = "example.com" },
		`--skip: "spt" is no step: it must be one of batch,`: func(c *Config) { c.Skip = []string{"spt"} },
		"--max-price-per-hour is 0: it must be above 0":      func(c *Config) { c.MaxPricePerHour = 0 },
		"--image is empty: it must be the name of an image":  func(c *Config) { c.Image = "" },
	} {
		c := w.trial(firstID, nil).Config
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}

func TestAReportIsForPeopleAndForMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.noBalancer = true })
		r := planned(t.Context(), t, w.trial(firstID, nil))
		var text strings.Builder
		if err := r.Text(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"batch: ok", "load-balancer: not tried: no controller", "i-1", "started after", "Nothing is left", "Image size",
		} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%q is not in\n%s", want, &text)
			}
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			ID    string
			Steps []struct{ Name, Result, Why string }
			Left  struct{ Names, NotKnown []string }
		}
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if got.ID != firstID || got.Steps[2].Result != "not tried" || got.Left.Names == nil || got.Left.NotKnown == nil {
			t.Errorf("%s", data)
		}
	})
}
