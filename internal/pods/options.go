package pods

import (
	"slices"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

// resolve returns what a pod's cell is launched with: the configured options, and
// what the pod's annotations change of them.
func resolve(configured cells.Options, a placement.Annotations) cells.Options {
	o := configured
	o.SecurityGroups = slices.Clone(configured.SecurityGroups)
	for _, group := range a.SecurityGroups {
		if !slices.Contains(o.SecurityGroups, group) {
			o.SecurityGroups = append(o.SecurityGroups, group)
		}
	}
	if a.InstanceProfile != "" {
		o.InstanceProfile = a.InstanceProfile
	}
	if a.PrivateIPOnly != nil {
		o.PrivateIPOnly = *a.PrivateIPOnly
	}
	if a.AllowMetadata != nil {
		o.AllowMetadata = *a.AllowMetadata
	}
	if !o.AllowMetadata {
		o.InstanceProfile = "" // who gets around the cell's firewall finds no credentials
	}
	o.CloudRoutes = append(slices.Clip(configured.CloudRoutes), a.CloudRoutes...)
	return o
}

// withDisk returns the offerings with the root disk that the pod asks for. Those whose
// type has a disk of its own size have enough, or placement would have left them
// out.
func withDisk(offerings []offering.Offering, a placement.Annotations) []offering.Offering {
	if a.VolumeSizeBytes == 0 {
		return offerings
	}
	sized := slices.Clone(offerings)
	for n := range sized {
		sized[n].DiskBytes = max(sized[n].DiskBytes, a.VolumeSizeBytes)
	}
	return sized
}

// special reports whether the annotations ask for what only a launch can give.
func special(a placement.Annotations) bool {
	return a.VolumeSizeBytes > 0 || a.PrivateIPOnly != nil || len(a.SecurityGroups) > 0 || a.InstanceProfile != "" ||
		a.AllowMetadata != nil && *a.AllowMetadata ||
		len(a.CloudRoutes) > 0 || a.ImageOverlayRootfs != nil || slices.Contains(a.LaunchTypes, placement.Dedicated)
}
