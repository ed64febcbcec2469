package ec2

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

var anID = regexp.MustCompile(`<(?:volumeId|instanceId)>([^<]+)<`)

// idOf is the first ID that an answer has.
func (c *client) idOf(code, body string) string {
	c.Helper()
	found := anID.FindStringSubmatch(body)
	if code != "" || found == nil {
		c.Fatalf("%s %s", code, body)
	}
	return found[1]
}

func (c *client) volume(more ...string) string {
	c.Helper()
	return c.idOf(c.ask("CreateVolume", append([]string{"AvailabilityZone=z1", "Size=1", "VolumeType=gp3"}, more...)...))
}

// status is that of a volume and of its attachment, as EC2 shows them.
func (c *client) status(id string) string {
	c.Helper()
	code, body := c.ask("DescribeVolumes", "VolumeId.1="+id)
	if code != "" {
		return code
	}
	var all []string
	for _, s := range regexp.MustCompile(`<status>([^<]+)<`).FindAllStringSubmatch(body, -1) {
		all = append(all, s[1])
	}
	return strings.Join(all, " ")
}

func TestVolumesAreRefusedAsEC2RefusesThem(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	here, there := c.idOf(c.ask("RunInstances", run()...)), c.idOf(c.ask("RunInstances", run("NetworkInterface.1.SubnetId=subnet-2")...))
	free, taken := c.volume(), c.volume("ClientToken=a")
	attach := func(id, instance, device string) []string {
		return []string{"VolumeId=" + id, "InstanceId=" + instance, "Device=" + device}
	}
	if code, body := c.ask("AttachVolume", attach(taken, here, "/dev/sdf")...); code != "" || !strings.Contains(body, "<status>attaching<") {
		t.Fatal(code, body)
	}
	if again := c.volume("ClientToken=a"); again != taken {
		t.Errorf("a token made %s and %s", taken, again)
	}
	const gone = "vol-0123456789abcdef0"
	changed := c.volume()
	for _, size := range []string{"2", "3", "4", "5"} {
		code, body := c.ask("ModifyVolume", "VolumeId="+changed, "Size="+size)
		if code != "" || !strings.Contains(body, "<targetSize>"+size+"<") {
			t.Fatal(code, body)
		}
	}
	for what, tc := range map[string]struct {
		action, want string
		parameters   []string
	}{
		"too small":    {"CreateVolume", "InvalidParameterValue", []string{"AvailabilityZone=z1", "VolumeType=gp3"}},
		"too large":    {"CreateVolume", "InvalidParameterValue", []string{"AvailabilityZone=z1", "Size=16385"}},
		"no such zone": {"CreateVolume", "InvalidZone.NotFound", []string{"AvailabilityZone=z9", "Size=1"}},
		"multi-attach": {"CreateVolume", "InvalidParameterCombination", []string{"AvailabilityZone=z1", "Size=1", "MultiAttachEnabled=true"}},
		"too fast":     {"CreateVolume", "InvalidParameterValue", []string{"AvailabilityZone=z1", "Size=4", "VolumeType=gp3", "Iops=2147483647"}},
		"fast gp2":     {"CreateVolume", "InvalidParameterCombination", []string{"AvailabilityZone=z1", "Size=4", "VolumeType=gp2", "Iops=3000"}},
		"another call of a token": {"CreateVolume", "IdempotentParameterMismatch",
			[]string{"AvailabilityZone=z1", "Size=2", "ClientToken=a"}},
		"no volume's name":            {"DeleteVolume", "InvalidParameterValue", []string{"VolumeId=disk-1"}},
		"deleting none":               {"DeleteVolume", "InvalidVolume.NotFound", []string{"VolumeId=" + gone}},
		"deleting one in use":         {"DeleteVolume", "VolumeInUse", []string{"VolumeId=" + taken}},
		"attaching none":              {"AttachVolume", "InvalidVolume.NotFound", attach(gone, here, "/dev/sdg")},
		"attaching to none":           {"AttachVolume", "InvalidInstanceID.NotFound", attach(free, "i-0123456789abcdef0", "/dev/sdg")},
		"attaching twice":             {"AttachVolume", "VolumeInUse", attach(taken, there, "/dev/sdg")},
		"attaching elsewhere":         {"AttachVolume", "InvalidVolume.ZoneMismatch", attach(free, there, "/dev/sdg")},
		"a device's name that is not": {"AttachVolume", "InvalidParameterValue", attach(free, here, "/dev/nvme1n1")},
		"a device's name twice":       {"AttachVolume", "InvalidParameterValue", attach(free, here, "/dev/sdf")},
		"detaching a free one":        {"DetachVolume", "IncorrectState", []string{"VolumeId=" + free, "InstanceId=" + here}},
		"detaching from another":      {"DetachVolume", "InvalidAttachment.NotFound", []string{"VolumeId=" + taken, "InstanceId=" + there}},
		"tearing off": {"DetachVolume", "InvalidParameterValue",
			[]string{"VolumeId=" + taken, "InstanceId=" + here, "Force=true"}},
		"changing none":  {"ModifyVolume", "InvalidVolume.NotFound", []string{"VolumeId=" + gone, "Size=2"}},
		"making smaller": {"ModifyVolume", "InvalidParameterValue", []string{"VolumeId=" + free, "Size=0"}},
		"making huge":    {"ModifyVolume", "InvalidParameterValue", []string{"VolumeId=" + free, "Size=65537"}},
		"changing often": {"ModifyVolume", "VolumeModificationRateExceeded", []string{"VolumeId=" + changed, "Size=6"}},
		"changing type":  {"ModifyVolume", "UnknownParameter", []string{"VolumeId=" + free, "VolumeType=io2"}},
		"showing none":   {"DescribeVolumes", "InvalidVolume.NotFound", []string{"VolumeId.1=" + gone}},
		"pages of names": {"DescribeVolumes", "InvalidParameterCombination", []string{"VolumeId.1=" + free, "MaxResults=5"}},
	} {
		if code, body := c.ask(tc.action, tc.parameters...); code != tc.want {
			t.Errorf("%s: %s %s, want %s", what, code, body, tc.want)
		}
	}
	// The end of an instance frees its volumes, and deletes none.
	if code, body := c.ask("TerminateInstances", "InstanceId.1="+here); code != "" {
		t.Fatal(code, body)
	}
	if got := c.status(taken); got != "available" || len(c.model.Volumes.All()) != 3 {
		t.Errorf("of an instance that has ended: %s, %+v", got, c.model.Volumes.All())
	}
}

