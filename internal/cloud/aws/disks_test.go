package aws

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"golang.org/x/sync/errgroup"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

func diskRequest(token string) cloud.DiskRequest {
	return cloud.DiskRequest{
		Token:     token,
		SizeBytes: gibi,
		Zone:      "us-east-1a",
		Tags:      map[string]string{cloud.TagOwner: owner, cloud.TagVolume: "pvc-" + token},
	}
}

func makeDisk(t *testing.T, c *Cloud, r cloud.DiskRequest) cloud.Disk {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	disk, err := c.CreateDisk(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

// running launches instances and returns their IDs.
func running(t *testing.T, c *Cloud, token string, n int) (ids []string) {
	t.Helper()
	got, err := runLaunch(t.Context(), c, request(token, n)).All()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range got {
		ids = append(ids, i.ID)
	}
	return ids
}

func TestADiskIsEncryptedAndAsLargeAsAsked(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	r := diskRequest("a")
	r.SizeBytes = gibi + 1
	r.Tags[cloud.TagName] = strings.Repeat("ü", 300) // longer than EC2 takes
	disk := makeDisk(t, c, r)
	made := model.Volumes.All()
	if len(made) != 1 || !made[0].Encrypted || made[0].Kind != "gp3" || made[0].GiB != 2 || disk.SizeBytes != 2*gibi ||
		made[0].Tags[tagDisk] != "a" || made[0].Tags[cloud.TagName] != strings.Repeat("ü", 256) {
		t.Errorf("made %+v, told %+v", made, disk)
	}
	for what, spoil := range map[string]func(*cloud.DiskRequest){
		"too large":        func(r *cloud.DiskRequest) { r.SizeBytes = (maxGiB + 1) << 30 },
		"a long token":     func(r *cloud.DiskRequest) { r.Token = strings.Repeat("a", maxToken+1) },
		"without a zone":   func(r *cloud.DiskRequest) { r.Zone = "" },
		"larger than made": func(r *cloud.DiskRequest) { r.Token, r.SizeBytes = "a", 3*gibi },
		"elsewhere":        func(r *cloud.DiskRequest) { r.Token, r.Zone = "a", "us-east-1b" },
	} {
		bad := diskRequest("b")
		spoil(&bad)
		if _, err := c.CreateDisk(t.Context(), bad); !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(model.Volumes.All()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

// EC2 does not say for how long it keeps a token, and Kip may be away for longer.
func TestADiskIsMadeOnceHoweverLongItsMakerWasAway(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	first := makeDisk(t, c, diskRequest("a"))
	model.Volumes.ForgetTokens()
	if again := makeDisk(t, c, diskRequest("a")); again.ID != first.ID || len(model.Volumes.All()) != 1 {
		t.Errorf("made %s and then %s: %+v", first.ID, again.ID, model.Volumes.All())
	}
	// A disk that was deleted is made anew, once EC2 would show it if it were only young.
	other := makeDisk(t, c, diskRequest("b"))
	if err := c.DeleteDisk(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	// The second look is that at the disk which the token has made.
	d, err := c.CreateDisk(givesUpAfter(t, model, 2), diskRequest("b"))
	if err == nil || !strings.Contains(err.Error(), other.ID) || len(model.Volumes.All()) != 1 {
		t.Errorf("made again: %+v, %v", d, err)
	}
	model.Volumes.Age(2 * shownWithin)
	if again := makeDisk(t, c, diskRequest("b")); again.ID == other.ID || len(model.Volumes.All()) != 2 {
		t.Errorf("made %s and then %s: %+v", other.ID, again.ID, model.Volumes.All())
	}
}

// givesUpAfter is a context that ends when EC2 has been asked about volumes so many times more.
func givesUpAfter(t *testing.T, model *ec2.Model, looks int) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	enough := model.Calls()["DescribeVolumes"] + looks
	var patience sync.WaitGroup
	patience.Go(func() {
		for ctx.Err() == nil && model.Calls()["DescribeVolumes"] < enough {
			time.Sleep(time.Millisecond)
		}
		cancel()
	})
	t.Cleanup(func() {
		cancel()
		patience.Wait()
	})
	return ctx
}

// tryDisk asks for a disk, for far more looks than it takes to see what becomes of it.
func tryDisk(t *testing.T, c *Cloud, model *ec2.Model, token string) (cloud.Disk, error) {
	t.Helper()
	return c.CreateDisk(givesUpAfter(t, model, 20), diskRequest(token))
}

// EC2 accepts a volume whose KMS key it cannot use, and tells the same one to the same ClientToken.
func TestAClaimGetsItsDiskOnceEC2CanMakeIt(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	model.Volumes.Fail(ec2.FateError)
	last := ""
	for range 3 {
		_, err := tryDisk(t, c, model, "a")
		failed, is := errors.AsType[*cloud.FailedDiskError](err)
		if !is || failed.State != "error" || failed.Disk == last || cloud.NothingDone(err) {
			t.Fatalf("after %s: %v", last, err)
		}
		// Who asks before it is deleted is told of the same one, and has not used up another token.
		if _, err := tryDisk(t, c, model, "a"); err == nil || !strings.Contains(err.Error(), failed.Disk) || len(model.Volumes.All()) != 1 {
			t.Errorf("again: %v with %+v", err, model.Volumes.All())
		}
		// It is no reason to refuse a disk of another size, or in another zone.
		other := diskRequest("a")
		other.SizeBytes, other.Zone = other.SizeBytes+gib, "us-east-1b"
		_, err = c.CreateDisk(givesUpAfter(t, model, 20), other)
		if again, is := errors.AsType[*cloud.FailedDiskError](err); !is || again.Disk != failed.Disk {
			t.Errorf("another disk: %v", err)
		}
		if err := c.DeleteDisk(t.Context(), failed.Disk); err != nil {
			t.Fatal(err)
		}
		last = failed.Disk
	}
	model.Volumes.Fail(ec2.FateWhole)
	if n := c.attemptAt("a").number; n != 3 {
		t.Errorf("the next attempt is number %d, want 3", n)
	}
	disk := makeDisk(t, c, diskRequest("a"))
	if again := makeDisk(t, c, diskRequest("a")); again.ID != disk.ID || len(model.Volumes.All()) != 1 || len(c.attempts) != 0 {
		t.Errorf("made %s and then %s: %+v, remembering %v", disk.ID, again.ID, model.Volumes.All(), c.attempts)
	}
}

// EC2 refuses a ClientToken that comes with other tags, or with another key (EC2 API reference, "Ensuring idempotency in
// Amazon EC2 API requests"), as it does once the operator has set the key that a failed volume asks for.
func TestAClaimGetsItsDiskOnceItsConfigurationIsAnother(t *testing.T) {
	for what, change := range map[string]func(*Config, *cloud.DiskRequest){
		"a key":            func(cfg *Config, _ *cloud.DiskRequest) { cfg.KMSKey = keyOfDisks },
		"tags":             func(cfg *Config, _ *cloud.DiskRequest) { cfg.Tags = map[string]string{"team": "a"} },
		"a cluster's name": func(cfg *Config, _ *cloud.DiskRequest) { cfg.Cluster = "prod" },
		"a name tag":       func(_ *Config, r *cloud.DiskRequest) { r.Tags[cloud.TagNameTag] = "prod" },
	} {
		account := anAccount(sim.Knobs{})
		account.Keys = []string{keyOfDisks}
		model, url := serve(t, account)
		c := open(t, settings(url))
		model.Volumes.Fail(ec2.FateError)
		for range 3 { // each uses up a ClientToken
			_, err := tryDisk(t, c, model, "a")
			failed, is := errors.AsType[*cloud.FailedDiskError](err)
			if !is {
				t.Fatalf("%s: %v", what, err)
			}
			if err := c.DeleteDisk(t.Context(), failed.Disk); err != nil {
				t.Fatal(err)
			}
		}
		model.Volumes.Fail(ec2.FateWhole)
		s, r, clk := settings(url), diskRequest("a"), clocktesting.NewFakeClock(time.Now())
		s.Clock = clk
		change(&s, &r)
		c = open(t, s)
		// It may be a volume that EC2 does not show yet: another beside it would be nobody's.
		if _, err := c.CreateDisk(t.Context(), r); err == nil || cloud.Refused(err) || len(model.Volumes.All()) != 0 {
			t.Errorf("%s: at once: %v with %+v", what, err, model.Volumes.All())
		}
		clk.Step(2 * shownWithin)
		disk := makeDisk(t, c, r)
		if again := makeDisk(t, c, r); again.ID != disk.ID || len(model.Volumes.All()) != 1 || len(c.attempts) != 0 {
			t.Errorf("%s: made %s and then %s: %+v, remembering %v", what, disk.ID, again.ID, model.Volumes.All(), c.attempts)
		}
	}
}

// One look that shows a volume lost is not believed: EC2's answers are of different ages.
func TestAVolumeIsLostOnlyWhenTwoLooksSaySo(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	model.Volumes.Fail(ec2.FateError)
	if _, err := tryDisk(t, c, model, "a"); err == nil {
		t.Fatal("it was made")
	}
	if calls := model.Calls()["DescribeVolumes"]; calls != 3 {
		t.Errorf("%d looks, want that by the tag and two at the volume", calls)
	}
}

// A volume that EC2 never shows is waited for as long as EC2 may take, and then made anew, by a
// process that remembers the earlier ones, and by one that does not.
func TestAVolumeThatEC2NeverShowsIsMadeAnew(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	c := open(t, settings(url))
	model.Volumes.Fail(ec2.FateNever)
	for n := range 3 {
		before := model.Calls()["CreateVolume"]
		if _, err := tryDisk(t, c, model, "a"); err == nil || !strings.Contains(err.Error(), "does not show") {
			t.Fatalf("try %d: %v", n, err)
		}
		if _, err := tryDisk(t, c, model, "a"); err == nil || c.attemptAt("a").number != n {
			t.Errorf("try %d while it is young: %v, attempt %d", n, err, c.attemptAt("a").number)
		}
		if calls, most := model.Calls()["CreateVolume"]-before, 3; calls > most {
			t.Errorf("try %d: %d calls", n, calls)
		}
		model.Volumes.Age(2 * shownWithin)
	}
	model.Volumes.Fail(ec2.FateWhole)
	disk := makeDisk(t, open(t, settings(url)), diskRequest("a"))
	if again := makeDisk(t, c, diskRequest("a")); again.ID != disk.ID || len(model.Volumes.All()) != 1 {
		t.Errorf("made %s and then %s: %+v", disk.ID, again.ID, model.Volumes.All())
	}
}

func TestOneCallTriesABoundedNumberOfVolumesAndRemembersHowFarItCame(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	r := diskRequest(strings.Repeat("a", maxToken)) // which leaves a number no room
	c := open(t, settings(url))
	for n := range mostNumbers + 1 { // each was made, and deleted since
		c.attempts[r.Token] = attempt{number: n}
		if err := c.DeleteDisk(t.Context(), makeDisk(t, c, r).ID); err != nil {
			t.Fatal(err)
		}
		model.Volumes.Age(2 * shownWithin)
	}
	c = open(t, settings(url))
	before := model.Calls()["CreateVolume"]
	_, err := c.CreateDisk(t.Context(), r)
	calls := model.Calls()["CreateVolume"] - before
	if err == nil || !strings.Contains(err.Error(), "one after another") || calls != mostNumbers {
		t.Errorf("%d calls, want %d: %v", calls, mostNumbers, err)
	}
	makeDisk(t, c, r)
}

func TestWhatIsRememberedOfDisksThatFailIsBounded(t *testing.T) {
	c, _ := newCloud(t, sim.Knobs{})
	for n := range mostAttempts + 10 {
		c.lose(fmt.Sprint(n), "vol-0")
	}
	if n := len(c.attempts); n > mostAttempts {
		t.Errorf("%d tokens", n)
	}
}

// Each call has had its effect when its answer is lost, and is made again.
func TestALostAnswerLeavesNoDiskTwiceAndNoneBehind(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	id := running(t, c, "t", 1)[0]
	disk := ""
	for _, step := range []struct {
		kind sim.Kind
		do   func() error
		want func(ec2.Volume) bool
	}{
		{sim.KindCreateDisk, func() error {
			d, err := c.CreateDisk(t.Context(), diskRequest("a"))
			disk = d.ID
			return err
		}, func(v ec2.Volume) bool { return v.Instance == "" }},
		{sim.KindAttachDisk, func() error { return c.AttachDisk(t.Context(), disk, id) }, func(v ec2.Volume) bool { return v.Instance == id }},
		{sim.KindDetachDisk, func() error { return c.DetachDisk(t.Context(), disk, id) }, func(v ec2.Volume) bool { return v.Instance == "" }},
		{sim.KindDeleteDisk, func() error { return c.DeleteDisk(t.Context(), disk) }, nil},
	} {
		model.Machines().FailNth(step.kind, 1, sim.Fault{After: sim.ErrLost})
		if err := step.do(); err == nil {
			t.Fatalf("%s: the answer was not lost", step.kind)
		}
		if err := step.do(); err != nil {
			t.Fatalf("%s again: %v", step.kind, err)
		}
		all := model.Volumes.All()
		if step.want == nil && len(all) != 0 || step.want != nil && (len(all) != 1 || !step.want(all[0])) {
			t.Fatalf("%s: %+v", step.kind, all)
		}
	}
}

// What EC2 refuses is the look, not the disk, which is there.
func TestADiskThatCannotBeLookedAtIsNotToldAsNotMade(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	refusal := cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("the token has expired"))
	for n := range 2 { // the look by the tag, and that at what was made
		token := fmt.Sprint(n)
		model.Machines().FailNth(sim.KindListDisks, n+1, sim.Fault{Before: refusal})
		if _, err := c.CreateDisk(ctx, diskRequest(token)); err == nil || cloud.Refused(err) {
			t.Errorf("look %d: %v, of which nothing has come: %t", n, err, cloud.Refused(err))
		}
		if _, err := c.CreateDisk(ctx, diskRequest(token)); err != nil {
			t.Error(err)
		}
	}
	if n := len(model.Volumes.All()); n != 2 {
		t.Errorf("%d volumes", n)
	}
}

func TestADiskThatIsInUseIsNotGoneThoughNoLookShowsIt(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	disk := makeDisk(t, c, diskRequest("a")).ID
	if err := c.AttachDisk(t.Context(), disk, running(t, c, "t", 1)[0]); err != nil {
		t.Fatal(err)
	}
	model.Volumes.Hide(true)
	defer model.Volumes.Hide(false)
	if err := c.DeleteDisk(t.Context(), disk); err == nil || len(model.Volumes.All()) != 1 {
		t.Errorf("deleted: %v, %+v", err, model.Volumes.All())
	}
}

func TestTheDisksOfCellsThemselvesAreNotListed(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 8, Tags: map[string]string{cloud.TagOwner: owner}}) // a root disk
	model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 8, Tags: map[string]string{cloud.TagOwner: "other", tagDisk: "b"}})
	disk := makeDisk(t, c, diskRequest("a"))
	list, err := c.ListDisks(t.Context(), owner)
	if err != nil || len(list) != 1 || list[0].ID != disk.ID || list[0].SizeBytes != gibi || list[0].Tags[cloud.TagVolume] != "pvc-a" {
		t.Errorf("listed %+v, %v", list, err)
	}
	if _, err := c.ListDisks(t.Context(), ""); !errors.Is(err, cloud.ErrRefused) {
		t.Errorf("of no owner: %v", err)
	}
}

