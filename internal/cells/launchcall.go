package cells

import (
	"fmt"
	"maps"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"sigs.k8s.io/yaml"
)

// callVersion is that of storedCall. A Kip that does not know a call's version
// sends nothing of it: it would drop what it does not know, and send another call. After a while it gives the launch up:
// an instance of it is found by its tags, and ended.
const callVersion = 1

// storedCall is a call to the cloud that launches cells, whole, as it is stored: whatever the configuration says by
// then, what is sent again is this.
type storedCall struct {
	Version int                 `json:"version"`
	Request cloud.LaunchRequest `json:"request"`
	// Until is when the secret expires that the machines share: the call is sent no
	// more, and goes. Zero where they share none.
	Until time.Time `json:"until,omitzero"`
}

// callBuilder builds the calls that launch cells. It sends none.
type callBuilder struct {
	owner  string // the tag of this Kip's instances
	ca     string // the hash of the CA by which cells are to know Kip
	recipe *recipe
}

// build returns a call that launches a group of cells, and the records of these cells with it.
// The machines share their user data, or not.
func (s *callBuilder) build(
	group []*entry, shared bool, resolved *cloud.Resolved, now time.Time,
) (cells []Cell, call storedCall, err error) {
	intent := Launch{
		ID:        newID("launch-"),
		Cells:     len(group),
		NameTag:   s.recipe.nameTag,
		Shared:    shared,
		CloudInit: s.recipe.digest(),
		Agent:     s.recipe.agent,

		PublicAddress: resolved != nil && resolved.PublicAddress,
	}
	if resolved != nil {
		intent.Image = resolved.Image
	}
	call.Version = callVersion
	var secret pki.BatchSecret
	if intent.Shared {
		secret = pki.NewBatchSecret()
		call.Until = now.Add(group[0].cell().Offering().BootTimeout)
	}
	cells = make([]Cell, len(group))
	for n, e := range group {
		own := intent
		own.Index = n
		cells[n] = e.cell().clone()
		cells[n].Launch, cells[n].CA, cells[n].OldCA = &own, s.ca, ""
		cells[n].Template = s.recipe.template(intent.CloudInit)
		token := pki.NewToken()
		if intent.Shared {
			token = secret.Token(cells[n].JoinID())
		}
		cells[n].Token = token.Reveal()
	}
	labelled := intent.Shared && len(commonLabels(cells)) > 0
	for n := range cells {
		cells[n].Launch.Labelled = labelled
	}
	if call.Request, err = s.launchRequest(cells, secret); err != nil {
		return nil, call, err
	}
	call.Request.Resolved = resolved
	if resolved != nil {
		cloud.DropConfigured(call.Request.Tags, resolved.Tags)
	}
	return cells, call, nil
}

// launchRequest returns what the cloud is asked for, to launch cells of one offering and with the same
// options. The secret is that of machines that share their user data.
func (s *callBuilder) launchRequest(cells []Cell, secret pki.BatchSecret) (cloud.LaunchRequest, error) {
	first := cells[0]
	r := cloud.LaunchRequest{Token: first.launchToken(s.owner), LaunchSpec: s.spec(first, first.Launch.NameTag)}
	if first.Launch.Shared {
		maps.Copy(r.Tags, commonLabels(cells))
		r.Tags[cloud.TagBatch], r.Machines = first.Launch.ID, make([]cloud.Machine, len(cells))
		var err error
		r.UserData, err = userData(agentapi.BatchUserData{
			Version: agentapi.BatchVersion,
			Batch:   first.Launch.ID,
			CAHash:  first.CA,
			Secret:  secret.Reveal(),
		})
		return r, err
	}
	for _, cell := range cells {
		data, err := userData(agentapi.UserData{CellID: cell.ID, CAHash: cell.CA, Token: cell.Token})
		if err != nil {
			return r, err
		}
		r.Machines = append(r.Machines, cloud.Machine{UserData: data, Tags: tags(cell)})
	}
	return r, nil
}

// spec returns what the cells of one offering and with the same options are launched as.
func (s *callBuilder) spec(cell Cell, nameTag string) cloud.LaunchSpec {
	offering := cell.Offering()
	return cloud.LaunchSpec{
		InstanceType:  offering.InstanceType,
		Arch:          offering.Arch,
		Zone:          offering.Zone,
		Subnet:        offering.Subnet,
		CapacityType:  offering.CapacityType(),
		Reservation:   offering.Reservation,
		RootDiskBytes: offering.DiskBytes,
		Login:         s.recipe.file != nil && s.recipe.file.NeedsLogin(),
		Devices:       cell.needsDevices(),
		Options:       cell.Options,
		Tags:          map[string]string{cloud.TagOwner: s.owner, cloud.TagNameTag: nameTag},
	}
}

// tags returns those of one machine: the labels of its pod, and Kip's own.
func tags(cell Cell) map[string]string {
	tags := ownTags(cell)
	maps.Copy(tags, labelTags(&cell))
	return tags
}

func ownTags(cell Cell) map[string]string {
	tags := map[string]string{
		cloud.TagCell: cell.ID,
		cloud.TagName: "Kip cell " + cell.Launch.NameTag + " standby",
	}
	// A standby cell that is taken while its launch is unknown keeps the tags
	// that it was launched with: Pod is set no earlier than the outcome is known.
	if cell.Pod.UID != "" {
		tags[cloud.TagNamespace], tags[cloud.TagPod], tags[cloud.TagPodUID] = cell.Pod.Namespace, cell.Pod.Name, string(cell.Pod.UID)
		tags[cloud.TagName] = "Kip cell " + cell.Launch.NameTag + " " + cell.Pod.Name
	}
	return tags
}

// userData renders what a machine is told when it is launched.
func userData[T agentapi.UserData | agentapi.BatchUserData](u T) ([]byte, error) {
	body, err := yaml.Marshal(map[string]T{"kip": u})
	if err != nil {
		return nil, fmt.Errorf("render user data: %w", err)
	}
	return append([]byte("#cloud-config\n"), body...), nil
}
