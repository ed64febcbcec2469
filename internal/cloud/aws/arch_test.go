package aws

import (
	"errors"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// One name may be that of images of each architecture, whichever was published last.
func TestACellBootsTheNewestImageOfItsTypesArchitecture(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Images = append(account.Images, ec2.Image{
		ID:           "ami-arm",
		Name:         "kip-cell-arm64-1",
		Owner:        "self",
		Created:      "2026-10-01T00:00:00.000Z",
		Architecture: "arm64",
		RootDevice:   "/dev/xvda",
		GiB:          4,
	})
	_, url := serve(t, account)
	c := open(t, settings(url))
	launch := func(instanceType, arch string, image map[string]string) (string, error) {
		r := request("t-"+instanceType, 1)
		r.InstanceType, r.Image, r.Arch = instanceType, image, arch
		found, err := c.Resolve(t.Context(), r.LaunchSpec)
		if err != nil {
			return "", err
		}
		r.Resolved = &found
		return found.Image, runLaunch(t.Context(), c, r).Err()
	}
	all := map[string]string{imageName: "kip-cell-*"}
	// Where nobody says the architecture the newest is taken, which EC2 refuses where it is another's.
	if id, err := launch("t3.small", "", all); err == nil || !strings.Contains(err.Error(), "architecture") {
		t.Errorf("an image for arm64 on a type of x86_64: %s (%v)", id, err)
	}
	for instanceType, is := range map[string]struct{ arch, image string }{"t3.small": {"amd64", "ami-2"}, "c7g.large": {"arm64", "ami-arm"}} {
		if id, err := launch(instanceType, is.arch, all); err != nil || id != is.image {
			t.Errorf("%s boots %s (%v), want %s", instanceType, id, err, is.image)
		}
	}
	for what, image := range map[string]map[string]string{
		"for x86_64, and arm64 is wanted": {imageID: "ami-2"},
		"EC2 shows none for arm64":        {imageName: "kip-cell-2"},
	} {
		if _, err := launch("c7g.large", "arm64", image); !errors.Is(err, cloud.ErrUnfit) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v on a type of arm64: %v, want the configuration's fault: %s", image, err, what)
		}
	}
}