// A name of a device is wanted by EC2 alone: whichever disks meet, each gets one.
func TestAnInstanceHasAsManyDisksAsItsTypeTakes(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	id := running(t, c, "t", 1)[0]
	const most = 26
	var disks []string
	for wants := map[uint32]string{}; len(disks) == 0; { // two that want one name
		disk := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1})
		name := hashOf(disk) % uint32(len(deviceNames))
		if other, taken := wants[name]; taken {
			disks = []string{other, disk}
		}
		wants[name] = disk
	}
	for len(disks) < most {
		disks = append(disks, model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1}))
	}
	for n, disk := range disks {
		if err := c.AttachDisk(t.Context(), disk, id); err != nil {
			t.Fatalf("disk %d: %v", n, err)
		}
	}
	names := map[string]bool{}
	for _, v := range model.Volumes.All() {
		names[v.Device] = true
	}
	delete(names, "") // of those that are free
	if len(names) != most {
		t.Errorf("the devices are %v", names)
	}
	if calls := model.Calls()["AttachVolume"]; calls == most {
		t.Errorf("no two of %d disks wanted the same name: this proves nothing", most)
	}
	more := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1})
	err := c.AttachDisk(t.Context(), more, id)
	if !errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), "AttachmentLimitExceeded") {
		t.Errorf("one more: %v", err)
	}
}

