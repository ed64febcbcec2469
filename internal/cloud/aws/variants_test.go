package aws

import (
	"errors"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws/images"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestAMachineWithGPUsBootsTheImageThatDrivesThem(t *testing.T) {
	if tagKipImage != images.TagArch || tagKipImageGPUs != images.TagGPUs {
		t.Errorf("%s and %s are read, and %s and %s are published", tagKipImage, tagKipImageGPUs, images.TagArch, images.TagGPUs)
	}
	driver := images.Image{Arch: "amd64", Variant: "nvidia"}
	one := func(id, created string, tags map[string]string) ec2.Image {
		return ec2.Image{ID: id, Name: "kip-cell-" + id, Owner: "self", Created: created, RootDevice: "/dev/xvda", GiB: 1, Tags: tags}
	}
	const early, late = "2026-01-01T00:00:00.000Z", "2026-02-01T00:00:00.000Z"
	kips := map[string]string{images.TagArch: "amd64"}
	drives := func(models string) map[string]string {
		return map[string]string{images.TagArch: driver.Kind(), images.TagGPUs: models}
	}
	plainLate := []ec2.Image{one("ami-plain", late, kips), one("ami-driver", early, drives("T4 A10G"))}
	driverLate := []ec2.Image{one("ami-plain", early, kips), one("ami-driver", late, drives("T4 A10G"))}
	for _, tc := range []struct {
		name, instanceType string
		devices            bool
		images             []ec2.Image
		want               string // the image, or what the error says
		cause              error
	}{
		{name: "a pod without GPUs", instanceType: "c5.large", images: driverLate, want: "ami-plain"},
		{name: "a pod with GPUs", instanceType: "g5.xlarge", devices: true, images: plainLate, want: "ami-driver"},
		{name: "a standby cell with GPUs, which has no pod yet", instanceType: "g5.xlarge", images: plainLate, want: "ami-driver"},
		{name: "a pod without GPUs, and no other image", instanceType: "c5.large", images: driverLate[1:], want: "ami-driver"},
		{
			name: "an image of one's own, which is newer", instanceType: "g5.xlarge", devices: true,
			images: []ec2.Image{one("ami-own", late, nil), plainLate[1]}, want: "ami-own",
		},
		{
			name: "no image with a driver", instanceType: "g5.xlarge", devices: true, images: plainLate[:1],
			want: "run make image VARIANT=nvidia", cause: cloud.ErrUnfit,
		},
		{
			name: "a driver that does not drive them", instanceType: "g5.xlarge", devices: true,
			images: []ec2.Image{one("ami-driver", late, drives("T4 L4"))}, want: "of the models T4, L4, and g5.xlarge has A10G: want another type",
			cause: cloud.ErrRefused,
		},
		{
			name: "a part of a GPU", instanceType: "g6f.large", devices: true,
			images: []ec2.Image{one("ami-driver", late, drives("L4"))}, want: "g6f.large has a part of one", cause: cloud.ErrRefused,
		},
		{
			name: "other accelerators", instanceType: "c5.large", devices: true, images: plainLate,
			want: "has no driver of the accelerators of c5.large", cause: cloud.ErrUnfit,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			account := anAccount(sim.Knobs{})
			account.Images = tc.images
			account.Sim.Catalogue = append(account.Sim.Catalogue, catalog.InstanceType{
				Name: "g6f.large", MilliCPU: 2000, MemoryBytes: 8 * gibi, Arch: "amd64", GPUs: []catalog.GPU{{Model: "L4", Count: 1}},
				Offerings: account.Sim.Catalogue[0].Offerings,
			})
			_, url := serve(t, account)
			c := open(t, settings(url))
			if _, err := c.Catalogue(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := request("t", 1).LaunchSpec
			s.InstanceType, s.Devices = tc.instanceType, tc.devices
			got, err := c.Resolve(t.Context(), s)
			switch {
			case tc.cause == nil && (err != nil || got.Image != tc.want):
				t.Errorf("it boots %q: %v; want %s", got.Image, err, tc.want)
			case tc.cause != nil && (!errors.Is(err, tc.cause) || !strings.Contains(err.Error(), tc.want) ||
				cloud.ScopeOf(err) != cloud.Scope{InstanceType: tc.instanceType}):
				t.Errorf("it boots %q: %v, about %+v; want %q", got.Image, err, cloud.ScopeOf(err), tc.want)
			}
		})
	}
}

// One answer of EC2 is not taken for both kinds of machines.
func TestEachKindOfMachineHasItsImageInOneProcess(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Images = []ec2.Image{
		{ID: "ami-plain", Name: "kip-cell-1", Owner: "self", Created: "2026-01-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 1,
			Tags: map[string]string{images.TagArch: "amd64"}},
		{ID: "ami-driver", Name: "kip-cell-2", Owner: "self", Created: "2026-01-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 1,
			Tags: map[string]string{images.TagArch: "amd64-nvidia", images.TagGPUs: "A10G"}},
	}
	_, url := serve(t, account)
	c := open(t, settings(url))
	if _, err := c.Catalogue(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for instanceType, want := range map[string]string{"c5.large": "ami-plain", "g5.xlarge": "ami-driver"} {
			s := request("t", 1).LaunchSpec
			s.InstanceType, s.Devices = instanceType, want == "ami-driver"
			if got, err := c.Resolve(t.Context(), s); err != nil || got.Image != want {
				t.Errorf("%s boots %q: %v; want %s", instanceType, got.Image, err, want)
			}
		}
	}
}
