package local

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestAGuestAndTheOwnerOfABridgeLeaveEachOtherAlone(t *testing.T) {
	cfg := testHost(t)
	ctx := context.Background()
	guest := cfg
	guest.StateDir, guest.Group = filepath.Join(filepath.Dir(cfg.StateDir), "guest"), cfg.Bridge+"-guest"
	if _, err := New(guest); err == nil || !strings.Contains(err.Error(), "bridge "+cfg.Bridge) {
		t.Fatalf("a guest without a bridge: %v", err)
	}
	owner := open(t, cfg)
	theirs := launch(t, owner, request("a"))

	other := open(t, guest)
	t.Cleanup(func() {
		_ = other.Close()
		if err := Destroy(ctx, guest); err != nil {
			t.Error(err)
		}
	})
	mine := launch(t, other, request("a"))
	if want, err := guest.GuestAddress(0); err != nil || mine.ManagementIP != want {
		t.Errorf("the guest's machine has %s, want %s (%v)", mine.ManagementIP, want, err)
	}
	if got := list(t, owner); len(got) != 1 || got[0] != theirs.ID {
		t.Errorf("the owner lists %v, want %s", got, theirs.ID)
	}
	run(t, mine.ManagementIP, "true") // it is up
	ask := fmt.Sprintf("wget -qO- --post-data=hostname http://%s:8080/cgi-bin/run | grep ^i-", mine.ManagementIP)
	if got := run(t, theirs.ManagementIP, ask); got != mine.ID {
		t.Errorf("from the owner's machine to the guest's: %q", got)
	}

	// A new start of the owner, which removes machines that it does not know.
	_ = owner.Close()
	open(t, cfg)
	if got := run(t, mine.ManagementIP, "hostname"); got != mine.ID {
		t.Errorf("after a new start of the owner the guest's machine says %q", got)
	}

	_ = other.Close()
	if err := Destroy(ctx, guest); err != nil {
		t.Fatal(err)
	}
	if left, err := Leftovers(ctx, guest); err != nil || len(left) > 0 {
		t.Errorf("left of the guest: %q, %v", left, err)
	}
	if _, err := netlink.LinkByName(cfg.Bridge); err != nil {
		t.Errorf("the bridge went with the guest: %v", err)
	}
	if got := run(t, theirs.ManagementIP, "hostname"); got != theirs.ID {
		t.Errorf("after the guest's end the owner's machine says %q", got)
	}
}
