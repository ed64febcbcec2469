package placement

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/offering"
)

// Prefix of all annotations by which a pod's owner tells Kip something.
const Prefix = "pod.elotl.co/"

// The annotations that Kip knows.
const (
	AnnotationInstanceType       = Prefix + "instance-type"
	AnnotationRequirements       = Prefix + "instance-requirements"
	AnnotationLaunchType         = Prefix + "launch-type"
	AnnotationVolumeSize         = Prefix + "volume-size"
	AnnotationMaxPrice           = Prefix + "max-price-per-hour"
	AnnotationPrivateIPOnly      = Prefix + "private-ip-only"
	AnnotationSecurityGroups     = Prefix + "security-groups"
	AnnotationInstanceProfile    = Prefix + "instance-profile"
	AnnotationHealthyTimeout     = Prefix + "healthcheck-healthy-timeout"
	AnnotationCloudRoute         = Prefix + "cloud-route"
	AnnotationImageOverlayRootfs = Prefix + "image-overlay-rootfs"
	AnnotationAllowMetadata      = Prefix + "allow-metadata"
	AnnotationMachine            = Prefix + "machine"
	AnnotationMaxPending         = Prefix + "max-pending"
	AnnotationMoveBack           = Prefix + "move-back"
	AnnotationKeepFailed         = Prefix + "keep-failed"
	AnnotationHostSysctls        = Prefix + "host-sysctls"
	AnnotationHostModules        = Prefix + "host-modules"
	AnnotationSwap               = Prefix + "swap"
	// AnnotationProfile is Kip's own: it names the profile that chose the pod, and decides nothing.
	AnnotationProfile    = Prefix + "profile"
	AnnotationBesidePods = Prefix + "beside-pods"
)

// LaunchType is the capacity type that annotations and virtual nodes name.
type LaunchType = offering.CapacityType

const (
	OnDemand  = offering.OnDemand
	Spot      = offering.Spot
	Dedicated = offering.Dedicated
)

// words returns how a machine is launched, to follow "offered".
func words(t LaunchType) string {
	return map[LaunchType]string{OnDemand: "on demand", Spot: "as spot", Dedicated: "as dedicated instances"}[t]
}

// either lists all launch types: "spot or on-demand".
func either(types []LaunchType, words func(LaunchType) string) string {
	all := make([]string, len(types))
	for i, t := range types {
		all[i] = words(t)
	}
	return strings.Join(all, " or ")
}

// HealthyTimeout is for how long a cell may not be heard of before it counts as lost.
type HealthyTimeout struct {
	// Never is true when the cell is never terminated for being unhealthy.
	Never bool
	// After is at least a second, or 0 with Never.
	After time.Duration
}

// Annotations are a pod's annotations with Prefix, parsed. The zero value of a
// field, or nil, means that the pod does not have that annotation.
type Annotations struct {
	// InstanceType is the name of a type, or a pattern of names with "*".
	InstanceType string
	// Requirements are what the labels of the instance must be.
	Requirements Requirements
	// Choices are the same as an ordered list, where they are one: all instances that the first allows come before those of the
	// next. Requirements then are those of any of them.
	Choices []Choice
	// LaunchTypes are different ones, the preferred first: a later one is for when
	// no offering of the earlier ones fits and is available. nil means OnDemand.
	LaunchTypes []LaunchType
	// VolumeSizeBytes is the root disk's least size, rounded up to GiB.
	VolumeSizeBytes int64
	// SwapBytes is the swap of the machine, rounded up to MiB; 0 for none. The root disk is larger by it.
	SwapBytes int64
	// MaxPricePerHour is the most that the machine may cost, with all that is paid for it,
	// in dollars; 0 for no bound.
	MaxPricePerHour float64
	// PrivateIPOnly, when set, overrides cells.privateIPOnly.
	PrivateIPOnly *bool
	// SecurityGroups are attached besides those of all cells; they are network
	// tags on GCE.
	SecurityGroups []string
	// InstanceProfile is the name or ARN of an AWS instance profile, or the
	// e-mail address of a GCE service account.
	InstanceProfile string
	// HealthyTimeout, when set, overrides the timeout of cells.healthcheck.
	HealthyTimeout *HealthyTimeout
	// CloudRoutes are routed to the cell by the cloud's network.
	CloudRoutes []netip.Prefix
	// ImageOverlayRootfs, when set, says whether images are mounted (true) or
	// extracted.
	ImageOverlayRootfs *bool
	// AllowMetadata, when true, lets the pod reach the cloud's metadata service. It is true for a pod with an InstanceProfile that does
	// not say.
	AllowMetadata *bool
	// MaxPending is how long the pod waits for a running cell at most; 0 for no bound.
	MaxPending time.Duration
	// MoveBack is how long the pod stays on a cell that is not of its first choice; 0 for ever.
	MoveBack time.Duration
	// KeepFailed is for how long the cell stays when the pod has failed; 0 for not at all.
	KeepFailed time.Duration
	// Machine, when set, says whether a DaemonSet's pod gets a machine. All others get one.
	Machine *bool
	// BesidePods, when true, asks that a DaemonSet's pod run on the cells of other pods.
	BesidePods *bool
	// HostSysctls are set on the machine in their order, each name once, after HostModules were loaded, whose names have
	// underscores only.
	HostSysctls []Sysctl
	HostModules []string
}

