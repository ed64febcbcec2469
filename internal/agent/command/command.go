// Package command is itzo's command line: which of its programs an invocation
// means, by the name that it was called by or by its first argument. The
// programs are elsewhere.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent"
	"github.com/elotl/kip/internal/agent/cgroups"
	"github.com/elotl/kip/internal/agent/cloudinit"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/disks"
	"github.com/elotl/kip/internal/agent/imageplugin"
	"github.com/elotl/kip/internal/agent/machine"
	"github.com/elotl/kip/internal/agent/network"
	"github.com/elotl/kip/internal/agent/shim"
	"github.com/elotl/kip/internal/agent/supervise"
	"github.com/elotl/kip/internal/agent/upgrade"
	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/version"
)

// SystemCgroup is where a machine's own parts run, beside /kubepods.
const SystemCgroup = "system"

// Files beside a small itzo: what holds the kubelet, and what holds containerd
// without it.
const (
	componentsName = "itzo-components"
	containerdName = "itzo-containerd"
)

// Where user data comes from on a machine that does not boot Kip's image: from whatever it
// has first of what the image asks; or from EC2's metadata service, which a machine that is
// launched like EC2's has without its firmware saying so.
const (
	fromCloud = "cloud"
	fromEC2   = "ec2"
)

// shimProgram is the name by which containerd looks for the shim.
const shimProgram = "containerd-shim-runc-v2"

// programs that every itzo has. Each reads os.Args and returns an exit code.
var programs = map[string]func() int{
	"cell":            cell,
	"boot":            boot,
	"poweroff":        machine.PowerOff,
	"reboot":          machine.PowerOff, // a cell has one life
	"uninstall":       uninstall,
	"version":         printVersion,
	shimProgram:       shim.Run,
	configs.CNIPlugin: network.Plugin,

	configs.ImagePlugin:  imageplugin.Run,
	disks.LosetupProgram: disks.Losetup,
}

// Main runs one of itzo's programs and returns its exit code. components are
// those that this build has beside the agent's own.
func Main(components map[string]func() int) int {
	all := maps.Clone(programs)
	maps.Copy(all, components)
	all["install"] = func() int { return install(components["kubelet"] != nil) }
	program, args := choose(os.Args, all)
	if program == "" {
		names := slices.Sorted(maps.Keys(all))
		fmt.Fprintf(os.Stderr, "usage: itzo PROGRAM [ARGUMENT…]\n\nPrograms, each with a command line of its own (--help):\n  %s\n",
			strings.Join(names, "\n  "))
		return 2
	}
	os.Args = args
	return all[program]()
}

// choose returns which program a command line means, "" for none, and the
// command line as that program wants it.
func choose(args []string, all map[string]func() int) (program string, rest []string) {
	if name := filepath.Base(args[0]); all[name] != nil {
		return name, args
	}
	if len(args) < 2 {
		return "", args
	}
	if strings.HasPrefix(args[1], "-namespace") {
		// The shim starts itself again by the path of its executable, where a
		// link's name is lost, with this as its first argument.
		return shimProgram, args
	}
	if all[args[1]] != nil {
		return args[1], args[1:]
	}
	return "", args
}

// beside returns the file of this name beside itzo, or other if there is none.
func beside(itzo, name, other string) string {
	path := filepath.Join(filepath.Dir(itzo), name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return other
	}
	return path
}

func printVersion() int {
	fmt.Println(version.String())
	return 0
}

// cell runs the agent.
func cell() int {
	// The agent is small and idle: a tight heap costs it nothing.
	debug.SetGCPercent(25)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	becomeKept(log)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := runCell(ctx, log, agentapi.Boot{}); err != nil {
		log.Error("itzo ends", "err", err)
		return 1
	}
	return 0
}

// boot runs a machine, with the agent in the same process.
func boot() int {
	out := console.Output()
	log := slog.New(slog.NewTextHandler(out, nil))
	if os.Getpid() == 1 {
		becomeKept(log)
	}
	return machine.Main(out, func(ctx context.Context, boot agentapi.Boot) error {
		debug.SetGCPercent(25)
		return runCell(ctx, log, boot)
	})
}

// becomeKept lets the agent take over that this machine has gone over to before, and returns
// where there is none.
func becomeKept(log *slog.Logger) {
	self, err := os.Executable()
	if err != nil {
		log.Error("look for another agent", "err", err)
		return
	}
	program, err := upgrade.Kept(agent.UpgradeDir(agent.StateDir), self)
	if program != "" {
		log.Info("going over to the agent that was fetched before", "program", program)
		components := beside(self, componentsName, self)
		err = become(program, components, beside(self, containerdName, components))
	}
	if err != nil {
		// Kip says again which agent it wants.
		log.Error("go over to the agent that was fetched before", "err", err)
	}
}

// become lets another agent take the place of this process, with the kubelet and containerd
// that this one has. It returns only where that cannot be.
func become(program, components, containerd string) error {
	return fmt.Errorf("start %s: %w", program, unix.Exec(program, handedOn(os.Args, components, containerd), os.Environ()))
}

