package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"go.uber.org/goleak"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// region is one of EC2, whose account may do what the documentation says and no more.
type region struct {
	*testing.T
	model  *ec2.Model
	policy *ec2.Policy
	url    string

	mu   sync.Mutex
	said []string
}

const (
	accessKey    = "AKIAPUBLISHER"
	keyOfAccount = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
)

// newRegion is one with another image of the account, and these.
func newRegion(t *testing.T, more ...ec2.Image) *region {
	t.Helper()
	return newRegionWith(t, documented(t), more...)
}

// newRegionWith is one whose publisher has the rights of a policy.
func newRegionWith(t *testing.T, policy *ec2.Policy, more ...ec2.Image) *region {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_REGION": "", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
	r := &region{T: t, policy: policy}
	everything, err := ec2.ParsePolicy([]byte(`{"Statement":[{"Sid":"All","Effect":"Allow","Action":"*","Resource":"*"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.model, err = ec2.New(ec2.Config{
		Sim: sim.Config{Catalogue: []catalog.InstanceType{{
			Name:        "c5.large",
			MilliCPU:    2000,
			MemoryBytes: 4 << 30,
			Arch:        "amd64",
			Offerings:   []catalog.PurchaseOption{{Zone: "z1", Subnet: "subnet-1"}},
		}}},
		Subnets:  []ec2.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}},
		Images:   append(more, ec2.Image{ID: "ami-other", Name: "another", Owner: "self", RootDevice: "/dev/xvda", GiB: 1}),
		Policies: map[string]*ec2.Policy{accessKey: r.policy, "AKIAROOT": everything},
		// The account encrypts by default, with a key of its own.
		Keys:       []string{keyOfAccount},
		DefaultKey: keyOfAccount,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.model)
	t.Cleanup(func() {
		if err := r.model.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	r.url = server.URL
	return r
}

// documented is the policy in the documentation.
func documented(t *testing.T) *ec2.Policy {
	t.Helper()
	policy, err := ec2.ParsePolicy(documentedText(t))
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func documentedText(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/boot-image.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "```json\n")
	text, _, _ := strings.Cut(after, "```")
	return []byte(text)
}

// The policy is a file, too, for Terraform and for aws iam create-policy.
func TestThePolicyOfThePageIsThatOfTheFile(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/aws/boot-image-policy.json")
	if err != nil || !bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(documentedText(t))) {
		t.Errorf("deploy/aws/boot-image-policy.json is not what docs/boot-image.md has (%v)", err)
	}
}

// The policy's last statements are for an account that encrypts with a key of its own.
func TestWithoutTheRightToItsKeyAPublicationSaysWhatToDo(t *testing.T) {
	for _, sid := range []string{"GrantsTheKey", "UsesTheKey"} {
		without := bytes.Replace(documentedText(t), []byte(`"`+sid+`",
      "Effect": "Allow"`), []byte(`"`+sid+`",
      "Effect": "Deny"`), 1)
		policy, err := ec2.ParsePolicy(without)
		if err != nil || bytes.Equal(without, documentedText(t)) {
			t.Fatalf("%s: %v", sid, err)
		}
		r := newRegionWith(t, policy)
		i, _ := r.disk("v1")
		_, err = r.publisher(0, r.transport()).Publish(t.Context(), i)
		if err == nil || !strings.Contains(err.Error(), "the statements GrantsTheKey and UsesTheKey of docs/boot-image.md") {
			t.Errorf("without %s: %v", sid, err)
		}
		if n := len(r.model.Snapshots.All()); n != 0 {
			t.Errorf("without %s: %d snapshots are left", sid, n)
		}
	}
}

// publisher is one whose clock is late by so much, and whose calls go through here.
func (r *region) publisher(late time.Duration, through http.RoundTripper) *Publisher {
	r.Helper()
	p, err := New(r.Context(), Config{
		Region:   "us-east-1",
		Endpoint: r.url,
		Say: func(format string, args ...any) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.said = append(r.said, fmt.Sprintf(format, args...))
		},
		Now:       func() time.Time { return time.Now().Add(late) },
		Pause:     func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
		Transport: through,
	})
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// transport is a way to EC2 that closes its connections when the test ends.
func (r *region) transport() *http.Transport {
	t := &http.Transport{}
	r.Cleanup(t.CloseIdleConnections)
	return t
}

func (r *region) publish(i Image) string {
	r.Helper()
	id, err := r.publisher(0, r.transport()).Publish(r.Context(), i)
	if err != nil {
		r.Fatal(err)
	}
	return id
}

// disk is one of 5 blocks and a bit, of which the second and the last but one are empty.
func (r *region) disk(version string) (Image, map[int][]byte) {
	r.Helper()
	blocks := map[int][]byte{}
	for _, i := range []int{0, 2, 3, 5} {
		blocks[i] = bytes.Repeat([]byte{byte(i + 1)}, blockSize)
	}
	copy(blocks[0], version)
	clear(blocks[5][1000:]) // the disk ends there
	content := make([]byte, 5*blockSize+1000)
	for i, b := range blocks {
		copy(content[i*blockSize:], b)
	}
	file := filepath.Join(r.TempDir(), "disk.raw")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		r.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return Image{
		File:    file,
		SHA256:  hex.EncodeToString(sum[:]),
		Arch:    "amd64",
		Version: version,
	}, blocks
}

// published are the images but the account's other one.
func (r *region) published() []ec2.Image {
	return slices.DeleteFunc(r.model.Images.All(), func(i ec2.Image) bool { return i.ID == "ami-other" })
}

// is says what is wrong where an image is not this disk, alone with its snapshot.
func (r *region) is(id string, i Image, blocks map[int][]byte) {
	r.Helper()
	all, snapshots := r.published(), r.model.Snapshots.All()
	if len(all) != 1 || len(snapshots) != 1 || all[0].ID != id {
		r.Fatalf("published %s, there are %+v and %d snapshots", id, all, len(snapshots))
	}
	s := snapshots[all[0].Snapshot]
	if s.State != "completed" || s.GiB != 1 || len(s.Blocks) != len(blocks) || s.Tags[TagDigest] != i.SHA256 {
		r.Errorf("the snapshot is %s, of %d GiB, with %d blocks, %v", s.State, s.GiB, len(s.Blocks), s.Tags)
	}
	for n, want := range blocks {
		if !bytes.Equal(s.Blocks[n], want) {
			r.Errorf("block %d is another", n)
		}
	}
	got := all[0]
	if got.BootMode != "uefi" || got.Architecture != "x86_64" || !got.ENA || got.IMDS != "v2.0" || got.RootDevice != "/dev/xvda" {
		r.Errorf("the image is %+v", got)
	}
	if got.Tags[TagArch] != "amd64" || got.Tags[TagDigest] != i.SHA256 || got.Tags[TagVersion] != i.Version || got.Tags["Name"] != got.Name {
		r.Errorf("its tags are %v", got.Tags)
	}
}

func TestAnImageIsPublishedOnce(t *testing.T) {
	r := newRegion(t)
	i, blocks := r.disk("v1.2.3+dirty")
	id := r.publish(i)
	r.is(id, i, blocks)
	if name := r.published()[0].Name; name != "kip-cell-amd64-v1.2.3-dirty-"+i.SHA256[:12] {
		t.Errorf("it is called %s", name)
	}
	if n := slices.Index(r.said, "uploaded 100 %"); n < 0 {
		t.Errorf("said %q", r.said)
	}
	if found, err := r.publisher(0, r.transport()).images(t.Context(), tag(TagDigest, i.SHA256)); err != nil || len(found) != 1 ||
		found[0].State != types.ImageStateAvailable {
		t.Errorf("it was not waited for until it can be launched: %v, %v", found, err)
	}
	before := r.model.Calls()
	if again := r.publish(i); again != id {
		t.Errorf("published once more it is %s, not %s", again, id)
	}
	for _, action := range []string{"StartSnapshot", "PutSnapshotBlock", "CompleteSnapshot", "RegisterImage", "DeleteSnapshot"} {
		if now := r.model.Calls()[action]; now != before[action] {
			t.Errorf("published once more there are %d calls of %s, before %d", now, action, before[action])
		}
	}
}

// cutOff refuses all calls from the nth on, as if this program had been killed there.
type cutOff struct {
	http.RoundTripper
	left atomic.Int32
}

func (c *cutOff) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.left.Add(-1) >= 0 {
		return c.RoundTripper.RoundTrip(req)
	}
	return denied(req), nil
}

