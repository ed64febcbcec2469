package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// Kind makes one kind of machine. It keeps no records and decides nothing: Cloud
// does, and calls it again after a kill at any step. It is safe for concurrent use.
type Kind interface {
	// Name is the key of its cloud in provider.yaml.
	Name() string

	// Logs are the files in a machine's folder, besides its console, that who is root in it can
	// make grow. They are appended to, and cut as the console is.
	Logs() []string

	// Start boots a machine and returns a hold on its process once it runs. It
	// calls b.Identify as soon as there is a process, before that does anything
	// which would outlive it. After an error no process runs, but other traces
	// may be there.
	Start(ctx context.Context, b *Boot) (*Handle, error)

	// Kill ends a machine as when its power is cut. What runs of it ends soon.
	Kill(id string, p *Handle) error

	// Clear ends what may still run of a machine whose process has ended, and
	// removes what held it, but not its folder. It needs nothing but the ID and is
	// repeated until it succeeds.
	Clear(ctx context.Context, id string) error

	// ClearAll removes what is left when every machine has been cleared.
	ClearAll() error

	// AttachDisk makes a disk a device of a machine that runs, DetachDisk undoes
	// that. Both are idempotent. DetachDisk also frees the disk of a machine that is
	// gone, or was never known, for which p is unset. It fails with cloud.ErrInUse
	// while somebody uses the disk.
	AttachDisk(ctx context.Context, p Process, d Disk) error
	DetachDisk(ctx context.Context, p Process, d Disk) error

	// GrowDisk lets a machine that has a disk see how many bytes its file has now. It
	// is idempotent; a machine that is gone sees nothing.
	GrowDisk(ctx context.Context, p Process, d Disk, bytes int64) error

	// Traces are the IDs of machines of which something is on the host besides
	// their folders. Other names may be among them.
	Traces() []string

	// Inspect tells what this kind of machine has on the host, in words, and which
	// processes run.
	Inspect() (found []string, pids []int, err error)
}

// Shutter is a Kind whose machines lose what they have not written to their disks when
// they are killed, so that a stop is to let them end by themselves.
type Shutter interface {
	// Shut asks a machine to end, as by its power button, and returns once it has been
	// asked. It is repeated, also after an error. When the machine has not ended after ShutLimit,
	// Kill follows.
	Shut(ctx context.Context, id string, p Process) error
	ShutLimit() time.Duration
}

// Disk is a disk that outlives machines.
type Disk struct {
	ID   string
	File string // holds its data; the folder is the disk's own
}

// Boot is one start of a machine.
type Boot struct {
	ID      string
	Type    catalog.InstanceType
	Dir     string // the machine's folder; it holds its record
	Console string // the file that the machine's console is written to
	// Address and Gateway are of the machine's network device. Those of IPv6 are
	// the zero values without it.
	Address, AddressIPv6 netip.Prefix
	Gateway, GatewayIPv6 netip.Addr
	// Again says that the machine was stopped: its folder is as it left it.
	Again bool
	// UserData is to be shown to the machine unchanged; nil Again.
	UserData []byte

	cloud *Cloud
	rec   *record
}

// DiskImage is the file in a machine's folder that holds its own disk, if it has
// one. A stop waits until no loop device has it.
const DiskImage = "disk.img"

// Identify records a process, which the caller has started, as the machine's. It is
// the machine's end when the process ends. ErrGone when it has ended already.
func (b *Boot) Identify(pid int) (_ *Handle, err error) {
	if b.rec.Process, err = identify(pid); err != nil {
		return nil, err
	}
	if err := b.rec.write(b.Dir); err != nil {
		return nil, fmt.Errorf("record the machine's process: %w", err)
	}
	b.cloud.cfg.Reached("identified")
	h, err := b.rec.Process.Open()
	if err == nil {
		h.child = true
	}
	return h, err
}

// Plug makes the machine's network cable: one end on the bridge, the other
// appearing as eth0 in the network namespace of the process.
func (b *Boot) Plug(pid int) error {
	return plug(b.cloud.cfg, b.cloud.bridge, b.ID, pid, b.Address.Addr())
}

// PlugTap makes the machine's network cable for a process that opens one end of it: a tap
// device of this name on the bridge, for a card with this address on the link.
func (b *Boot) PlugTap() (device string, hardware net.HardwareAddr, err error) {
	return linkName(b.ID), HardwareAddr(b.Address.Addr()), plugTap(b.cloud.cfg, b.cloud.bridge, b.ID)
}