// handedOn is the command line of an agent that takes over, by that of the one before. What
// that one was told of the kubelet and containerd comes last, and so counts.
func handedOn(args []string, components, containerd string) []string {
	return slices.Concat([]string{"itzo", filepath.Base(args[0]), "--components=" + components, "--containerd=" + containerd}, args[1:])
}

// metadataOf is the URL of EC2's metadata service, for a machine of EC2's. One that has no kernel
// of its own, and was not told to look, may be a cell on a host that is EC2's.
func metadataOf(o agent.Options) (string, error) {
	switch {
	case o.UserData == fromEC2:
		return userdata.Metadata, nil // whatever the firmware says
	case o.UserData != fromCloud && o.Boot == (agentapi.Boot{}):
		return "", nil
	}
	url, err := userdata.OnEC2()
	if err != nil {
		return "", fmt.Errorf("find out whether this machine is EC2's: %w", err)
	}
	return url, nil
}

// takenFile says that this boot of the machine has taken its user data.
const takenFile = "user-data-taken"

// takeUserData leaves the machine's user data in a file, once a boot: an agent that starts again
// goes on with what the one before was told. By then a pod may be here, for whose sake the firewall
// keeps all from the metadata service, or who has made a disk that looks like a source.
func takeUserData(ctx context.Context, source userdata.Source, file, taken string) error {
	_, err := os.Stat(taken)
	if err == nil {
		_, err = os.Stat(file)
	}
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data, err := source.Get(ctx)
	if err != nil {
		return err
	}
	if err := cloudinit.Leave(file, data.Document, data.Place); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(taken), 0o755); err != nil {
		return fmt.Errorf("note that the user data is taken: %w", err)
	}
	return cloudinit.Replace(taken, nil, 0o400)
}

// logBytes bounds the file with the agent's log; it and one before it are kept.
const logBytes = 4 << 20

// kept returns a log that is in a file of the machine, too: an operator reads it there, also where nobody sees the console.
func kept(log *slog.Logger) (both *slog.Logger, closeLog func()) {
	err := os.MkdirAll(agent.LogDir, 0o755)
	var file *supervise.LogFile
	if err == nil {
		file, err = supervise.OpenLog(filepath.Join(agent.LogDir, agent.LogName), logBytes)
	}
	if err != nil {
		log.Warn("keep the agent's log in a file", "err", err)
		return log, func() {}
	}
	return slog.New(slog.NewMultiHandler(log.Handler(), slog.NewTextHandler(file, nil))), func() { _ = file.Close() }
}

// runCell runs the agent of a machine that came to it so.
func runCell(ctx context.Context, log *slog.Logger, boot agentapi.Boot) error {
	log, closeLog := kept(log)
	defer closeLog()
	o := agent.Options{
		Log:     log,
		Version: version.String(),
		Init:    os.Getpid() == 1,
		Boot:    boot,
	}
	flags := flag.NewFlagSet("itzo cell", flag.ExitOnError)
	flags.StringVar(&o.UserData, "user-data", cloudinit.SeedFile,
		"`file` with the machine's user data; or "+fromCloud+": what the machine has of it is asked first, as by Kip's image; or "+
			fromEC2+": EC2's metadata service is")
	flags.StringVar(&o.Listen, "listen", "", "`address` where Kip finds the agent (default: port 6421 of all addresses)")
	flags.StringVar(&o.Components, "components", "", "`executable` that is the kubelet (default: "+componentsName+" beside itzo, else itzo)")
	flags.StringVar(&o.Containerd, "containerd", "",
		"`executable` that is containerd (default: "+containerdName+" beside itzo, else that of the kubelet)")
	_ = flags.Parse(os.Args[1:]) // ExitOnError
	if flags.NArg() > 0 {
		return fmt.Errorf("itzo cell takes no arguments: %q", flags.Args())
	}
	var err error
	if o.Metadata, err = metadataOf(o); err != nil {
		return err
	}
	if o.UserData == fromEC2 || o.UserData == fromCloud {
		source := userdata.EC2()
		if o.UserData == fromCloud {
			if source, err = userdata.Choose(ctx, userdata.Sources()); err != nil {
				return err
			}
		}
		o.UserData = cloudinit.SeedFile
		if err := takeUserData(ctx, source, o.UserData, filepath.Join(agent.RunDir, takenFile)); err != nil {
			return err
		}
	}
	if o.Self, err = os.Executable(); err != nil {
		return fmt.Errorf("find itzo's own executable: %w", err)
	}
	if o.Components == "" {
		o.Components = beside(o.Self, componentsName, o.Self)
	}
	if o.Containerd == "" {
		o.Containerd = beside(o.Self, containerdName, o.Components)
	}
	if o.Init {
		if err := machine.RaiseLimits(); err != nil {
			log.Warn("give pods the limits that they have on other nodes", "err", err)
		}
		if err := cgroups.Enter(SystemCgroup); err != nil {
			// Accounting is the poorer for it; the cell works.
			log.Warn("separate the machine's own parts from pods", "err", err)
		}
	}
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	err = a.Run(ctx)
	if next, is := errors.AsType[*agent.ReplacedError](err); is {
		return become(next.Program, o.Components, o.Containerd)
	}
	return err
}