// The controller of ebs.csi.aws.com sends tags in any order, tries calls before it makes them, and asks
// of one volume whether it was modified.
func TestVolumesAreMadeAsTheEBSDriverAsksForThem(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	if code, _ := c.ask("DescribeAvailabilityZones", "DryRun=true"); code != "DryRunOperation" {
		t.Errorf("trying to list zones: %s", code)
	}
	want := []string{"AvailabilityZone=z1", "Size=1", "VolumeType=gp3", "Encrypted=true", "MultiAttachEnabled=false", "Iops=3000",
		"ClientToken=pvc-1", "TagSpecification.1.ResourceType=volume"}
	tags := func(first, second string) []string {
		return append(slices.Clone(want), "TagSpecification.1.Tag.1.Key="+first, "TagSpecification.1.Tag.1.Value=v",
			"TagSpecification.1.Tag.2.Key="+second, "TagSpecification.1.Tag.2.Value=v")
	}
	if code, _ := c.ask("CreateVolume", append(tags("a", "b"), "DryRun=true")...); code != "DryRunOperation" {
		t.Errorf("trying to make a volume: %s", code)
	}
	made := c.idOf(c.ask("CreateVolume", tags("a", "b")...))
	if again := c.idOf(c.ask("CreateVolume", tags("b", "a")...)); again != made {
		t.Errorf("the same tags in another order made %s, after %s", again, made)
	}
	if code, _ := c.ask("CreateVolume", tags("a", "c")...); code != "IdempotentParameterMismatch" {
		t.Errorf("another tag: %s", code)
	}
	if code, _ := c.ask("DescribeVolumesModifications", "VolumeId.1="+made); code != "InvalidVolumeModification.NotFound" {
		t.Errorf("of a volume that was never modified: %s", code)
	}
	other := c.volume()
	for _, id := range []string{made, other} {
		if code, body := c.ask("ModifyVolume", "VolumeId="+id, "Size=2"); code != "" {
			t.Fatal(code, body)
		}
	}
	if code, body := c.ask("DescribeVolumesModifications", "VolumeId.1="+made); code != "" || !strings.Contains(body, made) ||
		strings.Contains(body, other) {
		t.Errorf("of one volume: %s %s", code, body)
	}
}

