// Package netdump lists what the kernel has of a network, whole. It must not know what
// is listed.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often a list is asked for. It takes far under a millisecond, so that the
// next is hardly ever interrupted too, on a host that makes and removes devices all the time.
const tries = 20

// Whole lists anew where something that changed meanwhile has interrupted the list: it may
// then lack what is there. After some tries it returns netlink.ErrDumpInterrupted.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}
