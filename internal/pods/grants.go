package pods

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

// Grants are what pods may ask for by annotation: cells.grants. The zero value grants
// nothing and bounds no price and no disk.
type Grants struct {
	Unrestricted      bool
	PublicAddress     bool          // cells have one unless their pod says no
	DaemonSetMachines bool          // pods of DaemonSets get cells unless they say no
	MaxPricePerHour   float64       // US dollars; 0 for no bound
	MaxVolumeBytes    int64         // of a root disk; 0 for no bound
	MaxKeepFailed     time.Duration // for which the cell of a failed pod may stay, also if Unrestricted; 0 for not at all
	MaxKeptCells      int           // how many of them a namespace has at a time
	// UnsafeSysctls are what the pods of all namespaces may set in their own namespaces of the kernel. Unrestricted does not grant them:
	// no annotation asks for them.
	UnsafeSysctls []string
	Namespaces    []NamespaceGrants
}

// NamespaceGrants are what the pods of a namespace may ask for, "*" for every one.
type NamespaceGrants struct {
	Namespace string
	// Values; one that ends with * stands for all that begin like it.
	InstanceProfiles, SecurityGroups []string
	CloudRoutes                      []netip.Prefix // with all networks within
	AllowMetadata, PublicAddress     bool
	Dedicated                        bool          // hosts that no other account shares, by whatever they are chosen
	DaemonSetMachines                bool          // cells for pods of DaemonSets that ask for one
	BesidePods                       bool          // DaemonSets that ask to run beside pods
	MaxPricePerHour                  float64       // 0 for that of all namespaces
	MaxVolumeBytes                   int64         // likewise
	MaxKeepFailed                    time.Duration // likewise
	// HostSysctls and HostModules are what the pods may ask of their machines' kernel, UnsafeSysctls what they may set besides
	// those of all namespaces. One that ends with * stands for all that begin like it.
	HostSysctls, HostModules, UnsafeSysctls []string
	// InstanceTypes are those that the pods may get, by whatever they are chosen; none for
	// all, unless other grants of the namespace name some.
	InstanceTypes []string
}

// NotGrantedError reports what a pod asks for that its namespace may not have.
type NotGrantedError struct {
	Asked     string // the annotation and its value, or a price
	Namespace string
	Key       string // of provider.yaml
}

func (e *NotGrantedError) Error() string {
	return fmt.Sprintf("%s is not granted to namespace %s: %s of provider.yaml says what is", e.Asked, e.Namespace, e.Key)
}

