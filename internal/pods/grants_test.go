package pods

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

func TestAnnotationsThatAreMoneyOrRightsAreGrantedByNamespace(t *testing.T) {
	granted := Grants{Namespaces: []NamespaceGrants{
		{Namespace: "a", InstanceProfiles: []string{"reader", "team-a-*"}, SecurityGroups: []string{"sg-1"}},
		{Namespace: "a", CloudRoutes: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}, AllowMetadata: true},
		{Namespace: "*", SecurityGroups: []string{"sg-all"}},
		{Namespace: "b", InstanceProfiles: []string{"*"}},
		{Namespace: "a", PublicAddress: true, Dedicated: true, MaxVolumeBytes: 500 << 30, MaxKeepFailed: 24 * time.Hour},
		{Namespace: "a", HostSysctls: []string{"vm.*", "net/core/rmem_max"}, HostModules: []string{"nf-conntrack", "ip_vs*"}},
	}, MaxVolumeBytes: 100 << 30, MaxKeepFailed: time.Hour}
	for _, c := range []struct {
		grants                       Grants
		namespace, annotation, value string
		key                          string // of the refusal, below namespaces[] or with its whole name; "" for none
	}{
		{Grants{}, "a", placement.AnnotationInstanceProfile, "reader", "instanceProfiles"},
		{Grants{}, "a", placement.AnnotationSecurityGroups, "sg-1", "securityGroups"},
		{Grants{}, "a", placement.AnnotationCloudRoute, "10.20.0.0/16", "cloudRoutes"},
		{Grants{}, "a", placement.AnnotationAllowMetadata, "true", "allowMetadata"},
		{Grants{}, "a", placement.AnnotationAllowMetadata, "false", ""},
		{Grants{}, "a", placement.AnnotationInstanceType, "p5.48xlarge", ""},
		{Grants{}, "a", placement.AnnotationLaunchType, "spot", ""},
		{Grants{Unrestricted: true}, "a", placement.AnnotationInstanceProfile, "reader", ""},
		{Grants{Unrestricted: true}, "a", placement.AnnotationCloudRoute, "0.0.0.0/0", ""},
		{granted, "a", placement.AnnotationInstanceProfile, "reader", ""},
		{granted, "a", placement.AnnotationInstanceProfile, "team-a-x", ""},
		{granted, "a", placement.AnnotationInstanceProfile, "writer", "instanceProfiles"},
		{granted, "a", placement.AnnotationInstanceProfile, "readers", "instanceProfiles"},
		{granted, "b", placement.AnnotationInstanceProfile, "writer", ""},
		{granted, "c", placement.AnnotationInstanceProfile, "reader", "instanceProfiles"},
		{granted, "a", placement.AnnotationSecurityGroups, "sg-1,sg-all", ""},
		{granted, "a", placement.AnnotationSecurityGroups, "sg-1,sg-2", "securityGroups"},
		{granted, "c", placement.AnnotationSecurityGroups, "sg-all", ""},
		{granted, "a", placement.AnnotationCloudRoute, "10.20.1.0/24 10.20.0.0/16", ""},
		{granted, "a", placement.AnnotationCloudRoute, "10.20.1.0/24 10.0.0.0/8", "cloudRoutes"},
		{granted, "a", placement.AnnotationCloudRoute, "::/0", "cloudRoutes"},
		{granted, "a", placement.AnnotationAllowMetadata, "true", ""},
		{granted, "b", placement.AnnotationAllowMetadata, "true", "allowMetadata"},
		{Grants{}, "a", placement.AnnotationPrivateIPOnly, "true", ""},
		{Grants{}, "a", placement.AnnotationPrivateIPOnly, "false", "publicAddress"},
		{Grants{PublicAddress: true}, "a", placement.AnnotationPrivateIPOnly, "false", ""},
		{granted, "a", placement.AnnotationPrivateIPOnly, "false", ""},
		{granted, "b", placement.AnnotationPrivateIPOnly, "F", "publicAddress"},
		{Grants{}, "a", placement.AnnotationLaunchType, "dedicated", "dedicated"},
		{Grants{}, "a", placement.AnnotationLaunchType, "spot, Dedicated", "dedicated"},
		{Grants{Unrestricted: true}, "a", placement.AnnotationLaunchType, "dedicated", ""},
		{granted, "a", placement.AnnotationLaunchType, "dedicated,on-demand", ""},
		{granted, "b", placement.AnnotationLaunchType, "dedicated", "dedicated"},
		{Grants{}, "a", placement.AnnotationVolumeSize, "64Ti", ""},
		{Grants{Unrestricted: true, MaxVolumeBytes: 1}, "a", placement.AnnotationVolumeSize, "64Ti", ""},
		{granted, "b", placement.AnnotationVolumeSize, "100Gi", ""},
		{granted, "b", placement.AnnotationVolumeSize, "100.1Gi", "cells.grants.maxVolumeSize"},
		{granted, "a", placement.AnnotationVolumeSize, "500Gi", ""},
		{granted, "a", placement.AnnotationVolumeSize, "501Gi", "cells.grants.maxVolumeSize"},
		{Grants{}, "a", placement.AnnotationSwap, "100Gi", ""},
		{Grants{Unrestricted: true, MaxVolumeBytes: 1}, "a", placement.AnnotationSwap, "1Gi", ""},
		{Grants{MaxVolumeBytes: 5 << 30}, "a", placement.AnnotationSwap, "5Gi", ""},
		{Grants{MaxVolumeBytes: 5 << 30}, "a", placement.AnnotationSwap, "5.1Gi", "cells.grants.maxVolumeSize"},
		{granted, "b", placement.AnnotationKeepFailed, "1h", ""},
		{granted, "b", placement.AnnotationKeepFailed, "61m", "cells.grants.maxKeepFailed"},
		{granted, "a", placement.AnnotationKeepFailed, "24h", ""},
		{granted, "a", placement.AnnotationKeepFailed, "25h", "cells.grants.maxKeepFailed"},
		{Grants{}, "a", placement.AnnotationKeepFailed, "1s", "cells.grants.maxKeepFailed"},
		{Grants{}, "a", placement.AnnotationKeepFailed, "0", ""},
		{Grants{Unrestricted: true}, "a", placement.AnnotationKeepFailed, "1s", "cells.grants.maxKeepFailed"},
		{Grants{Unrestricted: true, MaxKeepFailed: time.Hour}, "a", placement.AnnotationKeepFailed, "1h", ""},
		{Grants{}, "a", placement.AnnotationHostSysctls, "vm.swappiness=1", "hostSysctls"},
		{Grants{Unrestricted: true}, "a", placement.AnnotationHostSysctls, "vm.swappiness=1", "hostSysctls"},
		{granted, "a", placement.AnnotationHostSysctls, "vm/max_map_count=1,net.core.rmem_max=2", ""},
		{granted, "a", placement.AnnotationHostSysctls, "vm.swappiness=1,net.core.wmem_max=2", "hostSysctls"},
		{granted, "b", placement.AnnotationHostSysctls, "vm.swappiness=1", "hostSysctls"},
		{Grants{}, "a", placement.AnnotationHostModules, "nf_conntrack", "hostModules"},
		{Grants{Unrestricted: true}, "a", placement.AnnotationHostModules, "nf_conntrack", "hostModules"},
		{granted, "a", placement.AnnotationHostModules, "nf_conntrack,ip-vs-rr", ""},
		{granted, "a", placement.AnnotationHostModules, "nf_conntrack,br_netfilter", "hostModules"},
	} {
		var a placement.Annotations
		var err error
		if c.annotation == placement.AnnotationInstanceProfile {
			a.InstanceProfile = c.value // which asks for the metadata service, too: that is granted by itself
		} else if a, err = placement.ParseAnnotations(map[string]string{c.annotation: c.value}); err != nil {
			t.Fatal(err)
		}
		err = c.grants.Check(c.namespace, a)
		var refused *NotGrantedError
		key := c.key
		if !strings.Contains(key, ".") {
			key = "cells.grants.namespaces[]." + key
		}
		switch {
		case c.key == "" && err != nil:
			t.Errorf("namespace %s, %s %q: %v", c.namespace, c.annotation, c.value, err)
		case c.key == "":
		case !errors.As(err, &refused) || refused.Key != key || refused.Namespace != c.namespace ||
			!strings.Contains(refused.Asked, c.annotation):
			t.Errorf("namespace %s, %s %q: %v, want a refusal that names %s", c.namespace, c.annotation, c.value, err, c.key)
		}
	}
	profile, err := placement.ParseAnnotations(map[string]string{placement.AnnotationInstanceProfile: "reader"})
	if err != nil {
		t.Fatal(err)
	}
	var refused *NotGrantedError
	if err := granted.Check("b", profile); !errors.As(err, &refused) || !strings.HasSuffix(refused.Key, ".allowMetadata") {
		t.Errorf("a profile without the metadata service: %v", err)
	}
	if err := granted.Check("a", profile); err != nil {
		t.Error(err)
	}
	if granted.AllowsMetadata("b") || !granted.AllowsMetadata("a") {
		t.Error("the metadata service is another namespace's")
	}
}

