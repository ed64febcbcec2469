package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/elotl/kip/internal/cloud/aws/images"
)

// publish uploads an image that was built, and registers it.
func publish(ctx context.Context, args []string) error {
	cfg := images.Config{Say: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	flags := flag.NewFlagSet("kip-image publish", flag.ExitOnError)
	cloud := flags.String("cloud", "", "`cloud` to publish in: aws")
	flags.StringVar(&cfg.Region, "region", "", "`region` of the cloud (default: as its own tools find it)")
	flags.StringVar(&cfg.Endpoint, "endpoint", "", "`URL` of another API than the cloud's own")
	dir := flags.String("image", "bin/image", "`folder` of the image, with its form raw")
	arch := flags.String("arch", runtime.GOARCH, "`architecture` of the image: amd64 or arm64")
	variant := flags.String("variant", "", "`variant` of the image: nvidia, or none")
	removeOld := flags.Bool("remove-old", false, "then remove what was published before, but for images of which there are instances")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *cloud != "aws" {
		return fmt.Errorf("-cloud=%s: want aws", *cloud)
	}
	image, err := images.InFolder(*dir, *arch, *variant)
	if err != nil {
		return err
	}
	p, err := images.New(ctx, cfg)
	if err != nil {
		return err
	}
	id, err := p.Publish(ctx, image)
	if err != nil {
		return err
	}
	fmt.Println(id)
	if *removeOld {
		return p.RemoveOld(ctx, image.Kind(), id)
	}
	return nil
}