// denied is an answer that the SDK takes as the last word.
func denied(req *http.Request) *http.Response {
	return &http.Response{
		StatusCode: http.StatusForbidden,
		Header:     http.Header{"X-Amzn-Errortype": {"AccessDeniedException"}},
		Body:       io.NopCloser(strings.NewReader("{}")),
		Request:    req,
	}
}

// Killed between any two calls, a publication is made whole by the next, and nothing is left
// of the first.
func TestAPublicationThatWasCutOffIsMadeWhole(t *testing.T) {
	r := newRegion(t)
	i, blocks := r.disk("v1")
	for n := range int32(100) {
		r = newRegion(t)
		cut := &cutOff{RoundTripper: r.transport()}
		cut.left.Store(n)
		if _, err := r.publisher(0, cut).Publish(t.Context(), i); err == nil {
			if n < 8 {
				t.Errorf("it was done with %d calls", n)
			}
			return
		}
		p := r.publisher(2*uploadLimit, r.transport())
		id, err := p.Publish(t.Context(), i)
		if err == nil {
			err = p.RemoveOld(t.Context(), i.Arch, id)
		}
		if err != nil {
			t.Fatalf("after %d calls: %v; said %q", n, err, r.said)
		}
		r.is(id, i, blocks)
	}
	t.Error("a hundred calls are not enough")
}

