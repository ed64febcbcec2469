package pods

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

func TestAnnotationsChangeWhatIsConfiguredOfALaunch(t *testing.T) {
	configured := cells.Options{
		Image: map[string]string{"name": "kip-7"}, SecurityGroups: []string{"all"}, InstanceProfile: "cells", PrivateIPOnly: true,
	}
	withoutRole := configured
	withoutRole.InstanceProfile = ""
	for name, test := range map[string]struct {
		annotations map[string]string
		want        cells.Options
	}{
		"none": {nil, withoutRole},
		"all": {map[string]string{
			placement.AnnotationSecurityGroups: "own, all", placement.AnnotationInstanceProfile: "reader",
			placement.AnnotationPrivateIPOnly: "false",
			placement.AnnotationAllowMetadata: "true", placement.AnnotationCloudRoute: "10.20.0.0/16",
		}, cells.Options{
			Image: map[string]string{"name": "kip-7"}, SecurityGroups: []string{"all", "own"}, InstanceProfile: "reader", AllowMetadata: true,
			CloudRoutes: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")},
		}},
	} {
		a, err := placement.ParseAnnotations(test.annotations)
		if err != nil {
			t.Fatal(err)
		}
		if got := resolve(configured, a); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
	if !reflect.DeepEqual(configured.SecurityGroups, []string{"all"}) {
		t.Errorf("the configuration has become %v", configured.SecurityGroups)
	}
}

// The firewall of a cell is not all that keeps a role's credentials from its pod: who
// gets around it is to find none.
func TestACellHasARoleOnlyIfItsPodMayUseTheMetadataService(t *testing.T) {
	for _, test := range []struct {
		configured, own, metadata string
		want                      string // "-" for an error
	}{
		{"", "", "", ""},
		{"cells", "", "", ""},
		{"cells", "", "false", ""},
		{"cells", "", "true", "cells"},
		{"cells", "reader", "true", "reader"},
		{"", "reader", "true", "reader"},
		{"", "reader", "", "reader"},
		{"cells", "reader", "", "reader"},
		{"cells", "reader", "false", "-"},
	} {
		annotations := map[string]string{}
		for name, value := range map[string]string{
			placement.AnnotationInstanceProfile: test.own,
			placement.AnnotationAllowMetadata:   test.metadata,
		} {
			if value != "" {
				annotations[name] = value
			}
		}
		a, err := placement.ParseAnnotations(annotations)
		if err != nil {
			const says = `annotation pod.elotl.co/instance-profile: "reader" is not valid: want pod.elotl.co/allow-metadata: "true" beside it`
			if test.want != "-" || !strings.HasPrefix(err.Error(), says) {
				t.Errorf("%+v: %v, want %q, or %s", test, err, test.want, says)
			}
			continue
		}
		if got := resolve(cells.Options{InstanceProfile: test.configured}, a).InstanceProfile; got != test.want {
			t.Errorf("%+v: its role is %q", test, got)
		}
		// A standby cell has none.
		if got := special(a); got != (test.metadata == "true" || test.own != "") {
			t.Errorf("%+v: that it takes a launch of its own is %v", test, got)
		}
	}
}

func TestTheRootDiskIsAsLargeAsThePodAsks(t *testing.T) {
	offerings := []offering.Offering{{InstanceType: "a", DiskBytes: 5 << 30}, {InstanceType: "b", DiskBytes: 100 << 30}}
	got := withDisk(offerings, placement.Annotations{VolumeSizeBytes: 20 << 30})
	if got[0].DiskBytes != 20<<30 || got[1].DiskBytes != 100<<30 || offerings[0].DiskBytes != 5<<30 {
		t.Errorf("%+v of %+v", got, offerings)
	}
	if got := withDisk(offerings, placement.Annotations{}); got[0].DiskBytes != 5<<30 {
		t.Errorf("%+v", got)
	}
}
