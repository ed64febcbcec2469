package sim

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// Config is what a simulated cloud is made from.
type Config struct {
	// Name is the cloud's key in provider.yaml; "sim" when empty.
	Name string
	// Clock is time itself when nil, which is virtual in a synctest bubble.
	Clock clock.WithDelayedExecution
	// Seed makes another history of the same knobs.
	Seed uint64
	// Catalogue is what is for sale; it must not be empty.
	Catalogue []catalog.InstanceType
	Log       *slog.Logger // discards when nil

	// Boot is what runs in a machine: it is called in a goroutine of its own
	// when the machine has booted, and again when it has booted after Start. ctx
	// ends when the machine is stopped, gone, or the cloud closed; Close waits
	// for Boot to return. userData must not be modified. Nothing runs when nil.
	Boot func(ctx context.Context, i cloud.Instance, userData []byte)

	// End is called, in a goroutine of its own, when a machine has ended that had
	// booted once; Close waits for it, too. Its ctx ends with the cloud. Optional.
	End func(ctx context.Context, i cloud.Instance)

	// Fault is asked about each call when it arrives, before FailNth and
	// Knobs.Faults are; a zero Fault leaves the call to those. It may block.
	Fault func(Call) Fault

	// Mounted says that an instance uses a disk: for Torn of Disks. Optional. It is
	// called with the cloud locked and must not call it.
	Mounted func(disk, instance string) bool

	// Capabilities are what the cloud says of itself; Kip's usual ones of a cloud whose
	// list lags when nil.
	Capabilities *cloud.Capabilities
	// SharedUserData makes that trait true: a launch of several machines that have
	// user data or tags of their own is refused.
	SharedUserData bool
	// Resolves makes the cloud a cloud.Resolver, of Knobs.Images.
	Resolves bool
	// LikeEC2 is for a model of EC2 that stands before the cloud: of a launch without
	// room for all, the first places have the instances, one without the owner's tag is
	// not refused, and the first four addresses of a network are nobody's (VPC User
	// Guide, "Subnet CIDR blocks").
	LikeEC2 bool

	// ManagementCIDR and PodCIDR are where addresses are taken from, the same
	// offset in both, unique among the machines that hold one. By default
	// 127.64.0.0/10, which can be listened on without further ado on Linux, and
	// 10.64.0.0/10.
	ManagementCIDR, PodCIDR netip.Prefix
	// ReuseAddresses gives the address that was freed last to the next machine.
	// Otherwise an address comes again only after all others.
	ReuseAddresses bool

	Knobs
}

// setDefaults fills in what is empty.
func (cfg *Config) setDefaults() {
	if cfg.Name == "" {
		cfg.Name = "sim"
	}
	if cfg.Capabilities == nil {
		cfg.Capabilities = &cloud.Capabilities{ListLag: 20 * time.Second, Poll: time.Second, Budgets: cfg.RateLimits}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if !cfg.ManagementCIDR.IsValid() {
		cfg.ManagementCIDR = netip.MustParsePrefix("127.64.0.0/10")
	}
	if !cfg.PodCIDR.IsValid() {
		cfg.PodCIDR = netip.MustParsePrefix("10.64.0.0/10")
	}
}
