package netdump_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/elotl/kip/internal/netdump"
)

func TestAListThatIsInterruptedIsAskedForAgain(t *testing.T) {
	interrupted, other := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted), errors.New("no permission")
	for what, c := range map[string]struct {
		before int // how many lists are interrupted
		then   error
		want   error
		asked  int
	}{
		"whole at once":      {asked: 1},
		"interrupted thrice": {before: 3, asked: 4},
		"always interrupted": {before: 1000, want: netlink.ErrDumpInterrupted, asked: 20},
		"another error":      {before: 1, then: other, want: other, asked: 2},
	} {
		asked := 0
		all, err := netdump.Whole(func() ([]int, error) {
			if asked++; asked <= c.before {
				return []int{1}, interrupted
			}
			return []int{1, 2}, c.then
		})
		if !errors.Is(err, c.want) || asked != c.asked || err == nil && len(all) != 2 {
			t.Errorf("%s: %v, %v after %d lists: want %v after %d", what, all, err, asked, c.want, c.asked)
		}
	}
}
