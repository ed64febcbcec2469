package cells

import (
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cell is the stored record of one cell. A Cell that leaves this package is a
// snapshot: nobody modifies it. What one step alone writes is a type beside that step. Each is stored as if its fields were here.
type Cell struct {
	ID string `json:"id"`
	// Pod is the zero reference while the cell waits in a standby pool.
	Pod apiv1.PodReference `json:"pod"`
	// Node is the virtual node that the pod is on; empty in a standby pool.
	Node string `json:"node,omitempty"`
	// Account is whom the pod's cost is put down to.
	Account Account `json:"account,omitzero"`
	// PodCreated is when the pod was created, by the API server's clock; zero where
	// that is not known.
	PodCreated time.Time   `json:"podCreated,omitzero"`
	Phase      apiv1.Phase `json:"phase"`
	Attempt    int         `json:"attempt"`
	// Offerings are what to launch, best first; the first is being used. An offering
	// that the cloud cannot serve is dropped.
	Offerings []Offering `json:"offerings"`
	Considered
	// Options are what the pod's annotations and the configuration ask of a launch,
	// resolved when the cell was requested.
	Options Options `json:"options,omitzero"`
	// Needs is what the pod must find, without the cell's own need; zero where it takes what
	// there is.
	Needs catalog.Resources `json:"needs,omitzero"`
	// Measured is what the machine has, as its kubelet said when it was first ready: no pod had
	// been there. It is never more than the type promises; zero before.
	Measured catalog.Resources `json:"room,omitzero"`
	// Instance is as the cloud told of it, but for the time of its launch, which is by
	// Kip's clock.
	Instance *cloud.Instance `json:"instance,omitempty"`
	// Launch is the call to the cloud that the cell was, or is being, launched
	// with; nil before. As long as its outcome is not known the call itself is
	// stored under launches/ID.
	Launch *Launch `json:"launch,omitempty"`
	OfPool
	Wants
	Notice
	Credentials
	// Reason is why the cell waits, or why it ended.
	Reason string `json:"reason,omitempty"`
	// Cause is the kind of Reason for which the cell ends; empty before.
	Cause Cause `json:"cause,omitempty"`
	// Special reports whether the pod asks for what only a launch can give. No standby cell fits such a pod.
	Special bool `json:"special,omitempty"`
	// Refusals are how many offerings in a row, the last one included, the cloud refused for
	// what the cell itself asks for.
	Refusals int `json:"refusals,omitempty"`
	// BoostEnded reports whether the cloud was told that the machine has started, and needs no more CPU for that. The beginning
	// of the boost is a step.
	BoostEnded bool `json:"boostEnded,omitempty"`
	// Stale reports whether the last launch was taken back, since something that it was resolved to is
	// not there any more.
	Stale bool `json:"stale,omitempty"`
	// NoLabels reports whether the next launch has no labels of pods as tags, since the cloud has refused one with them. It
	// is taken back when the cloud refuses a launch without labels alike.
	NoLabels bool `json:"noLabels,omitempty"`
	AfterPod
	// BilledSeconds are those that the instance ran before it was last stopped.
	BilledSeconds float64 `json:"billedSeconds,omitempty"`
	AgentReport
	Steps []apiv1.Step `json:"steps,omitempty"`
}

// Options are what a launch is given besides its offering.
type Options = cloud.Options

// Cause is a kind of end.
type Cause string

const (
	CausePodEnded       Cause = "pod_ended"       // the pod ran to its end
	CausePodDeleted     Cause = "pod_deleted"     // the pod was deleted
	CauseNotLaunched    Cause = "not_launched"    // the cloud started nothing
	CauseNotReady       Cause = "not_ready"       // it did not join, or its kubelet was not ready, in time
	CauseUnfit          Cause = "unfit"           // its agent refused, or could not have, what the operator has configured
	CauseTooSmall       Cause = "too_small"       // its machine has less than its type promises, or too few huge pages, and its pod needs more
	CauseNoDisk         Cause = "no_disk"         // the cloud did not give it a disk of its pod
	CauseNoRoute        Cause = "no_route"        // the cloud did not lead its pod's networks to it
	CauseKernelRefused  Cause = "kernel_refused"  // its kernel refused what its pod asks of it
	CauseLost           Cause = "lost"            // its instance vanished, was stopped or fell silent
	CauseInterrupted    Cause = "interrupted"     // the cloud took it back
	CauseStandbyRetired Cause = "standby_retired" // its standby pool no longer wanted it
	CauseOther          Cause = "other"           // Kip let it go for a reason of its own
)

// Launch is one call to the cloud, which launches a group of cells of the same
// offering. A group is stored and sent as a whole, and so is its outcome, so that after a crash
// the same call, with the same token, can be sent again.
type Launch struct {
	ID    string `json:"id"`
	Index int    `json:"index"` // of the cell in the group
	Cells int    `json:"cells"` // in the group
	// Shared reports whether the machines share their user data, and a secret in it. It is
	// nowhere but in the stored call; each cell has the token that follows from it.
	Shared bool `json:"shared,omitempty"`
	// Labelled reports whether the call has labels of its pods as tags.
	Labelled bool `json:"labelled,omitempty"`
	// CloudInit is the digest of the operator's cloud-init file when the launch was stored;
	// "" for none.
	CloudInit string `json:"cloudInit,omitempty"`
	// Agent is the configured one when the launch was stored, which does not change; nil for
	// that of the image.
	Agent *agentapi.Agent `json:"agent,omitempty"`
	// NameTag is the configured one when the launch was stored.
	NameTag string `json:"nameTag"`
	// Image is what the cloud's Resolver has found to be booted; "" for a cloud without one.
	Image string `json:"image,omitempty"`
	// PublicAddress reports whether the instance gets one, which the answer to the launch need not have.
	PublicAddress bool `json:"publicAddress,omitempty"`
}

// Offering returns what the cell is, or will be, launched as.
func (c Cell) Offering() Offering {
	if len(c.Offerings) == 0 {
		return Offering{}
	}
	return c.Offerings[0]
}

// Live reports whether the pod may still run here: the cell was not let go.
func (c Cell) Live() bool {
	switch c.Phase {
	case apiv1.Draining, apiv1.Terminating, apiv1.Gone:
		return false
	}
	return true
}

// Kept reports whether the cell stays for a time although its pod has failed.
func (c Cell) Kept() bool { return c.Phase == apiv1.Draining && !c.KeepUntil.IsZero() }

// StepTime returns when the named step happened; zero if it has not.
func (c Cell) StepTime(name string) time.Time {
	for _, s := range c.Steps {
		if s.Name == name {
			return s.Time.Time
		}
	}
	return time.Time{}
}

func (c *Cell) step(name string, at time.Time) {
	for _, s := range c.Steps {
		if s.Name == name {
			return
		}
	}
	c.Steps = append(slices.Clip(c.Steps), apiv1.Step{Name: name, Time: metav1.NewMicroTime(at)})
}

// clone returns a copy to change. It shares what is never changed in place, only replaced: Best, RuledOut, Accelerators, Options,
// labels.
func (c Cell) clone() Cell {
	c.Offerings = slices.Clone(c.Offerings)
	c.Steps = slices.Clone(c.Steps)
	c.Disks = slices.Clone(c.Disks)
	c.Plugins = slices.Clone(c.Plugins)
	if c.Instance != nil {
		i := *c.Instance
		c.Instance = &i
	}
	if c.Launch != nil {
		l := *c.Launch
		c.Launch = &l
	}
	return c
}

// image returns what the cell's machine has booted, in the cloud's own terms; "" where the cloud does not say.
func (c *Cell) image() string {
	if c.Launch == nil || c.Instance == nil {
		return ""
	}
	return c.Launch.Image
}

// setInstance gives the cell its instance. Its launch was asked for when the cell was there,
// and is known now, whatever the cloud's clock says: ages are taken from Kip's.
func (c *Cell) setInstance(i cloud.Instance, now time.Time) {
	if placed := c.StepTime(apiv1.StepPlaced); i.Launched.Before(placed) && !i.Launched.IsZero() {
		i.Launched = placed
	}
	if i.Launched.After(now) {
		i.Launched = now
	}
	c.Instance = &i
}

// zone returns where the cell's instance is, or may be; "" if nothing was launched for it.
func (c Cell) zone() string {
	switch {
	case c.Instance != nil:
		return c.Instance.Zone
	case c.Launch != nil:
		return c.Offering().Zone
	}
	return ""
}

// Launched returns when the instance came to be, as well as Kip knows; zero if it has none.
func (c Cell) Launched() time.Time { return c.launched() }

// launched returns when the instance came to be, as well as Kip knows; zero if it has
// none.
func (c Cell) launched() time.Time {
	if c.Instance != nil && !c.Instance.Launched.IsZero() {
		return c.Instance.Launched
	}
	return c.StepTime(apiv1.StepLaunched)
}
