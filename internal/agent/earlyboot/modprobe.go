package earlyboot

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/elotl/kip/internal/agent/modules"
)

// Modprobe loads the modules that its arguments name and returns an exit code. The
// kernel calls it where it wants one of its own modules, and so do a few programs; of
// their options none changes what is loaded.
func Modprobe(args []string) int {
	dir, err := modules.Dir()
	if err == nil {
		var set *modules.Set
		if set, err = modules.Open(dir); err == nil {
			err = load(set.Load, args)
		}
	}
	if err != nil {
		if !errors.Is(err, modules.ErrUnknown) {
			fmt.Fprintln(os.Stderr, "modprobe:", err)
		}
		return 1
	}
	return 0
}

func load(one func(string) error, args []string) error {
	var errs []error
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			errs = append(errs, one(a))
		}
	}
	return errors.Join(errs...)
}