// A snapshot that is whole is not uploaded twice.
func TestASnapshotThatIsThereIsRegistered(t *testing.T) {
	r := newRegion(t)
	i, blocks := r.disk("v1")
	registers := func(req *http.Request) bool {
		if strings.HasPrefix(req.URL.Path, "/snapshots") {
			return false
		}
		text, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		req.Body = io.NopCloser(bytes.NewReader(text))
		return bytes.Contains(text, []byte("Action=RegisterImage"))
	}
	if _, err := r.publisher(0, fails{r.transport(), registers}).Publish(t.Context(), i); err == nil {
		t.Fatal("it was registered")
	}
	r.is(r.publish(i), i, blocks)
	if n := r.model.Calls()["StartSnapshot"]; n != 1 {
		t.Errorf("%d snapshots were started", n)
	}
}

func TestTheRestOfTheLastBlockIsEmpty(t *testing.T) {
	r := newRegion(t)
	p := r.publisher(0, r.transport())
	used := bytes.Repeat([]byte{7}, blockSize)
	sum, err := p.putOne(t.Context(), "none", bytes.NewReader(make([]byte, 1000)), 0, used)
	if sum != nil || err != nil {
		t.Errorf("the end of a disk, all zeros, was to be written: %v", err)
	}
}

func TestAnUploadThatIsUnderWayIsNotDisturbed(t *testing.T) {
	r := newRegion(t)
	i, _ := r.disk("v1")
	cut := &cutOff{RoundTripper: r.transport()}
	cut.left.Store(5) // three lists, the snapshot, a block
	if _, err := r.publisher(0, cut).Publish(t.Context(), i); err == nil {
		t.Fatal("it was not cut off")
	}
	p := r.publisher(0, r.transport())
	if _, err := p.Publish(t.Context(), i); err == nil || !strings.Contains(err.Error(), "an upload of the same image began at") {
		t.Errorf("beside another: %v", err)
	}
	if err := p.RemoveOld(t.Context(), "amd64", ""); err != nil || len(r.model.Snapshots.All()) != 1 {
		t.Errorf("its snapshot was removed: %v", err)
	}
}

// fails refuses one action's calls.
type fails struct {
	http.RoundTripper
	when func(*http.Request) bool
}

func (f fails) RoundTrip(req *http.Request) (*http.Response, error) {
	if f.when(req) {
		return denied(req), nil
	}
	return f.RoundTripper.RoundTrip(req)
}

func TestAnUploadThatFailsLeavesNothing(t *testing.T) {
	for what, when := range map[string]func(*http.Request) bool{
		"a block":    func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/blocks/3") },
		"completing": func(req *http.Request) bool { return strings.Contains(req.URL.Path, "/completion/") },
	} {
		r := newRegion(t)
		i, _ := r.disk("v1")
		_, err := r.publisher(0, fails{r.transport(), when}).Publish(t.Context(), i)
		if err == nil || !strings.Contains(err.Error(), "upload the snapshot snap-") {
			t.Errorf("%s fails: %v", what, err)
		}
		if len(r.model.Snapshots.All()) != 0 || len(r.published()) != 0 {
			t.Errorf("%s fails: there are %d snapshots, and the images %v", what, len(r.model.Snapshots.All()), r.published())
		}
	}
}

func TestAForeignOrSpoiledDiskIsNotPublished(t *testing.T) {
	r := newRegion(t)
	i, _ := r.disk("v1")
	if err := os.Truncate(i.File, 4*blockSize); err != nil {
		t.Fatal(err)
	}
	p := r.publisher(0, r.transport())
	if _, err := p.Publish(t.Context(), i); err == nil || !strings.Contains(err.Error(), "it is not whole, or another's") {
		t.Errorf("half a disk: %v", err)
	}
	i.Arch = "mips"
	if _, err := p.Publish(t.Context(), i); err == nil {
		t.Error("a disk for mips was published")
	}
	for call := range r.model.Calls() {
		if !strings.HasPrefix(call, "Describe") {
			t.Errorf("EC2 was asked to %s", call)
		}
	}
}