func TestWhatCannotBeAttachedSaysWhy(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{Pending: short(time.Hour)})
	disk := makeDisk(t, c, diskRequest("a")).ID
	elsewhere := diskRequest("b")
	elsewhere.Zone = "us-east-1b"
	pending := running(t, c, "t", 1)[0]
	if err := c.AttachDisk(t.Context(), disk, pending); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("an instance that does not run: %v", err)
	}
	if err := model.Machines().Change(func(k *sim.Knobs) { k.Pending = short(0) }); err != nil {
		t.Fatal(err)
	}
	ids := running(t, c, "u", 2)
	if err := c.AttachDisk(t.Context(), makeDisk(t, c, elsewhere).ID, ids[0]); !errors.Is(err, cloud.ErrRefused) ||
		!strings.Contains(err.Error(), "ZoneMismatch") {
		t.Errorf("another zone: %v", err)
	}
	gone := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1})
	if err := c.DeleteDisk(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	for what, id := range map[string]string{"deleted": gone, "never there": "vol-0123456789abcdef0", "no volume": "disk-1"} {
		if err := c.AttachDisk(t.Context(), id, ids[0]); !errors.Is(err, cloud.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		if err := errors.Join(c.DetachDisk(t.Context(), id, ids[0]), c.DeleteDisk(t.Context(), id)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.AttachDisk(t.Context(), disk, ids[0]); err != nil {
		t.Fatal(err)
	}
	inUse, is := errors.AsType[*cloud.InUseError](c.DeleteDisk(t.Context(), disk))
	if !is || inUse.Instance != ids[0] {
		t.Errorf("a disk in use is deleted: %v", inUse)
	}
}

// Before an instance is launched for a disk it is told what would come of that.
func TestADiskThatNoInstanceCanHaveIsToldBeforeOneIsLaunched(t *testing.T) {
	cfg := anAccount(sim.Knobs{})
	model, url := serve(t, cfg)
	c := open(t, settings(url))
	id := running(t, c, "t", 1)[0]
	free, held := makeDisk(t, c, diskRequest("free")).ID, makeDisk(t, c, diskRequest("held")).ID
	if err := c.AttachDisk(t.Context(), held, id); err != nil {
		t.Fatal(err)
	}
	model.Volumes.Fail(ec2.FateError)
	_, err := tryDisk(t, c, model, "broken")
	failed, is := errors.AsType[*cloud.FailedDiskError](err)
	if !is {
		t.Fatal(err)
	}
	shared := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 4, MultiAttach: true})
	for what, tc := range map[string]struct {
		disk, zone string
		want       error
		says       string
	}{
		"free":         {free, "us-east-1a", nil, ""},
		"in any zone":  {free, "", nil, ""},
		"another zone": {free, "us-east-1b", cloud.ErrRefused, "us-east-1a"},
		"held":         {held, "us-east-1a", cloud.ErrInUse, id},
		"broken":       {failed.Disk, "us-east-1a", cloud.ErrRefused, `state "error"`},
		"shared":       {shared, "us-east-1a", cloud.ErrRefused, "Multi-Attach"},
		"not there":    {"vol-0123456789abcdef0", "us-east-1a", cloud.ErrNotFound, "no such volume"},
		"of no volume": {"disk-1", "us-east-1a", cloud.ErrNotFound, "no such volume"},
	} {
		err := c.CheckDisk(t.Context(), tc.disk, tc.zone)
		if !errors.Is(err, tc.want) || tc.want != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %v with %q", what, err, tc.want, tc.says)
		}
		if tc.want == nil || tc.want == cloud.ErrInUse || what == "another zone" {
			continue
		}
		// Whoever attaches all the same is told the same, for good.
		if err := c.AttachDisk(t.Context(), tc.disk, id); !errors.Is(err, tc.want) || !cloud.Refused(err) {
			t.Errorf("%s is attached: %v", what, err)
		}
	}
	if n := model.Calls()["AttachVolume"]; n != 1 {
		t.Errorf("EC2 was asked %d times to attach: want only what it can", n)
	}
}