func TestOffersThatAreNotGrantedAreLeftOut(t *testing.T) {
	offerings := []offering.Offering{
		{InstanceType: "dear", PricePerHour: 9}, {InstanceType: "cheap", PricePerHour: 1}, {InstanceType: "mid", PricePerHour: 3},
		{InstanceType: "unknown", Unpriced: true}, {InstanceType: "hosts", PricePerHour: 2, Dedicated: true},
	}
	grants := Grants{MaxPricePerHour: 2, Namespaces: []NamespaceGrants{{Namespace: "a", MaxPricePerHour: 4}}}
	types := Grants{Namespaces: []NamespaceGrants{
		{Namespace: "*", InstanceTypes: []string{"che*"}},
		{Namespace: "a", InstanceTypes: []string{"mid"}},
		{Namespace: "b", AllowMetadata: true},
	}}
	for _, c := range []struct {
		grants    Grants
		namespace string
		want      string
	}{
		{Grants{}, "a", "dear cheap mid unknown"},
		{Grants{Unrestricted: true}, "a", "dear cheap mid unknown hosts"},
		{Grants{Namespaces: []NamespaceGrants{{Namespace: "a", Dedicated: true}}}, "a", "dear cheap mid unknown hosts"},
		{Grants{Namespaces: []NamespaceGrants{{Namespace: "b", Dedicated: true}}}, "a", "dear cheap mid unknown"},
		{Grants{Namespaces: []NamespaceGrants{{Namespace: "a", InstanceTypes: []string{"hosts"}}}}, "a", ""},
		{grants, "b", "cheap"},
		{grants, "a", "cheap mid"},
		{Grants{MaxPricePerHour: 0.5}, "a", ""},
		{types, "a", "cheap mid"},
		{types, "b", "cheap"},
		{Grants{Unrestricted: true, Namespaces: types.Namespaces}, "b", "dear cheap mid unknown hosts"},
		{Grants{Namespaces: []NamespaceGrants{{Namespace: "a", InstanceTypes: []string{"none"}}}}, "a", ""},
		{Grants{Namespaces: []NamespaceGrants{{Namespace: "a", InstanceTypes: []string{"none"}}}}, "b", "dear cheap mid unknown"},
		{Grants{MaxPricePerHour: 2, Namespaces: []NamespaceGrants{{Namespace: "a", InstanceTypes: []string{"dear"}}}}, "a", ""},
	} {
		left, err := c.grants.granted(c.namespace, offerings)
		var names []string
		for _, o := range left {
			names = append(names, o.InstanceType)
		}
		var refused *NotGrantedError
		if got := strings.Join(names, " "); got != c.want || errors.As(err, &refused) != (c.want == "") {
			t.Errorf("namespace %s of %+v: %q, %v; want %q", c.namespace, c.grants, got, err, c.want)
		}
	}
}