func TestAVolumeGoesThroughItsStatesInTime(t *testing.T) {
	const step = time.Hour
	now := time.Now()
	v := &volume{created: now}
	at := func(after time.Duration, want string) {
		t.Helper()
		x := v.xml(now.Add(after), step)
		got := x.Status
		for _, a := range x.Attachments {
			got += " " + a.Status
		}
		if !v.shows(now.Add(after), step) {
			got = "unknown"
		}
		if got != want {
			t.Errorf("%s after its creation it is %q, want %q", after, got, want)
		}
	}
	at(0, "unknown")
	at(step, "creating")
	at(2*step, "available")
	v.Instance, v.attached = "i", now.Add(3*step)
	at(3*step, "in-use attaching")
	at(4*step, "in-use attached")
	v.Instance, v.left, v.detached = "", "i", now.Add(5*step)
	at(5*step, "in-use detaching")
	at(6*step, "available")
	v.deleted = now.Add(7 * step)
	at(7*step, "deleting")
	at(8*step, "unknown")
}

// disksBehind notes what is done with them.
type disksBehind struct {
	mu   sync.Mutex // calls come over several connections
	done []string
	fail error
}

func (d *disksBehind) note(what ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = append(d.done, strings.Join(what, " "))
	return d.fail
}

func (d *disksBehind) failWith(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func (d *disksBehind) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.done)
}

func (d *disksBehind) Attach(_ context.Context, v cloudmodel.Disk) error {
	return d.note("attach", v.ID, v.Instance)
}
func (d *disksBehind) Delete(_ context.Context, id string) error { return d.note("delete", id) }
func (d *disksBehind) Detach(_ context.Context, id, instance string) error {
	return d.note("detach", id, instance)
}

func (d *disksBehind) Grow(_ context.Context, v cloudmodel.Disk) error {
	return d.note("grow", v.ID, strconv.Itoa(v.GiB))
}

func TestWhatStandsBehindAVolumeFollowsItsCalls(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	disks := &disksBehind{}
	c.model.base.cfg.Disks = disks
	instance, id := c.idOf(c.ask("RunInstances", run()...)), c.volume()
	attach := []string{"VolumeId=" + id, "InstanceId=" + instance, "Device=/dev/sdf"}
	disks.failWith(errors.New("the machine is away"))
	if code, _ := c.ask("AttachVolume", attach...); code != "InternalError" || c.status(id) != "available" {
		t.Errorf("what failed behind: %q, and then %s", code, c.status(id))
	}
	disks.failWith(nil)
	c.model.Machines().FailNth(sim.KindAttachDisk, 1, sim.Fault{After: sim.ErrLost})
	if code, _ := c.ask("AttachVolume", attach...); code != "lost" {
		t.Errorf("an answer that is lost: %q", code)
	}
	for _, action := range []string{"AttachVolume", "DetachVolume", "DetachVolume"} { // of which one has an effect
		c.ask(action, attach[:map[string]int{"AttachVolume": 3, "DetachVolume": 2}[action]]...)
	}
	for _, action := range []string{"ModifyVolume", "DeleteVolume"} {
		parameters := []string{"VolumeId=" + id, "Size=2"}[:map[string]int{"ModifyVolume": 2, "DeleteVolume": 1}[action]]
		if code, body := c.ask(action, parameters...); code != "" {
			t.Error(code, body)
		}
	}
	want := []string{
		"attach " + id + " " + instance, "attach " + id + " " + instance, "detach " + id + " " + instance, "grow " + id + " 2", "delete " + id,
	}
	if done := disks.all(); !slices.Equal(done, want) {
		t.Errorf("behind: %q, want %q", done, want)
	}
}

func TestAVolumeThatIsDeletedKeepsItsToken(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	id := c.volume("ClientToken=a")
	if code, body := c.ask("DeleteVolume", "VolumeId="+id); code != "" {
		t.Fatal(code, body)
	}
	if again := c.volume("ClientToken=a"); again != id || c.status(id) != "InvalidVolume.NotFound" {
		t.Errorf("made %s, then %s, which is %s", id, again, c.status(id))
	}
	c.model.Volumes.ForgetTokens()
	if again := c.volume("ClientToken=a"); again == id {
		t.Error("a token that was forgotten is known")
	}
}
