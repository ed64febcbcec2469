package placement

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAnnotationsAreParsed(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        Annotations
	}{
		{"none", nil, Annotations{}},
		{"others' are left alone", map[string]string{"example.com/x": "y", "prometheus.io/scrape": "true", "service.elotl.co/x": "y"},
			Annotations{}},
		{"all", map[string]string{
			AnnotationInstanceType:       " c5.* ",
			AnnotationLaunchType:         "SPOT, on-demand",
			AnnotationVolumeSize:         "10.2Gi",
			AnnotationMaxPrice:           "0.25",
			AnnotationPrivateIPOnly:      "true",
			AnnotationSecurityGroups:     "sg-1, sg-2",
			AnnotationInstanceProfile:    "arn:aws:iam::11123456:instance-profile/s3",
			AnnotationHealthyTimeout:     "90.5",
			AnnotationCloudRoute:         "10.20.0.0/16  10.30.0.0/16",
			AnnotationImageOverlayRootfs: "false",
			AnnotationAllowMetadata:      "true",
			AnnotationMachine:            "false",
			AnnotationMaxPending:         " 1h30m",
			AnnotationMoveBack:           " 1h",
			AnnotationKeepFailed:         " 1h30m",
			AnnotationHostSysctls:        "vm.max_map_count=262144, net/ipv4/conf/eth0.100/rp_filter = 2,net.ipv4.tcp_rmem=4096 87380\t6291456",
			AnnotationHostModules:        "br_netfilter, nf-conntrack",
			AnnotationSwap:               " 1.5Gi",
		}, Annotations{
			InstanceType: "c5.*", LaunchTypes: []LaunchType{Spot, OnDemand}, VolumeSizeBytes: 11 * gib, PrivateIPOnly: &yes,
			MaxPricePerHour: 0.25,
			SecurityGroups:  []string{"sg-1", "sg-2"},
			InstanceProfile: "arn:aws:iam::11123456:instance-profile/s3", HealthyTimeout: &HealthyTimeout{After: 90500 * time.Millisecond},
			CloudRoutes:        []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("10.30.0.0/16")},
			ImageOverlayRootfs: &no,
			AllowMetadata:      &yes,
			Machine:            &no,
			MaxPending:         90 * time.Minute,
			MoveBack:           time.Hour,
			KeepFailed:         90 * time.Minute,
			HostSysctls: []Sysctl{
				{"vm.max_map_count", "262144"}, {"net.ipv4.conf.eth0/100.rp_filter", "2"}, {"net.ipv4.tcp_rmem", "4096 87380\t6291456"},
			},
			HostModules: []string{"br_netfilter", "nf_conntrack"},
			SwapBytes:   1536 << 20,
		}},
		{"a profile asks for the metadata service", map[string]string{AnnotationInstanceProfile: "s3"},
			Annotations{InstanceProfile: "s3", AllowMetadata: &yes}},
		{"never unhealthy", map[string]string{AnnotationHealthyTimeout: "-1"}, Annotations{HealthyTimeout: &HealthyTimeout{Never: true}}},
		{"never unhealthy, by 0", map[string]string{AnnotationHealthyTimeout: "0.0"}, Annotations{HealthyTimeout: &HealthyTimeout{Never: true}}},
		{"one launch type", map[string]string{AnnotationLaunchType: " dedicated"}, Annotations{LaunchTypes: []LaunchType{Dedicated}}},
		{"the largest disk", map[string]string{AnnotationVolumeSize: "64Ti"}, Annotations{VolumeSizeBytes: 65536 * gib}},
		{"the most swap", map[string]string{AnnotationSwap: "100Gi"}, Annotations{SwapBytes: 100 * gib}},
		{"swap of a MiB and a byte", map[string]string{AnnotationSwap: "1048577"}, Annotations{SwapBytes: 2 << 20}},
		{"no swap", map[string]string{AnnotationSwap: "0"}, Annotations{}},
		{"whole GiB stay", map[string]string{AnnotationVolumeSize: "10Gi"}, Annotations{VolumeSizeBytes: 10 * gib}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseAnnotations(c.annotations)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestInvalidAnnotations(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"pod.elotl.co/instance-typ", "c5.large",
			"annotation pod.elotl.co/instance-typ is unknown: pod.elotl.co/* may be allow-metadata, beside-pods, cloud-route, healthcheck-healthy-timeout, host-modules, host-sysctls, image-overlay-rootfs, instance-profile, instance-requirements, instance-type, keep-failed, launch-type, machine, max-pending, max-price-per-hour, move-back, private-ip-only, security-groups, swap, volume-size; did you mean instance-type?"},
		{"pod.elotl.co/", "x", "annotation pod.elotl.co/ is unknown: "},
		{"pod.elotl.co/task-role", "x", "annotation pod.elotl.co/task-role is unknown: "},
		{AnnotationInstanceType, "",
			`annotation pod.elotl.co/instance-type: "" is not valid: want the name of an instance type, or a pattern with * such as c5.*`},
		{AnnotationInstanceType, "c5.large m5.large", "is not valid: want the name of"},
		{AnnotationLaunchType, "sport",
			`annotation pod.elotl.co/launch-type: "sport" is not valid: want on-demand, spot or dedicated, or several in order of preference such as spot,on-demand`},
		{AnnotationLaunchType, "", `"" is not valid: want on-demand`},
		{AnnotationLaunchType, "spot,", `"spot," is not valid: want on-demand`},
		{AnnotationLaunchType, "spot on-demand", `"spot on-demand" is not valid: want on-demand`},
		{AnnotationLaunchType, "spot,Spot", `"spot,Spot" is not valid: want on-demand`},
		{AnnotationMaxPrice, "cheap", `"cheap" is not valid: want US dollars above 0 such as 0.25`},
		{AnnotationMaxPrice, "0", `"0" is not valid`},
		{AnnotationMaxPrice, "-1", `"-1" is not valid`},
		{AnnotationMaxPrice, "NaN", `"NaN" is not valid`},
		{AnnotationMaxPrice, "1e3", `"1e3" is not valid`},
		{AnnotationMaxPrice, "$1", `"$1" is not valid`},
		{AnnotationVolumeSize, "big", `"big" is not valid: want a quantity above 0 such as 20Gi, at most 64Ti`},
		{AnnotationVolumeSize, "65537Gi", `"65537Gi" is not valid`},
		{AnnotationVolumeSize, "-1Gi", `"-1Gi" is not valid`},
		{AnnotationVolumeSize, "1e-999999999", `"1e-999999999" is not valid`},
		{AnnotationVolumeSize, "0", `"0" is not valid`},
		{AnnotationVolumeSize, "9223372036854775807", "is not valid"},
		{AnnotationSwap, "2 GB", `annotation pod.elotl.co/swap: "2 GB" is not valid: want a quantity such as 2Gi, at most 100Gi; 0: none`},
		{AnnotationSwap, "", `"" is not valid`},
		{AnnotationSwap, "-1Gi", `"-1Gi" is not valid`},
		{AnnotationSwap, "100.1Gi", `"100.1Gi" is not valid`},
		{AnnotationSwap, "1e-999999999", `"1e-999999999" is not valid`},
		{AnnotationSwap, "9223372036854775807", "is not valid"},
		{AnnotationSwap, "1.1.1", `"1.1.1" is not valid`},
		{AnnotationPrivateIPOnly, "yes", `"yes" is not valid: want true or false`},
		{AnnotationSecurityGroups, "sg-1,,sg-2", `want names or IDs of security groups`},
		{AnnotationSecurityGroups, "sg-1 sg-2", `want names or IDs of security groups`},
		{AnnotationInstanceProfile, " ", "want the name or ARN"},
		{AnnotationKeepFailed, "30", `want a time such as 30m, of at most 168h; 0: not at all`},
		{AnnotationKeepFailed, "-1s", `want a time such as 30m`},
		{AnnotationKeepFailed, "168h1s", `want a time such as 30m`},
		{AnnotationHealthyTimeout, "90s", `want a number of seconds such as 90`},
		{AnnotationHealthyTimeout, "NaN", `want a number of seconds`},
		{AnnotationHealthyTimeout, "0.5", `want a number of seconds such as 90, at least 1; 0 or less: never`},
		{AnnotationHealthyTimeout, "1e-12", `want a number of seconds`},
		{AnnotationHealthyTimeout, "1e300", `want a number of seconds`},
		{AnnotationCloudRoute, "10.20.0.0", `"10.20.0.0" is not valid: want CIDRs such as 10.20.0.0/16, separated by spaces`},
		{AnnotationCloudRoute, "10.20.0.1/16", "want CIDRs"},
		{AnnotationCloudRoute, " ", "want CIDRs"},
		{AnnotationCloudRoute, strings.TrimSpace(strings.Repeat("10.20.0.0/16 ", 501)), "separated by spaces, at most 500"},
		{AnnotationImageOverlayRootfs, "overlay", "want true or false"},
		{AnnotationMaxPending, "20", `annotation pod.elotl.co/max-pending: "20" is not valid: want a time such as 20m or 1h30m, from 1s to 720h`},
		{AnnotationMaxPending, "0s", `annotation pod.elotl.co/max-pending: "0s" is not valid: want a time such as 20m or 1h30m, from 1s to 720h`},
		{AnnotationMaxPending, "721h", `annotation pod.elotl.co/max-pending: "721h" is not valid: want a time such as 20m or 1h30m, from 1s to 720h`},
		{AnnotationMoveBack, "59s", `annotation pod.elotl.co/move-back: "59s" is not valid: want a time such as 1h, from 1m to 720h; 0: never`},
		{AnnotationMoveBack, "-1h", `"-1h" is not valid: want a time such as 1h`},
		{AnnotationMoveBack, "721h", `"721h" is not valid: want a time such as 1h`},
		{AnnotationHostSysctls, "", `"" is not valid: "" has no =: want NAME=VALUE such as vm.max_map_count=262144`},
		{AnnotationHostSysctls, "vm.swappiness=1,vm.max_map_count", `"vm.max_map_count" has no =: want`},
		{AnnotationHostSysctls, "vm.swappiness=1,", `"" has no =: want`},
		{AnnotationHostSysctls, "vm.swappiness=", `the value of vm.swappiness is not valid: want`},
		{AnnotationHostSysctls, "vm.swappiness=1\nkernel.panic=1", `the value of vm.swappiness is not valid: want`},
		{AnnotationHostSysctls, "vm.swappiness=" + strings.Repeat("1", 257), `the value of vm.swappiness is not valid: want`},
		{AnnotationHostSysctls, "../../etc/passwd=x", `not the name of a sysctl: "../../etc/passwd": want`},
		{AnnotationHostSysctls, "vm..swappiness=1", `not the name of a sysctl: "vm..swappiness": want`},
		{AnnotationHostSysctls, "/vm/swappiness=1", `not the name of a sysctl: "/vm/swappiness": want`},
		{AnnotationHostSysctls, "VM.swappiness=1", `not the name of a sysctl: "VM.swappiness": want`},
		{AnnotationHostSysctls, strings.Repeat("a", 254) + "=1", `not the name of a sysctl: "aaa`},
		{AnnotationHostSysctls, "vm.swappiness=1,vm/swappiness=2", `vm.swappiness is there twice: want`},
		{AnnotationHostSysctls, "vm/overcommit_memory=2", `the kubelet of each cell sets vm.overcommit_memory itself: want`},
		{AnnotationHostSysctls, strings.TrimSuffix(strings.Repeat("a=1,", 65), ","), "65 sysctls: want"},
		{AnnotationHostModules, "", `"" is not valid: a name is missing: want names of kernel modules`},
		{AnnotationHostModules, "br_netfilter,", `a name is missing: want`},
		{AnnotationHostModules, "../x", `not the name of a module: "../x": want`},
		{AnnotationHostModules, "-r", `not the name of a module: "-r": want`},
		{AnnotationHostModules, "br_netfilter nf_conntrack", `not the name of a module: "br_netfilter nf_conntrack": want`},
		{AnnotationHostModules, "br_netfilter,br-netfilter", `br_netfilter is there twice: want`},
		{AnnotationHostModules, strings.Repeat("a", 56), `not the name of a module: "aaa`},
		{AnnotationHostModules, strings.TrimSuffix(strings.Repeat("a,", 17), ","), "17 modules: want"},
		{AnnotationMachine, "yes", `annotation pod.elotl.co/machine: "yes" is not valid: want true or false`},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			_, err := ParseAnnotations(map[string]string{c.name: c.value})
			var invalid *InvalidAnnotationError
			if !errors.As(err, &invalid) {
				t.Fatalf("error %v, want an InvalidAnnotationError", err)
			}
			if invalid.Annotation != c.name || invalid.Value != c.value || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant …%s…", err, c.want)
			}
		})
	}
}

func TestAllInvalidAnnotationsAreReportedInOrder(t *testing.T) {
	_, err := placer(t, shop(), Config{}).Offerings(annotated(podOf("cpu=1"),
		AnnotationVolumeSize, "x", AnnotationCloudRoute, "y", Prefix+"lunch-type", "spot"), nil)
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "cloud-route") || !strings.Contains(lines[1], "lunch-type") ||
		!strings.Contains(lines[2], "volume-size") {
		t.Errorf("got %q, want one line each, by name", lines)
	}
}