// A root disk that a pod's ephemeral storage needs is bounded as one that an annotation asks
// for, and a type's own is not.
func TestDisksThatAreNotGrantedAreLeftOut(t *testing.T) {
	const gib = 1 << 30
	grants := Grants{MaxVolumeBytes: 100 * gib, Namespaces: []NamespaceGrants{{Namespace: "a", MaxVolumeBytes: 500 * gib}}}
	chosen := offering.Offering{InstanceType: "chosen", DiskBytes: 200 * gib}
	own := offering.Offering{InstanceType: "own", DiskBytes: 200 * gib, OwnDisk: true}
	for _, c := range []struct {
		grants    Grants
		namespace string
		offerings []offering.Offering
		want      int
	}{
		{grants, "b", []offering.Offering{chosen, own}, 1},
		{grants, "b", []offering.Offering{chosen}, 0},
		{grants, "b", nil, 0},
		{grants, "a", []offering.Offering{chosen, own}, 2},
		{Grants{}, "b", []offering.Offering{chosen}, 1},
		{Grants{Unrestricted: true, MaxVolumeBytes: 1}, "b", []offering.Offering{chosen}, 1},
	} {
		left, err := c.grants.granted(c.namespace, c.offerings)
		var refused *NotGrantedError
		if len(left) != c.want || errors.As(err, &refused) != (c.want == 0 && len(c.offerings) > 0) {
			t.Errorf("namespace %s of %+v: %v, %v; want %d", c.namespace, c.grants, left, err, c.want)
		}
		if refused != nil && refused.Key != "cells.grants.maxVolumeSize" {
			t.Errorf("it names %s", refused.Key)
		}
	}
}