// Check returns a *NotGrantedError for the first annotation that the namespace may not
// have.
func (g Grants) Check(namespace string, a placement.Annotations) error {
	refused := func(annotation, value, key string) error {
		return &NotGrantedError{
			Asked:     fmt.Sprintf("annotation %s: %q", annotation, value),
			Namespace: namespace,
			Key:       "cells.grants.namespaces[]." + key,
		}
	}
	has := func(granted func(NamespaceGrants) bool) bool { return g.has(namespace, granted) }
	// An admission policy that was written earlier knows nothing of the machine's kernel, so Unrestricted does not stand for it.
	named := func(granted func(NamespaceGrants) bool) bool { return slices.ContainsFunc(g.of(namespace), granted) }
	if p := a.InstanceProfile; p != "" && !has(func(n NamespaceGrants) bool { return matches(n.InstanceProfiles, p) }) {
		return refused(placement.AnnotationInstanceProfile, p, "instanceProfiles")
	}
	for _, group := range a.SecurityGroups {
		if !has(func(n NamespaceGrants) bool { return matches(n.SecurityGroups, group) }) {
			return refused(placement.AnnotationSecurityGroups, group, "securityGroups")
		}
	}
	for _, route := range a.CloudRoutes {
		within := func(network netip.Prefix) bool {
			return network.Bits() <= route.Bits() && network.Contains(route.Addr())
		}
		if !has(func(n NamespaceGrants) bool { return slices.ContainsFunc(n.CloudRoutes, within) }) {
			return refused(placement.AnnotationCloudRoute, route.String(), "cloudRoutes")
		}
	}
	if a.AllowMetadata != nil && *a.AllowMetadata && !has(func(n NamespaceGrants) bool { return n.AllowMetadata }) {
		return refused(placement.AnnotationAllowMetadata, "true", "allowMetadata")
	}
	if a.PrivateIPOnly != nil && !*a.PrivateIPOnly && !g.PublicAddress && !has(func(n NamespaceGrants) bool { return n.PublicAddress }) {
		return refused(placement.AnnotationPrivateIPOnly, "false", "publicAddress")
	}
	if a.Machine != nil && *a.Machine && !g.DaemonSetMachines && !has(func(n NamespaceGrants) bool { return n.DaemonSetMachines }) {
		return refused(placement.AnnotationMachine, "true", "daemonSetMachines")
	}
	if a.BesidePods != nil && *a.BesidePods && !g.AllowsBesidePods(namespace) {
		return refused(placement.AnnotationBesidePods, "true", "besidePods")
	}
	if slices.Contains(a.LaunchTypes, placement.Dedicated) && !has(isDedicated) {
		return refused(placement.AnnotationLaunchType, string(placement.Dedicated), "dedicated")
	}
	if keep := a.KeepFailed; keep > g.keepFailed(namespace, keep) {
		return &NotGrantedError{
			Asked:     fmt.Sprintf("annotation %s: %q", placement.AnnotationKeepFailed, keep),
			Namespace: namespace,
			Key:       "cells.grants.maxKeepFailed",
		}
	}
	for _, s := range a.HostSysctls {
		if !named(func(n NamespaceGrants) bool { return matchesSysctl(n.HostSysctls, s.Name) }) {
			return refused(placement.AnnotationHostSysctls, s.Name, "hostSysctls")
		}
	}
	for _, m := range a.HostModules {
		if !named(func(n NamespaceGrants) bool { return matchesModule(n.HostModules, m) }) {
			return refused(placement.AnnotationHostModules, m, "hostModules")
		}
	}
	if size := a.VolumeSizeBytes + a.SwapBytes; g.MaxVolumeBytes != 0 && size > g.MaxVolumeBytes &&
		!has(func(n NamespaceGrants) bool { return size <= n.MaxVolumeBytes }) {
		return &NotGrantedError{Asked: diskText(a), Namespace: namespace, Key: "cells.grants.maxVolumeSize"}
	}
	return nil
}

// diskText is what annotations ask of a root disk, for people.
func diskText(a placement.Annotations) string {
	var parts []string
	for _, p := range []struct {
		annotation string
		bytes      int64
	}{{placement.AnnotationVolumeSize, a.VolumeSizeBytes}, {placement.AnnotationSwap, a.SwapBytes}} {
		if p.bytes > 0 {
			parts = append(parts, fmt.Sprintf("annotation %s: %q", p.annotation, bytesText(p.bytes)))
		}
	}
	return strings.Join(parts, " with ")
}

// keepFailed is for how long the cell of a failed pod of a namespace stays whose annotation asks for a time. Unrestricted does not
// stand for it: no quota counts failed pods, so nothing but these grants bounds what they cost.
func (g Grants) keepFailed(namespace string, asked time.Duration) time.Duration {
	most := g.MaxKeepFailed
	for _, n := range g.of(namespace) {
		most = max(most, n.MaxKeepFailed)
	}
	return min(asked, most)
}

func isDedicated(n NamespaceGrants) bool { return n.Dedicated }

// has reports whether a namespace has a grant.
func (g Grants) has(namespace string, granted func(NamespaceGrants) bool) bool {
	return g.Unrestricted || slices.ContainsFunc(g.of(namespace), granted)
}

// AllowsMetadata reports whether a pod of the namespace that asks for the metadata
// service may have it.
func (g Grants) AllowsMetadata(namespace string) bool {
	yes := true
	return g.Check(namespace, placement.Annotations{AllowMetadata: &yes}) == nil
}

