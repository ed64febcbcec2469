package deviceplugin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/gpus"
)

// Programs of itzo that this package has, by name.
var Programs = map[string]func() int{configs.DevicePlugin: Main}

// modprobeTimeout bounds the load of a kernel module.
const modprobeTimeout = 30 * time.Second

// Main runs the plugin until it is told to end, and returns its exit code.
func Main() int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	flags := flag.NewFlagSet(configs.DevicePlugin, flag.ExitOnError)
	root := flags.String("root", "/", "`folder` in which the machine's root is")
	_ = flags.Parse(os.Args[1:]) // ExitOnError
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "%s takes no arguments: %q\n", configs.DevicePlugin, flags.Args())
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	New(Options{
		Machine: gpus.Machine{Root: *root},
		Dir:     filepath.Join(*root, configs.DevicePluginDir),
		Log:     log,
	}).Run(ctx)
	return 0
}

// loadUVM loads the driver's module that no device asks for, once the driver is there, and
// once: an image that lacks it does so later, too.
func (p *Plugin) loadUVM(ctx context.Context) error {
	if p.triedUVM || !p.o.Machine.HasDriver() || p.o.Machine.HasUVM() {
		return nil
	}
	p.triedUVM = true
	ctx, cancel := context.WithTimeout(ctx, modprobeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "modprobe", "nvidia-uvm").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return nil // a machine without modules of its own
	}
	if err != nil {
		return fmt.Errorf("%w: %.200q", err, out)
	}
	return nil
}