func TestAPodThatIsNotGrantedWhatItAsksForWaitsUntilTheConfigurationChanges(t *testing.T) {
	h := newHarness(t)
	p := pod("p")
	p.Annotations = map[string]string{placement.AnnotationInstanceProfile: "admin", placement.AnnotationAllowMetadata: "true"}
	h.put(p)
	if again := h.must("p"); again <= 0 || len(h.cells.requests) != 0 {
		t.Errorf("requested %v, and looks again after %s", h.cells.requests, again)
	}
	const why = `annotation pod.elotl.co/instance-profile: "admin" is not granted to namespace ns: ` +
		"cells.grants.namespaces[].instanceProfiles of provider.yaml says what is"
	if got := h.c.Waiting("uid-p"); got != why {
		t.Errorf("it waits, and says %q; want %q", got, why)
	}
	if want := []string{"Warning NotGranted"}; !slices.Equal(h.events, want) {
		t.Errorf("events %q, want %q", h.events, want)
	}

	// Kip reads its configuration when it starts.
	h.restarted(func(c *Config) {
		c.Grants.Namespaces = []NamespaceGrants{{Namespace: "ns", InstanceProfiles: []string{"admin"}, AllowMetadata: true}}
	})
	h.must("p")
	if len(h.cells.requests) != 1 {
		t.Errorf("after the change requested %v", h.cells.requests)
	}

	h.restarted(func(c *Config) { c.Grants = Grants{MaxPricePerHour: 1} })
	h.place = func(*corev1.Pod) ([]offering.Offering, error) {
		return []offering.Offering{{InstanceType: "dear", Zone: "local", PricePerHour: 9}}, nil
	}
	h.put(pod("q"))
	h.must("q")
	const dear = "dear in local for 9 dollars an hour is not granted to namespace ns: cells.grants.maxPricePerHour of provider.yaml says what is"
	if got := h.c.Waiting("uid-q"); got != dear {
		t.Errorf("a pod whose instance costs too much says %q; want %q", got, dear)
	}

	// A node may offer nothing else to pods that do not say.
	h.place = func(*corev1.Pod) ([]offering.Offering, error) {
		return []offering.Offering{{InstanceType: "m5.large", Zone: "local", PricePerHour: 1, Dedicated: true}}, nil
	}
	h.put(pod("r"))
	h.must("r")
	const hosts = "m5.large (dedicated) in local is not granted to namespace ns: cells.grants.namespaces[].dedicated of provider.yaml says what is"
	if got := h.c.Waiting("uid-r"); got != hosts {
		t.Errorf("a pod whose instance would be on a dedicated host says %q; want %q", got, hosts)
	}
}

func TestSwapCountsAsPartOfTheRootDisk(t *testing.T) {
	g := Grants{MaxVolumeBytes: 100 << 30, Namespaces: []NamespaceGrants{{Namespace: "a", MaxVolumeBytes: 200 << 30}}}
	asked := placement.Annotations{VolumeSizeBytes: 99 << 30, SwapBytes: 2 << 30}
	const want = `annotation pod.elotl.co/volume-size: "99Gi" with annotation pod.elotl.co/swap: "2Gi" is not granted to namespace b: ` +
		`cells.grants.maxVolumeSize of provider.yaml says what is`
	if err := g.Check("b", asked); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := g.Check("a", asked); err != nil {
		t.Error(err)
	}
}