// EC2 gives a volume with Multi-Attach to another instance, too.
func TestADiskThatSeveralMayHaveIsRefused(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	id := running(t, c, "t", 1)[0]
	shared := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 4, Kind: "io2", MultiAttach: true})
	if err := c.AttachDisk(t.Context(), shared, id); !errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), "Multi-Attach") ||
		model.Calls()["AttachVolume"] != 0 {
		t.Errorf("attached: %v", err)
	}
}

func TestTheLimitOfATypeIsWhatIsLeftForDisks(t *testing.T) {
	said := func(most int32, limit types.AttachmentLimitType) types.InstanceTypeInfo {
		return types.InstanceTypeInfo{
			EbsInfo: &types.EbsInfo{MaximumEbsAttachments: aws.Int32(most), AttachmentLimitType: limit},
			GpuInfo: &types.GpuInfo{Gpus: []types.GpuDeviceInfo{{Count: aws.Int32(8)}}},
			InstanceStorageInfo: &types.InstanceStorageInfo{
				Disks: []types.DiskInfo{{Count: aws.Int32(8)}},
			},
		}
	}
	// What EC2 says of these types, and what the driver of EBS makes of it, as of its commit 429e202e.
	for what, tc := range map[string]struct {
		info types.InstanceTypeInfo
		want int64
	}{
		"nothing is said":            {types.InstanceTypeInfo{}, 26},
		"c5.large, shared":           {said(27, types.AttachmentLimitTypeShared), 26},
		"m5d.large, shared":          {said(26, types.AttachmentLimitTypeShared), 25},
		"i3en.24xlarge, shared":      {said(19, types.AttachmentLimitTypeShared), 18},
		"g5.48xlarge, shared":        {said(9, types.AttachmentLimitTypeShared), 8},
		"m8a.metal-48xl, not shared": {said(79, types.AttachmentLimitTypeShared), 78},
		"c7i.large, of their own":    {said(32, types.AttachmentLimitTypeDedicated), 31},
		"hardly any":                 {said(1, types.AttachmentLimitTypeDedicated), 1},
		// There are no more names of devices.
		"r8gb.48xlarge": {said(128, types.AttachmentLimitTypeDedicated), 104},
	} {
		if got := maxDisks(tc.info); got != tc.want {
			t.Errorf("%s: %d, want %d", what, got, tc.want)
		}
	}
	cfg := anAccount(sim.Knobs{})
	cfg.Sim.Catalogue[1].MaxDisks = 3
	_, url := serve(t, cfg)
	all, err := open(t, settings(url)).Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"t3.small": 26, "c5.large": 3, "c7g.large": 26, "g5.xlarge": 25}
	for _, one := range all {
		if one.MaxDisks != want[one.Name] {
			t.Errorf("%s takes %d disks, want %d", one.Name, one.MaxDisks, want[one.Name])
		}
	}
}