// annotationKinds are the known annotations: what each allows, and how it is
// read. parse gets the trimmed value and reports whether it is valid.
var annotationKinds = map[string]struct {
	allowed string
	parse   func(a *Annotations, value string) bool
}{
	AnnotationInstanceType: {"the name of an instance type, or a pattern with * such as c5.*", func(a *Annotations, v string) bool {
		a.InstanceType = v
		return v != "" && !strings.ContainsAny(v, " \t\n,")
	}},
	AnnotationRequirements: {requirementsAllowed, func(a *Annotations, v string) bool {
		var err error
		a.Requirements, a.Choices, err = parseChoices(v)
		return err == nil
	}},
	AnnotationLaunchType: {"on-demand, spot or dedicated, or several in order of preference such as spot,on-demand",
		func(a *Annotations, v string) bool {
			for word := range strings.SplitSeq(v, ",") {
				t := LaunchType(strings.ToLower(strings.TrimSpace(word)))
				if t != OnDemand && t != Spot && t != Dedicated || slices.Contains(a.LaunchTypes, t) {
					return false
				}
				a.LaunchTypes = append(a.LaunchTypes, t)
			}
			return true
		}},
	AnnotationVolumeSize: {"a quantity above 0 such as 20Gi, at most 64Ti", func(a *Annotations, v string) bool {
		b, is := parseSize(v, maxVolumeBytes)
		a.VolumeSizeBytes = inGiB(b)
		return is && b > 0
	}},
	AnnotationSwap: {"a quantity such as 2Gi, at most 100Gi; 0: none", func(a *Annotations, v string) bool {
		const mib = 1 << 20
		b, is := parseSize(v, maxSwapBytes)
		a.SwapBytes = (b + mib - 1) / mib * mib
		return is
	}},
	AnnotationMaxPrice: {"US dollars above 0 such as 0.25", func(a *Annotations, v string) bool {
		var err error
		a.MaxPricePerHour, err = strconv.ParseFloat(v, 64)
		return err == nil && priceForm.MatchString(v) && a.MaxPricePerHour > 0
	}},
	AnnotationPrivateIPOnly: {"true or false", func(a *Annotations, v string) bool {
		return parseBool(&a.PrivateIPOnly, v)
	}},
	AnnotationSecurityGroups: {"names or IDs of security groups (network tags on GCE), separated by commas",
		func(a *Annotations, v string) bool {
			for group := range strings.SplitSeq(v, ",") {
				group = strings.TrimSpace(group)
				if group == "" || strings.ContainsAny(group, " \t\n") {
					return false
				}
				a.SecurityGroups = append(a.SecurityGroups, group)
			}
			return true
		}},
	AnnotationInstanceProfile: {"the name or ARN of an instance profile, or the e-mail address of a service account",
		func(a *Annotations, v string) bool {
			a.InstanceProfile = v
			return v != "" && !strings.ContainsAny(v, " \t\n,")
		}},
	AnnotationHealthyTimeout: {"a number of seconds such as 90, at least 1; 0 or less: never", func(a *Annotations, v string) bool {
		const most = 365 * 24 * 3600 // a year; far larger ones overflow a Duration
		s, err := strconv.ParseFloat(v, 64)
		switch {
		case err != nil:
			return false
		case s <= 0:
			a.HealthyTimeout = &HealthyTimeout{Never: true}
			return true
		}
		a.HealthyTimeout = &HealthyTimeout{After: time.Duration(s * float64(time.Second))}
		return s >= 1 && s <= most // of no number, neither holds
	}},
	AnnotationCloudRoute: {"CIDRs such as 10.20.0.0/16, separated by spaces, at most 500", func(a *Annotations, v string) bool {
		for cidr := range strings.FieldsSeq(v) {
			p, err := netip.ParsePrefix(cidr)
			if err != nil || p != p.Masked() || len(a.CloudRoutes) == maxCloudRoutes {
				return false
			}
			a.CloudRoutes = append(a.CloudRoutes, p)
		}
		return len(a.CloudRoutes) > 0
	}},
	AnnotationImageOverlayRootfs: {"true or false", func(a *Annotations, v string) bool {
		return parseBool(&a.ImageOverlayRootfs, v)
	}},
	AnnotationAllowMetadata: {"true or false", func(a *Annotations, v string) bool {
		return parseBool(&a.AllowMetadata, v)
	}},
	AnnotationMachine: {"true or false", func(a *Annotations, v string) bool {
		return parseBool(&a.Machine, v)
	}},
	AnnotationMaxPending: {"a time such as 20m or 1h30m, from 1s to 720h", func(a *Annotations, v string) bool {
		var err error
		a.MaxPending, err = time.ParseDuration(v)
		return err == nil && a.MaxPending >= time.Second && a.MaxPending <= 720*time.Hour
	}},
	AnnotationMoveBack: {"a time such as 1h, from 1m to 720h; 0: never", func(a *Annotations, v string) bool {
		var err error
		a.MoveBack, err = time.ParseDuration(v)
		return err == nil && (a.MoveBack == 0 || a.MoveBack >= time.Minute && a.MoveBack <= 720*time.Hour)
	}},
	AnnotationBesidePods: {"true or false", func(a *Annotations, v string) bool {
		return parseBool(&a.BesidePods, v)
	}},
	AnnotationKeepFailed: {"a time such as 30m, of at most 168h; 0: not at all", func(a *Annotations, v string) bool {
		var err error
		a.KeepFailed, err = time.ParseDuration(v)
		return err == nil && a.KeepFailed >= 0 && a.KeepFailed <= maxKeepFailed
	}},
	AnnotationHostSysctls: {"NAME=VALUE such as vm.max_map_count=262144, separated by commas, at most 64", func(
		a *Annotations, v string,
	) bool {
		var err error
		a.HostSysctls, err = parseSysctls(v)
		return err == nil
	}},
	AnnotationHostModules: {"names of kernel modules such as br_netfilter, separated by commas, at most 16", func(
		a *Annotations, v string,
	) bool {
		var err error
		a.HostModules, err = parseModules(v)
		return err == nil
	}},
}

