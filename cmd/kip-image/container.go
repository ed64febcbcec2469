package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/elotl/kip/image/container"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/version"
)

// containers builds the images of Kip itself, and pushes them if a registry is given.
func containers(ctx context.Context, args []string) error {
	o := container.Options{Version: version.String(), Progress: func(step string) { fmt.Fprintln(os.Stderr, step) }}
	flags := flag.NewFlagSet("kip-image container", flag.ExitOnError)
	archs := flags.String("archs", "amd64,arm64", "`architectures` of the images, with commas or spaces between them")
	flags.StringVar(&o.Programs, "programs", "bin", "`folder` with a folder of Kip's programs for each architecture, such as linux-arm64")
	flags.StringVar(&o.Revision, "revision", "", "`commit` that the programs are built from")
	from := packageFlags(flags)
	out := flags.String("out", "bin/images", "`folder` of the images")
	registry := flags.String("registry", "", "`name` of a registry, perhaps with a path, such as ghcr.io/team: "+
		"push the images as ghcr.io/team/kip")
	tag := flags.String("tag", o.Version, "`tag` of the images")
	boot := flags.String("boot", "bin/image", "`folder` of boot images: push those of this version, too, as ghcr.io/team/kip-cell")
	if err := parse(flags, args); err != nil {
		return err
	}
	o.Mirrors, o.Cache = from.mirrors, from.cache
	o.Archs = words(*archs)
	ref, err := container.Name(cmp.Or(*registry, bootimages.Published), *tag)
	if err := errors.Join(err, from.check()); err != nil {
		return err
	}
	if o.Created, err = created(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	if o.Lock, err = debian.Pinned(); err != nil {
		return err
	}
	set, err := container.Build(ctx, o)
	if from.takeNewest(err) {
		if o.Lock, err = debian.Resolve(ctx, from.mirrors, from.keyring, container.Packages, o.Archs...); err == nil {
			set, err = container.Build(ctx, o)
		}
	}
	if err != nil {
		return err
	}
	written, err := set.Write(*out, ref)
	if err != nil {
		return err
	}
	digest, err := set.Index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s@%s\n", strings.Join(written, "\n"), ref, digest)
	if *registry == "" {
		return nil
	}
	if err := set.Push(ctx, ref, authn.DefaultKeychain, o.Progress); err != nil {
		return err
	}
	fmt.Printf("pushed %s@%s\n", ref, digest)
	return pushBootImages(ctx, *boot, o, bootimages.Name(strings.TrimSuffix(*registry, "/"), *tag))
}

// pushBootImages pushes the boot images in a folder that are of the same version as the images of Kip.
func pushBootImages(ctx context.Context, folder string, o container.Options, to string) error {
	archs, left, err := bootimages.In(folder, o.Archs, o.Version)
	if err != nil {
		return err
	}
	for _, why := range left {
		o.Progress("not pushed: " + why)
	}
	if len(archs) == 0 {
		return nil
	}
	tag, err := name.NewTag(to)
	if err != nil {
		return err
	}
	index, err := bootimages.Pack(folder, archs)
	if err != nil {
		return err
	}
	if err := container.PushBootImages(ctx, index, tag, authn.DefaultKeychain, o.Progress); err != nil {
		return err
	}
	fmt.Printf("pushed %s for %s\n", tag, strings.Join(archs, " and "))
	return nil
}

// created is the time that SOURCE_DATE_EPOCH gives: https://reproducible-builds.org/specs/source-date-epoch/
func created(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Unix(0, 0), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("the variable SOURCE_DATE_EPOCH is %q: want seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0), nil
}