// Volumes are as EC2 shows them some seconds after each call.
func TestADiskIsWaitedForWhileEC2MakesItAndTakesItAway(t *testing.T) {
	cfg := anAccount(sim.Knobs{})
	cfg.VolumeStep = 30 * time.Millisecond
	_, url := serve(t, cfg)
	c := open(t, settings(url))
	ids := running(t, c, "t", 2)
	disk := makeDisk(t, c, diskRequest("a")).ID
	if err := c.AttachDisk(t.Context(), disk, ids[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.DetachDisk(t.Context(), disk, ids[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.AttachDisk(t.Context(), disk, ids[1]); err != nil {
		t.Errorf("detached, and not free: %v", err)
	}
	// While a disk is made by somebody else it can be had later.
	begun, err := c.api.CreateVolume(t.Context(), &api.CreateVolumeInput{AvailabilityZone: aws.String("us-east-1a"), Size: aws.Int32(1)})
	if err != nil {
		t.Fatal(err)
	}
	for err = c.AttachDisk(t.Context(), *begun.VolumeId, ids[0]); errors.Is(err, cloud.ErrNotFound); {
		err = c.AttachDisk(t.Context(), *begun.VolumeId, ids[0]) // EC2 does not show it at first
	}
	if err != nil && !errors.Is(err, cloud.ErrNotYet) {
		t.Errorf("a disk that is being made: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := c.CreateDisk(ctx, diskRequest("slow")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller that does not wait: %v", err)
	}
}

// asked waits until so many ask about volumes, of whom none has been answered.
func (e *volumes) asked(t *testing.T, n int) *look {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		e.mu.Lock()
		l := e.next
		enough := l != nil && len(l.ids) == n
		e.mu.Unlock()
		if enough {
			return l
		}
	}
	t.Fatalf("fewer than %d ask", n)
	return nil
}

func TestWhoWaitForVolumesShareACall(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	const n = 50
	ids := make([]string, n)
	for i := range ids {
		ids[i] = model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: i + 1})
	}
	c.looks <- struct{}{} // somebody's question is on its way
	var all errgroup.Group
	for i, id := range ids {
		all.Go(func() error {
			v, shown, err := c.volume(t.Context(), id)
			if err == nil && (!shown || *v.Size != int32(i+1)) {
				err = fmt.Errorf("%s is %+v, %t", id, v, shown)
			}
			return err
		})
	}
	c.asked(t, n)
	<-c.looks
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	if calls := model.Calls()["DescribeVolumes"]; calls != 1 {
		t.Errorf("%d calls for %d who ask: want 1", calls, n)
	}
}

func TestTheEndOfWhoAsksIsNotTheEndOfTheOthers(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	id := model.Volumes.Add(ec2.Volume{Zone: "us-east-1a", GiB: 1})
	c.looks <- struct{}{}
	var one errgroup.Group
	one.Go(func() error {
		_, shown, err := c.volume(t.Context(), id)
		if err == nil && !shown {
			err = errors.New("it is not shown")
		}
		return err
	})
	l := c.asked(t, 1)
	c.podDisks.volumes.mu.Lock()
	c.next, l.err = nil, context.Canceled // that of the one who asked for both
	c.podDisks.volumes.mu.Unlock()
	close(l.done)
	<-c.looks
	if err := one.Wait(); err != nil {
		t.Error(err)
	}
}