// AllowsBesidePods reports whether DaemonSets of the namespace that ask to run beside pods do. Unrestricted does not
// stand for it: it is a right over other namespaces' pods.
func (g Grants) AllowsBesidePods(namespace string) bool {
	return slices.ContainsFunc(g.of(namespace), func(n NamespaceGrants) bool { return n.BesidePods })
}

// granted returns the offerings that a pod of the namespace may have, or a
// *NotGrantedError where all are of other types or cost too much.
func (g Grants) granted(namespace string, offerings []offering.Offering) ([]offering.Offering, error) {
	if g.Unrestricted || len(offerings) == 0 {
		return offerings, nil
	}
	if first := offerings[0]; !g.has(namespace, isDedicated) {
		offerings = slices.DeleteFunc(slices.Clone(offerings), func(o offering.Offering) bool { return o.Dedicated })
		if len(offerings) == 0 {
			return nil, &NotGrantedError{Asked: first.String(), Namespace: namespace, Key: "cells.grants.namespaces[].dedicated"}
		}
	}
	var types []string
	for _, n := range g.of(namespace) {
		types = append(types, n.InstanceTypes...)
	}
	if first := offerings[0]; len(types) > 0 {
		offerings = slices.DeleteFunc(slices.Clone(offerings), func(o offering.Offering) bool { return !matches(types, o.InstanceType) })
		if len(offerings) == 0 {
			return nil, &NotGrantedError{
				Asked:     "instance type " + first.InstanceType,
				Namespace: namespace,
				Key:       "cells.grants.namespaces[].instanceTypes",
			}
		}
	}
	offerings, err := g.withinDisk(namespace, offerings)
	if err != nil {
		return nil, err
	}
	most := g.MaxPricePerHour
	if most == 0 {
		return offerings, nil
	}
	for _, n := range g.of(namespace) {
		most = max(most, n.MaxPricePerHour)
	}
	left := slices.DeleteFunc(slices.Clone(offerings), func(o offering.Offering) bool { return o.Unpriced || o.PricePerHour > most })
	if len(left) > 0 {
		return left, nil
	}
	price := fmt.Sprintf("%g dollars an hour", offerings[0].PricePerHour)
	if offerings[0].Unpriced {
		price = "a price that is not known"
	}
	return nil, &NotGrantedError{
		Asked:     fmt.Sprintf("%s for %s", offerings[0], price),
		Namespace: namespace,
		Key:       "cells.grants.maxPricePerHour",
	}
}

// withinDisk returns the offerings whose root disk a pod of the namespace may have: one that is
// as large as the pod's ephemeral storage needs is paid as one by annotation is.
func (g Grants) withinDisk(namespace string, offerings []offering.Offering) ([]offering.Offering, error) {
	most := g.MaxVolumeBytes
	if most == 0 {
		return offerings, nil
	}
	for _, n := range g.of(namespace) {
		most = max(most, n.MaxVolumeBytes)
	}
	left := slices.DeleteFunc(slices.Clone(offerings), func(o offering.Offering) bool { return !o.OwnDisk && o.DiskBytes > most })
	if len(left) > 0 {
		return left, nil
	}
	return nil, &NotGrantedError{
		Asked:     "a root disk of " + bytesText(offerings[0].DiskBytes),
		Namespace: namespace,
		Key:       "cells.grants.maxVolumeSize",
	}
}

// of are the grants of a namespace.
func (g Grants) of(namespace string) []NamespaceGrants {
	return slices.DeleteFunc(slices.Clone(g.Namespaces), func(n NamespaceGrants) bool {
		return n.Namespace != "*" && n.Namespace != namespace
	})
}

// matches reports whether a value is one of those that are granted.
func matches(granted []string, value string) bool {
	return slices.ContainsFunc(granted, func(g string) bool {
		prefix, open := strings.CutSuffix(g, "*")
		return g == value || open && strings.HasPrefix(value, prefix)
	})
}