// Older images go on request, but for one that an instance was launched of, and nobody
// else's.
// An older version that is published again, or late, takes nothing from a newer one.
func TestNewerImagesAreNotRemoved(t *testing.T) {
	newer := ec2.Image{
		ID:      "ami-newer",
		Name:    "newer",
		Owner:   "self",
		Created: "2999-01-01T00:00:00.000Z",
		Tags:    map[string]string{TagArch: "amd64"},
	}
	r := newRegion(t, newer)
	i, _ := r.disk("v1")
	id := r.publish(i)
	for _, keep := range []string{id, "ami-unknown"} {
		if err := r.publisher(0, r.transport()).RemoveOld(t.Context(), "amd64", keep); err != nil {
			t.Fatal(err)
		}
		if got := r.published(); len(got) != 2 || len(r.model.Snapshots.All()) != 1 {
			t.Errorf("without what is older than %s there are %+v and %d snapshots", keep, got, len(r.model.Snapshots.All()))
		}
	}
}

func TestOlderImagesAreRemovedButForThoseInUse(t *testing.T) {
	r := newRegion(t)
	first, _ := r.disk("v1")
	second, _ := r.disk("v2")
	third, blocks := r.disk("v3")
	a, b := r.publish(first), r.publish(second)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAROOT")
	root := r.publisher(0, r.transport())
	ran, err := root.api.RunInstances(t.Context(), &sdk.RunInstancesInput{
		ImageId:      aws.String(a),
		InstanceType: types.InstanceType("c5.large"),
		SubnetId:     aws.String("subnet-1"),
		MinCount:     aws.Int32(1),
		MaxCount:     aws.Int32(1),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	c := r.publish(third)
	remove := func() {
		t.Helper()
		if err := r.publisher(0, r.transport()).RemoveOld(t.Context(), "amd64", c); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	ids := func() (ids []string) {
		for _, i := range r.published() {
			ids = append(ids, i.ID)
		}
		return ids
	}
	if got := ids(); !slices.Equal(got, []string{a, c}) || len(r.model.Snapshots.All()) != 2 {
		t.Errorf("with an instance of %s there are %v, of %s, %s, %s, and %d snapshots", a, got, a, b, c, len(r.model.Snapshots.All()))
	}
	ended := &sdk.TerminateInstancesInput{InstanceIds: []string{aws.ToString(ran.Instances[0].InstanceId)}}
	if _, err := root.api.TerminateInstances(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	remove()
	r.is(c, third, blocks)
	if n := len(r.model.Images.All()); n != 2 {
		t.Errorf("of %d images one is another's", n)
	}
	if unused := r.policy.Unused(); len(unused) > 0 {
		t.Errorf("the documented policy allows what nobody needs: %v", unused)
	}
}

// A plain image and one with a driver are both in use: neither is an older one of the other.
func TestImagesOfTwoVariantsStayBesideEachOther(t *testing.T) {
	r := newRegion(t)
	plain, _ := r.disk("plain")
	driver, _ := r.disk("driver")
	driver.Variant, driver.GPUs = "nvidia", []string{"T4", "L4"}
	for _, i := range []Image{plain, driver, plain} {
		id := r.publish(i)
		if err := r.publisher(2*uploadLimit, r.transport()).RemoveOld(t.Context(), i.Kind(), id); err != nil {
			t.Fatal(err)
		}
	}
	all := r.published()
	if len(all) != 2 || len(r.model.Snapshots.All()) != 2 {
		t.Fatalf("there are %+v and %d snapshots; said %q", all, len(r.model.Snapshots.All()), r.said)
	}
	slices.SortFunc(all, func(a, b ec2.Image) int { return strings.Compare(a.Name, b.Name) })
	if name := all[0].Name; name != "kip-cell-amd64-nvidia-driver-"+driver.SHA256[:12] || all[0].Tags[TagArch] != "amd64-nvidia" ||
		all[0].Tags[TagGPUs] != "T4 L4" {
		t.Errorf("the one with a driver is %s, %v", name, all[0].Tags)
	}
	if name := all[1].Name; name != "kip-cell-amd64-plain-"+plain.SHA256[:12] || all[1].Tags[TagArch] != "amd64" ||
		all[1].Tags[TagGPUs] != "" {
		t.Errorf("the other is %s, %v", name, all[1].Tags)
	}
}
