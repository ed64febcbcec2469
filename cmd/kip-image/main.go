// Command kip-image builds the boot image of cells, packs the
// agent for other images, builds and pushes the container images of Kip itself, packs a
// release, and pins Debian's packages that the images are made of.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/image/boot"
	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/image/nvidia"
	"github.com/elotl/kip/internal/version"
)

const usage = `usage: kip-image build [flags]      build the image of what the lock pins
       kip-image agent [flags]      pack the agent for a Linux of one's own
       kip-image container [flags]  build the container images of Kip, and push them
       kip-image release [flags]    pack a release of what was built
       kip-image lock [flags]       pin the packages that Debian has now

Flags of each: kip-image build -help
`

const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// commands are those of kip-image, by name.
var commands = map[string]func(context.Context, []string) error{
	"agent":     agent,
	"build":     build,
	"container": containers,
	"lock":      lock,
	"publish":   moved,
	"release":   releases,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err := commands[os.Args[1]](ctx, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// moved names the successor of a command that is gone.
func moved(context.Context, []string) error {
	return errors.New("kip-image publish is kipctl image publish now: bin/kipctl image publish --region REGION --arch amd64 --variant nvidia, " +
		"with AWS_ENDPOINT_URL in place of -endpoint")
}

// parse reads flags, and refuses what is none: behind it flags would be left out.
func parse(flags *flag.FlagSet, args []string) error {
	_ = flags.Parse(args) // ExitOnError
	if flags.NArg() > 0 {
		return fmt.Errorf("%s takes no arguments: %q; want -flag=value", flags.Name(), flags.Args())
	}
	return nil
}

func build(ctx context.Context, args []string) error {
	o := boot.Options{Version: version.String(), Progress: func(step string) { fmt.Fprintln(os.Stderr, step) }}
	flags := flag.NewFlagSet("kip-image build", flag.ExitOnError)
	flags.StringVar(&o.Arch, "arch", runtime.GOARCH, "`architecture` of the image: amd64 or arm64")
	flags.StringVar(&o.Variant, "variant", "", "`variant` of the image: nvidia, which has NVIDIA's driver, or none")
	flags.StringVar(&o.Programs, "programs", "bin", "`folder` with Kip's programs for that architecture")
	flags.StringVar(&o.Out, "out", "bin/image", "`folder` of the image")
	from := packageFlags(flags)
	formats := flags.String("formats", strings.Join(boot.Formats(), ","), "`forms` of the image, with commas between them")
	if err := parse(flags, args); err != nil {
		return err
	}
	o.Mirrors, o.Cache = from.mirrors, from.cache
	o.Formats = strings.FieldsFunc(*formats, func(r rune) bool { return r == ',' })
	var err error
	if o.Lock, err = debian.Pinned(); err != nil {
		return err
	}
	if o.VariantLock, err = debian.PinnedNVIDIA(); err != nil {
		return err
	}
	if err := from.check(); err != nil {
		return err
	}
	m, err := boot.Build(ctx, o)
	if from.takeNewest(err) {
		o.Lock, err = debian.Resolve(ctx, from.mirrors, from.keyring, boot.Packages, o.Arch)
		if err == nil && o.Variant != "" {
			o.VariantLock, err = debian.Resolve(ctx, from.mirrors, from.keyring, nvidia.Packages(), o.Arch)
		}
		if err == nil {
			m, err = boot.Build(ctx, o)
		}
	}
	if err != nil {
		return err
	}
	for _, out := range m.Outputs {
		fmt.Printf("%s/%s: %d MB, %d MB of them used, sha256 %s\n", o.Out, out.Name, out.Bytes/1e6, out.UsedBytes/1e6, out.SHA256)
	}
	return nil
}

func agent(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("kip-image agent", flag.ExitOnError)
	arch := flags.String("arch", runtime.GOARCH, "`architecture` of the agent: amd64 or arm64")
	programs := flags.String("programs", "bin", "`folder` with Kip's programs for that architecture")
	out := flags.String("out", "bin/image", "`folder` of the archive")
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	file := filepath.Join(*out, "kip-agent-"+*arch+".tar.gz")
	f, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(image.AgentArchive(f, *programs, *arch), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	fmt.Println(file)
	return os.Rename(f.Name(), file)
}

func lock(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("kip-image lock", flag.ExitOnError)
	file := flags.String("file", "image/debian/packages.lock", "`file` to write")
	fileNVIDIA := flags.String("nvidia-file", "image/debian/nvidia.lock", "`file` to write of what images with NVIDIA's driver have besides")
	mirrors := mirrorFlags(flags)
	keyring := flags.String("keyring", debianKeys,
		"`file` with Debian's keys (package debian-archive-keyring)")
	if err := parse(flags, args); err != nil {
		return err
	}
	l, err := debian.Resolve(ctx, mirrors, *keyring, boot.Packages, "amd64", "arm64")
	if err != nil {
		return err
	}
	besides, err := debian.Resolve(ctx, mirrors, *keyring, nvidia.Packages(), nvidia.Arch)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(*file, []byte(l.String()), 0o644), os.WriteFile(*fileNVIDIA, []byte(besides.String()), 0o644))
}

// packages say where Debian's packages come from.
type packages struct {
	mirrors              debian.Mirrors
	cache, keyring, gone string
}

// packageFlags adds the flags that say it.
func packageFlags(flags *flag.FlagSet) *packages {
	p := &packages{mirrors: mirrorFlags(flags)}
	flags.StringVar(&p.cache, "cache", ".kip/debs", "`folder` where fetched packages are kept")
	flags.StringVar(&p.keyring, "keyring", debianKeys, "`file` with Debian's keys (package debian-archive-keyring), for -gone=newest")
	flags.StringVar(&p.gone, "gone", "fail", "what happens where the mirror has a pinned version no more: `fail or newest`, "+
		"which builds the image of Debian's newest versions")
	return p
}

func (p *packages) check() error {
	if p.gone != "fail" && p.gone != "newest" {
		return fmt.Errorf("-gone=%s: want fail or newest", p.gone)
	}
	return nil
}

// takeNewest reports whether a build that failed is to be done again, of Debian's newest versions.
func (p *packages) takeNewest(err error) bool {
	if p.gone != "newest" || !errors.Is(err, debian.ErrGone) {
		return false
	}
	fmt.Fprintf(os.Stderr, "%v\nThe image is built of Debian's newest versions, not of those of the lock.\n", err)
	return true
}

// mirrorFlags adds those that name mirrors of Debian's archives, which they set.
func mirrorFlags(flags *flag.FlagSet) debian.Mirrors {
	m := debian.DefaultMirrors()
	add := func(name, archive, usage string) {
		flags.Func(name, usage+" (default "+m[archive]+")", func(url string) error {
			m[archive] = strings.TrimSuffix(url, "/")
			return nil
		})
	}
	add("mirror", debian.Release, "`URL` of a mirror of Debian's packages")
	add("security-mirror", debian.Security, "`URL` of a mirror of Debian's security updates")
	return m
}