// maxKeepFailed is longer than anybody looks for a fault, and bounds what a forgotten machine costs.
const maxKeepFailed = 7 * 24 * time.Hour

// KeepFailed returns for how long the cell of a pod with these annotations stays when the pod has failed; 0 if the value is not valid.
func KeepFailed(annotations map[string]string) time.Duration {
	var a Annotations
	value, has := annotations[AnnotationKeepFailed]
	if !has || !annotationKinds[AnnotationKeepFailed].parse(&a, strings.TrimSpace(value)) {
		return 0
	}
	return a.KeepFailed
}

// maxVolumeBytes is the largest disk of any cloud. Sources: Amazon EBS User Guide, "General
// Purpose SSD volumes" (gp3: 64 TiB); Compute Engine, "Persistent Disk performance" (64 TiB).
const maxVolumeBytes = 64 << 40

// maxSwapBytes is as much as a root disk has without a grant, and more than a pod makes use of at the speed of a disk.
const maxSwapBytes = 100 << 30

// maxCloudRoutes is how many routes a route table takes. Source: Amazon VPC User Guide, "Amazon VPC quotas"
// (routes per route table: 500).
const maxCloudRoutes = 500

// sizeForm bounds a size before it is parsed: ParseQuantity takes hours over an
// exponent such as 1e-999999999, and anybody who may make a pod can write one.
var sizeForm = regexp.MustCompile(`^[0-9.]{1,20}([KMGTPE]i|[kMGTPE])?$`)

