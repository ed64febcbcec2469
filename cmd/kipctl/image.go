package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/cloud/aws/images"
	"github.com/elotl/kip/internal/version"
)

func imageOf(k *kipctl) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Publish the boot image of cells in an account of AWS",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("say what to do: %q", cmd.CommandPath()+" publish")
		},
	}
	cmd.AddCommand(imagePublish(k))
	return cmd
}

// publication is what "kipctl image publish" is asked for.
type publication struct {
	region, arch, variant, folder, from string
	removeOld                           bool
}

func imagePublish(k *kipctl) *cobra.Command {
	var p publication
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Upload the boot image of cells, and register it as an AMI",
		Long: "Upload the boot image of cells, and register it as an AMI. It takes what make image has made in bin/image, or\n" +
			"kip-cell-ARCH.manifest.json and kip-cell-ARCH.tar.gz of a release in the working folder. If there is neither, the kipctl of a\n" +
			"release fetches its own image from the registry of the releases. An image that the account has already is left as it is. It\n" +
			"uses AWS credentials as AWS's own tools find them; docs/boot-image.md has the rights that it needs.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return k.publish(cmd.Context(), p) },
	}
	flags := cmd.Flags()
	flags.StringVar(&p.region, "region", "", "`region` of the account (default: as AWS's own tools find it)")
	flags.StringVar(&p.arch, "arch", "amd64", "`architecture` of the image: amd64 or arm64")
	flags.StringVar(&p.variant, "variant", "", "`variant` of the image: nvidia, or none")
	flags.StringVar(&p.folder, "image-folder", "", "`folder` of the image (default: bin/image, else the working folder)")
	flags.StringVar(&p.from, "from", "", "`name` of the image in a registry, such as "+bootimages.Name(bootimages.Published, "v1.2.3"))
	flags.BoolVar(&p.removeOld, "remove-old", false, "then remove what was published before, but for images of which there are instances")
	return cmd
}

func (k *kipctl) publish(ctx context.Context, p publication) error {
	image, err := p.find(ctx, k.releases)
	if err != nil {
		return err
	}
	to, err := images.New(ctx, images.Config{
		Region: p.region,
		Say:    func(format string, args ...any) { fmt.Fprintf(k.err, format+"\n", args...) },
		Pause: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-k.waits.After(d):
				return nil
			}
		},
	})
	if err != nil {
		return err
	}
	id, err := to.Publish(ctx, image)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(k.out, id); err != nil || !p.removeOld {
		return err
	}
	return to.RemoveOld(ctx, image.Kind(), id)
}

// find looks for the image: where it is said to be, or where make image and a user's download have it, or in the registry of releases.
func (p publication) find(ctx context.Context, releases string) (images.Image, error) {
	switch {
	case p.from != "" && (p.folder != "" || p.variant != ""):
		return images.Image{}, errors.New("--from is of a registry, which has no variants: leave out --image-folder and --variant")
	case p.from != "":
		return images.InRegistry(ctx, p.from, p.arch)
	case p.folder != "":
		return images.InFolder(p.folder, p.arch, p.variant)
	}
	image, err := images.InFolder("bin/image", p.arch, p.variant)
	if errors.Is(err, fs.ErrNotExist) {
		image, err = images.InFolder(".", p.arch, p.variant)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if p.variant == "" && version.Version != "" { // of a release
		var failed error
		if image, failed = images.InRegistry(ctx, bootimages.Name(releases, version.Version), p.arch); failed == nil {
			return image, nil
		}
		err = errors.Join(err, failed)
	}
	return image, fmt.Errorf("neither bin/image nor this folder has the boot image: want kip-cell-%[1]s.manifest.json and kip-cell-%[1]s.tar.gz of "+
		"a release (docs/releases.md), or its name in a registry (--from), or make image IMAGE_ARCH=%[2]s VARIANT=%[3]s IMAGE_FORMATS=raw: %[4]w",
		images.Image{Arch: p.arch, Variant: p.variant}.Kind(), p.arch, p.variant, err)
}
