package clouds

import (
	"cmp"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/config"
)

// Each key of cloud.aws by itself sets one thing that the driver is given, or two if it has keys of its own, and nothing else.
func TestEachKeyOfCloudAWSReachesItsDriver(t *testing.T) {
	settings := func(change func(*config.Config)) reflect.Value {
		cfg := &config.Config{}
		cfg.Cloud.AWS = &config.AWS{}
		change(cfg)
		given := ofAWS(cfg, slog.New(slog.DiscardHandler))
		given.Log = nil
		return reflect.ValueOf(given)
	}
	none := settings(func(*config.Config) {})
	check := func(key, want string, change func(*config.Config)) {
		t.Helper()
		with := settings(change)
		var set []string
		for _, f := range reflect.VisibleFields(with.Type()) {
			if f.IsExported() && !reflect.DeepEqual(with.FieldByIndex(f.Index).Interface(), none.FieldByIndex(f.Index).Interface()) {
				set = append(set, f.Name)
			}
		}
		if !slices.Equal(set, strings.Fields(want)) {
			t.Errorf("%s sets %q, want %s", key, set, want)
		}
	}
	// others have another name there.
	others := map[string]string{
		"VPCID":                    "VPC",
		"KMSKeyID":                 "KMSKey",
		"SubnetID":                 "Subnets",
		"CapacityReservations":     "Reservations",
		"DedicatedHosts":           "Hosts",
		"VolumeInitializationRate": "RootDiskInitRate",
		"ClusterName":              "Cluster",
		"SecurityGroupTags":        "GroupTags",
		"ECR":                      "ImageRole PullThrough",
		"EndpointURL":              "Endpoint",
		"InsecureTLSSkipVerify":    "SkipVerify",
	}
	// fill gives a value, and whatever is in it, something to say.
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			v.SetString("said")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int:
			v.SetInt(100)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"key": "said"}))
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		default:
			t.Fatalf("a key of kind %s", v.Kind())
		}
	}
	for n, field := range reflect.VisibleFields(reflect.TypeFor[config.AWS]()) {
		if field.Name == "ECSClusterName" { // of the original
			continue
		}
		check(field.Name, cmp.Or(others[field.Name], field.Name), func(cfg *config.Config) {
			fill(reflect.ValueOf(cfg.Cloud.AWS).Elem().Field(n))
		})
	}
	check("cells.extraCIDRs", "ExtraCIDRs", func(cfg *config.Config) {
		cfg.Cells.ExtraCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	})
	check("cells.tags", "Tags", func(cfg *config.Config) { cfg.Cells.Tags = map[string]string{"key": "said"} })
	check("cells.privateIPOnly", "PrivateOnly", func(cfg *config.Config) { cfg.Cells.PrivateIPOnly = true })
}
