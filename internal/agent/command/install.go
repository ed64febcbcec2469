package command

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/installation"
)

// systemdRuns is there where systemd is the init that runs.
const systemdRuns = "/run/systemd/system"

// install puts the agent into a Linux with systemd. whole says that this build is the
// kubelet and containerd as well.
func install(whole bool) int {
	o := installation.Options{Whole: whole, Say: say}
	flags := flag.NewFlagSet("itzo install", flag.ExitOnError)
	flags.StringVar(&o.Root, "root", "/", "`folder` of the Linux: that of an image, to be installed without running it")
	flags.StringVar(&o.From, "from", "", "`folder` with the agent's files (default: that of this program)")
	flags.StringVar(&o.UserData, "user-data", fromCloud, "where the agent has its user data from: "+fromCloud+", "+fromEC2+" or a `file`")
	check := flags.Bool("check", false, "only say what the Linux lacks")
	if err := begin(&o, flags); err != nil {
		return failed("install", err)
	}
	do := o.Install
	if *check {
		do = o.Check
	}
	found, err := do()
	for _, f := range found {
		kind := "note"
		if f.Required {
			kind = "LACKS"
		}
		fmt.Printf("%s: %s\n", kind, f)
	}
	if err != nil {
		return failed("install", err)
	}
	if !*check {
		fmt.Println("The agent is installed. It starts when the machine boots; at once: systemctl start itzo")
	}
	return 0
}

// uninstall takes back what install did.
func uninstall() int {
	o := installation.Options{Say: say}
	flags := flag.NewFlagSet("itzo uninstall", flag.ExitOnError)
	flags.StringVar(&o.Root, "root", "/", "`folder` of the Linux")
	err := begin(&o, flags)
	if err == nil {
		err = o.Uninstall()
	}
	if err != nil {
		return failed("uninstall", err)
	}
	return 0
}

// begin reads the flags, and finds what else there is to know of the Linux.
func begin(o *installation.Options, flags *flag.FlagSet) error {
	_ = flags.Parse(os.Args[1:]) // ExitOnError
	if flags.NArg() > 0 {
		return fmt.Errorf("it takes no arguments: %q", flags.Args())
	}
	if o.From == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find itzo's own executable: %w", err)
		}
		o.From = filepath.Dir(self)
	}
	var err error
	if o.Root, err = filepath.Abs(o.Root); err != nil || o.Root != "/" {
		return err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("ask for the kernel's version: %w", err)
	}
	o.Kernel = unix.ByteSliceToString(u.Release[:])
	if _, err := os.Stat(systemdRuns); err == nil {
		o.Systemctl = systemctl
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func systemctl(args ...string) error {
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func failed(what string, err error) int {
	fmt.Fprintf(os.Stderr, "itzo %s: %v\n", what, err)
	return 1
}
