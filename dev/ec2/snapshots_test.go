package ec2

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/cloud/sim"
)

// ebs makes a call of EBS direct APIs; it returns the kind of a failure, or "", and what was
// answered.
func (c *client) ebs(method, path string, header map[string]string, body string) (kind string, answer map[string]any) {
	c.Helper()
	req, err := http.NewRequestWithContext(c.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		c.Fatalf("%s: %q: %v", resp.Status, text, err)
	}
	if resp.StatusCode >= 300 {
		return resp.Header.Get("X-Amzn-Errortype"), answer
	}
	return "", answer
}

// started is the ID of a snapshot that was started so.
func (c *client) started(body string) string {
	c.Helper()
	kind, answer := c.ebs(http.MethodPost, "/snapshots", nil, body)
	id, _ := answer["SnapshotId"].(string)
	if kind != "" || id == "" {
		c.Fatalf("%s %v", kind, answer)
	}
	return id
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// put writes a block, with some headers changed.
func (c *client) put(id, index string, block []byte, change map[string]string) string {
	c.Helper()
	header := map[string]string{
		"X-Amz-Data-Length": "524288", "X-Amz-Checksum": checksum(block), "X-Amz-Checksum-Algorithm": "SHA256",
	}
	maps.Copy(header, change)
	kind, _ := c.ebs(http.MethodPut, "/snapshots/"+id+"/blocks/"+index, header, string(block))
	return kind
}

func (c *client) complete(id string, header map[string]string) string {
	c.Helper()
	kind, _ := c.ebs(http.MethodPost, "/snapshots/completion/"+id, header, "")
	return kind
}

func TestASnapshotIsWrittenAsTheReferenceSays(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	for _, body := range []string{
		"", "{}", `{"VolumeSize":0}`, `{"VolumeSize":65537}`, `{"VolumeSize":1,"Timeout":9}`, `{"VolumeSize":1,"Timeout":4321}`,
		`{"VolumeSize":1,"Surprise":1}`, `{"VolumeSize":1,"Encrypted":true}`, `{"VolumeSize":1,"Tags":[{"Key":"aws:x","Value":"y"}]}`,
		`{"VolumeSize":1,"Tags":[{"Key":"x","Value":"y"},{"Key":"x","Value":"z"}]}`,
	} {
		if kind, _ := c.ebs(http.MethodPost, "/snapshots", nil, body); kind != "ValidationException" {
			t.Errorf("%s: %q", body, kind)
		}
	}
	const asked = `{"VolumeSize":1,"ClientToken":"t","Tags":[{"Key":"x","Value":"y"}]}`
	id := c.started(asked)
	if again := c.started(asked); again != id {
		t.Errorf("the token gives %s, then %s", id, again)
	}
	if kind, _ := c.ebs(http.MethodPost, "/snapshots", nil, `{"VolumeSize":2,"ClientToken":"t"}`); kind != "ConflictException" {
		t.Errorf("the token of another call: %q", kind)
	}
	block := bytes.Repeat([]byte("x"), BlockSize)
	for what, tc := range map[string]struct {
		index  string
		block  []byte
		change map[string]string
		want   string
	}{
		"a short block":          {"0", block[1:], nil, "ValidationException"},
		"another length":         {"0", block, map[string]string{"X-Amz-Data-Length": "524287"}, "ValidationException"},
		"no length":              {"0", block, map[string]string{"X-Amz-Data-Length": ""}, "ValidationException"},
		"another's checksum":     {"0", block, map[string]string{"X-Amz-Checksum": checksum(nil)}, "ValidationException"},
		"another algorithm":      {"0", block, map[string]string{"X-Amz-Checksum-Algorithm": "MD5"}, "ValidationException"},
		"more than all progress": {"0", block, map[string]string{"X-Amz-Progress": "101"}, "ValidationException"},
		"beyond the volume":      {"2048", block, nil, "ValidationException"},
		"before it":              {"-1", block, nil, "ValidationException"},
		"the last":               {"2047", block, nil, ""},
		"the first, after it":    {"0", block, nil, ""},
	} {
		if kind := c.put(id, tc.index, tc.block, tc.change); kind != tc.want {
			t.Errorf("%s: %q, want %q", what, kind, tc.want)
		}
	}
	if kind := c.put("snap-none", "0", block, nil); kind != "ResourceNotFoundException" {
		t.Errorf("a snapshot that is not there: %q", kind)
	}
	sum := linear(map[int][]byte{0: block, 2047: block})
	if kind := c.complete(id, map[string]string{"X-Amz-ChangedBlocksCount": "1"}); kind != "ValidationException" {
		t.Errorf("completed with too few: %q", kind)
	}
	for _, wrong := range []map[string]string{
		{}, {"X-Amz-ChangedBlocksCount": "2", "X-Amz-Checksum": sum},
		{"X-Amz-ChangedBlocksCount": "2", "X-Amz-Checksum": checksum(block), "X-Amz-Checksum-Algorithm": "SHA256",
			"X-Amz-Checksum-Aggregation-Method": "LINEAR"},
	} {
		if kind := c.complete(id, wrong); kind != "ValidationException" {
			t.Errorf("completed with %v: %q", wrong, kind)
		}
	}
	register := []string{
		"Name=kip", "RootDeviceName=/dev/xvda", "VirtualizationType=hvm", "BlockDeviceMapping.1.DeviceName=/dev/xvda",
		"BlockDeviceMapping.1.Ebs.SnapshotId=" + id,
	}
	if code, _ := c.ask("RegisterImage", register...); code != "IncorrectState" {
		t.Errorf("registered before it is complete: %q", code)
	}
	done := map[string]string{
		"X-Amz-ChangedBlocksCount":          "2",
		"X-Amz-Checksum":                    sum,
		"X-Amz-Checksum-Algorithm":          "SHA256",
		"X-Amz-Checksum-Aggregation-Method": "LINEAR",
	}
	if kind := c.complete(id, done); kind != "" {
		t.Fatalf("completed: %q", kind)
	}
	if kind := c.put(id, "1", block, nil); kind != "ValidationException" {
		t.Errorf("written after it is complete: %q", kind)
	}
	for _, want := range []string{"pending", "completed"} {
		if _, body := c.ask("DescribeSnapshots", "SnapshotId.1="+id, "Filter.1.Name=tag:x", "Filter.1.Value.1=y"); !strings.Contains(body, want) {
			t.Errorf("it is not %s: %s", want, body)
		}
	}
	for what, tc := range map[string]struct {
		more []string
		want string
	}{
		"a name that is none":            {[]string{"Name=a+b"}, "InvalidAMIName.Malformed"},
		"another snapshot":               {[]string{"BlockDeviceMapping.1.Ebs.SnapshotId=snap-none"}, "InvalidSnapshot.NotFound"},
		"another disk":                   {[]string{"RootDeviceName=/dev/sda1"}, "InvalidBlockDeviceMapping"},
		"a disk as its snapshot":         {[]string{"Name=small", "BlockDeviceMapping.1.Ebs.VolumeSize=0"}, ""},
		"arm64 by BIOS":                  {[]string{"Architecture=arm64", "BootMode=legacy-bios"}, "InvalidParameterCombination"},
		"another boot mode":              {[]string{"BootMode=efi"}, "InvalidParameterValue"},
		"IMDSv1":                         {[]string{"ImdsSupport=v1.0"}, "InvalidParameterValue"},
		"UEFI and paravirtual":           {[]string{"VirtualizationType=paravirtual", "BootMode=uefi"}, "InvalidParameterCombination"},
		"a tag of what it does not make": {[]string{"TagSpecification.1.ResourceType=volume"}, "InvalidParameterValue"},
		"a parameter that nobody knows":  {[]string{"Surprise=1"}, "UnknownParameter"},
	} {
		all := slices.DeleteFunc(slices.Clone(register), func(p string) bool {
			name, _, _ := strings.Cut(p, "=")
			return slices.ContainsFunc(tc.more, func(q string) bool { return strings.HasPrefix(q, name+"=") })
		})
		if code, body := c.ask("RegisterImage", append(all, tc.more...)...); code != tc.want {
			t.Errorf("%s: %q, want %q: %s", what, code, tc.want, body)
		}
	}
	code, _ := c.ask("RegisterImage", append(register, "Architecture=x86_64", "BootMode=uefi", "ImdsSupport=v2.0", "EnaSupport=true")...)
	if code != "" {
		t.Fatalf("registered: %q", code)
	}
	if code, _ := c.ask("RegisterImage", register...); code != "InvalidAMIName.Duplicate" {
		t.Errorf("registered once more: %q", code)
	}
	if code, _ := c.ask("DeleteSnapshot", "SnapshotId="+id); code != "InvalidSnapshot.InUse" {
		t.Errorf("deleted below its image: %q", code)
	}
	for _, i := range c.model.Images.All() {
		if i.Snapshot == id {
			if code, _ := c.ask("DeregisterImage", "ImageId="+i.ID); code != "" {
				t.Errorf("deregistered: %q", code)
			}
		}
	}
	for _, want := range []string{"", "InvalidSnapshot.NotFound"} {
		if code, _ := c.ask("DeleteSnapshot", "SnapshotId="+id); code != want {
			t.Errorf("deleted: %q, want %q", code, want)
		}
	}
	if code, _ := c.ask("DeregisterImage", "ImageId=ami-none"); code != "InvalidAMIID.NotFound" {
		t.Errorf("deregistered what is not there: %q", code)
	}
}

func TestASnapshotThatNobodyWritesIsCancelled(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	c := newClientOf(t, Config{Sim: sim.Config{Catalogue: aCatalogue(), Clock: clock}})
	id := c.started(`{"VolumeSize":1,"Timeout":10}`)
	block := bytes.Repeat([]byte("x"), BlockSize)
	for range 3 {
		clock.Step(9 * time.Minute)
		if kind := c.put(id, "0", block, nil); kind != "" {
			t.Errorf("written in time: %q", kind)
		}
	}
	clock.Step(11 * time.Minute)
	if kind := c.put(id, "0", block, nil); kind != "ValidationException" || c.model.Snapshots.All()[id].State != "error" {
		t.Errorf("written too late: %q, it is %s", kind, c.model.Snapshots.All()[id].State)
	}
}