// parseSize returns the bytes of a size, and whether it is one of at most so many.
func parseSize(v string, most int64) (bytes int64, is bool) {
	if !sizeForm.MatchString(v) {
		return 0, false
	}
	q, err := apiresource.ParseQuantity(v)
	if err != nil || q.Sign() < 0 || value(q) > most {
		return 0, false
	}
	return value(q), true
}

// priceForm is that of dollars, to a millionth.
var priceForm = regexp.MustCompile(`^[0-9]{1,5}(\.[0-9]{1,6})?$`)

// knownAnnotations are the names of annotationKinds, sorted.
var knownAnnotations = func() []string {
	var names []string
	for name := range annotationKinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}()

func parseBool(to **bool, v string) bool {
	b, err := strconv.ParseBool(v)
	*to = &b
	return err == nil
}

// whyInvalid returns what is wrong with a value of many parts; nil for other annotations.
func whyInvalid(annotation, value string) (err error) {
	value = strings.TrimSpace(value)
	switch annotation {
	case AnnotationRequirements:
		_, _, err = parseChoices(value) // of which one expression among many may be wrong
	case AnnotationHostSysctls:
		_, err = parseSysctls(value)
	case AnnotationHostModules:
		_, err = parseModules(value)
	}
	return err
}

// besideProfile is what a pod with an instance profile may say of the metadata service.
const besideProfile = AnnotationAllowMetadata + `: "true" beside it, or none, or the pod does not reach the credentials of the role`

// ParseAnnotations reads the annotations with Prefix out of a pod's. The error
// joins one *InvalidAnnotationError for each that is unknown or invalid, in the
// order of their names.
func ParseAnnotations(annotations map[string]string) (Annotations, error) {
	var parsed Annotations
	var invalid []*InvalidAnnotationError
	for name, v := range annotations {
		if !strings.HasPrefix(name, Prefix) || name == AnnotationProfile {
			continue
		}
		kind, known := annotationKinds[name]
		switch {
		case !known:
			invalid = append(invalid, unknownAnnotation(name, v))
		case !kind.parse(&parsed, strings.TrimSpace(v)):
			invalid = append(invalid, &InvalidAnnotationError{Annotation: name, Value: v, Allowed: kind.allowed, Why: whyInvalid(name, v)})
		}
	}
	// The credentials of a role come from the metadata service: without that the role is only for who gets around the cell's firewall.
	// So a profile asks for that service, too. Pods of 2020 name a profile alone.
	switch p := parsed.InstanceProfile; {
	case p != "" && parsed.AllowMetadata == nil:
		parsed.AllowMetadata = new(true)
	case p != "" && !*parsed.AllowMetadata:
		invalid = append(invalid, &InvalidAnnotationError{Annotation: AnnotationInstanceProfile, Value: p, Allowed: besideProfile})
	}
	if invalid == nil {
		return parsed, nil
	}
	slices.SortFunc(invalid, func(a, b *InvalidAnnotationError) int { return strings.Compare(a.Annotation, b.Annotation) })
	errs := make([]error, len(invalid))
	for i, e := range invalid {
		errs[i] = e
	}
	return Annotations{}, errors.Join(errs...)
}
