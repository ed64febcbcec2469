package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/elotl/kip/image/container"
	"github.com/elotl/kip/image/release"
	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/version"
)

// releases packs a release of what make has built.
func releases(ctx context.Context, args []string) error {
	o := release.Options{
		Version:  version.String(),
		Host:     release.System(runtime.GOOS + "-" + runtime.GOARCH),
		Progress: func(step string) { fmt.Fprintln(os.Stderr, step) },
	}
	flags := flag.NewFlagSet("kip-image release", flag.ExitOnError)
	flags.StringVar(&o.Bin, "bin", "bin", "`folder` that make builds into")
	flags.StringVar(&o.Source, "source", ".", "`folder` with Kip's sources: license, chart and manifests")
	flags.StringVar(&o.Out, "out", "bin/release", "`folder` of the release")
	systems := flags.String("systems", "", "`systems` of kipctl, such as linux-amd64, with commas or spaces between them")
	programs := flags.String("programs", "", "`programs` that make run needs, with commas or spaces between them")
	flags.StringVar(&o.Registry, "registry", bootimages.Published, "`name` of the registry in chart and manifests: their image is NAME/kip")
	flags.StringVar(&o.URL, "url", "https://github.com/elotl/kip/releases/download/"+o.Version, "`URL` of the folder that has the files")
	if err := parse(flags, args); err != nil {
		return err
	}
	for _, s := range words(*systems) {
		o.Systems = append(o.Systems, release.System(s))
	}
	o.HostPrograms = words(*programs)
	_, err := container.Name(o.Registry, o.Version)
	if err != nil {
		return err
	}
	if o.Created, err = created(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		return err
	}
	files, err := release.Build(ctx, o)
	if err != nil {
		return err
	}
	for _, f := range files {
		fmt.Println(filepath.Join(o.Out, f))
	}
	return nil
}

// words are what a flag lists.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
