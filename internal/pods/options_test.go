package pods

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
)

func TestAnnotationsChangeWhatIsConfiguredOfALaunch(t *testing.T) {
	configured := cells.Options{
		Image: map[string]string{"name": "kip-7"}, SecurityGroups: []string{"all"}, InstanceProfile: "cells", PrivateIPOnly: true,
	}
	for name, test := range map[string]struct {
		annotations map[string]string
		want        cells.Options
	}{
		"none": {nil, configured},
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

func TestTheRootDiskIsAsLargeAsThePodAsks(t *testing.T) {
	offers := []cells.Offer{{InstanceType: "a", DiskBytes: 5 << 30}, {InstanceType: "b", DiskBytes: 100 << 30}}
	got := withDisk(offers, placement.Annotations{VolumeSizeBytes: 20 << 30})
	if got[0].DiskBytes != 20<<30 || got[1].DiskBytes != 100<<30 || offers[0].DiskBytes != 5<<30 {
		t.Errorf("%+v of %+v", got, offers)
	}
	if got := withDisk(offers, placement.Annotations{}); got[0].DiskBytes != 5<<30 {
		t.Errorf("%+v", got)
	}
}
