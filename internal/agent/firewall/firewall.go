package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/elotl/kip/internal/agentapi"
)

// Firewall is the table of one cell.
type Firewall struct {
	nft  func(ctx context.Context, args ...string) (output string, err error)
	look func() (Devices, error)
	file string
	log  *slog.Logger

	mu     sync.Mutex // one change of the table at a time
	begun  bool
	digest string
	hooked bool // the kernel has nft's hook at what leaves a device
	// The uplinks are to be guarded, and these are; others may have come since.
	guarded bool
	covered []Uplink
	// closed says that there are no rules for a pod, and so no pod; exempt whether the agent reaches
	// metadata services, nil where that is not known.
	closed bool
	exempt *bool
}

// New returns a firewall that has not begun. nft runs the program of that name and
// returns what it printed, also when it failed; what is loaded is left in dir for
// people to see. look names the devices of the cell.
func New(dir string, nft func(ctx context.Context, args ...string) (output string, err error), look func() (Devices, error),
	log *slog.Logger) *Firewall {
	return &Firewall{
		nft:  nft,
		look: look,
		file: filepath.Join(dir, "firewall.nft"),
		log:  log,
	}
}

// inForce finds, in what nft lists, the name of the chain that says what is in force.
var inForce = regexp.MustCompile(`(?m)^table inet kip \{(?:[^\n]|\n[^}])*?chain ` + digestChain + `([0-9a-f]{64}) `)

// Begin closes the firewall, unless it is there already: then the agent, and not
// the machine, has started anew, and what was in force is. It says which, or "" where
// the uplinks have no guard yet, so that the rules are brought into force once more.
// Once it has succeeded, it does nothing more.
func (f *Firewall) Begin(ctx context.Context) (digest string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun {
		return f.digest, nil
	}
	why := f.tryHook(ctx)
	f.hooked = why == nil
	if why != nil {
		f.log.Warn("the metadata service is not guarded against raw packets of who may send them, pods of the host's network", "err", why)
	}
	// The chains by their names, without what is in them.
	if out, err := f.nft(ctx, "list", "chains", "inet"); err == nil {
		if m := inForce.FindStringSubmatch(out); m != nil {
			out, err = f.nft(ctx, "list", "chains", "netdev")
			guard := guardInForce.FindStringSubmatch(out)
			if f.begun = true; !f.hooked || err == nil && guard != nil {
				f.digest = m[1]
				f.guarded = guard != nil && guard[1] != ""
			}
			return f.digest, nil
		}
	}
	if err := f.load(ctx, nil, true, func(bool) []byte { return closed }); err != nil {
		return "", fmt.Errorf("close the firewall: %w", err)
	}
	f.begun, f.digest = true, ""
	return "", nil
}

// tryHook says why the kernel has no hook at what leaves a device; nil when it has.
func (f *Firewall) tryHook(ctx context.Context) error {
	for _, program := range []string{hookTrial, hookTrialEnd} {
		if err := f.run(ctx, []byte(program)); err != nil {
			return err
		}
	}
	return nil
}

// Digest says which rules are in force, "" for none: it is closed.
func (f *Firewall) Digest() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.digest
}

// ErrInvalid is what is wrong with rules that nobody can bring into force.
type ErrInvalid struct{ error }

func (e ErrInvalid) Unwrap() error { return e.error }

// Apply brings encoded rules for the pod with these addresses into force, in place of
// those before them, at once for all packets. podIPv6 is the zero address where the
// pod has none; behind are networks that it is the way to. When it fails, those before go on.
// The error is an ErrInvalid if the rules are to blame.
func (f *Firewall) Apply(ctx context.Context, podIP, podIPv6 netip.Addr, behind []netip.Prefix, encoded []byte) error {
	var fw agentapi.Firewall
	// Unknown keys are refused, unlike elsewhere: what a newer Kip means by them
	// may be what keeps somebody out.
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	if err := d.Decode(&fw); err != nil {
		return ErrInvalid{fmt.Errorf("the firewall's rules are not valid JSON: %w", err)}
	}
	if _, err := d.Token(); err != io.EOF {
		return ErrInvalid{fmt.Errorf("the firewall's rules are not one JSON object")}
	}
	if err := validate(fw); err != nil {
		return ErrInvalid{err}
	}
	if fw.PodIP != podIP {
		return ErrInvalid{fmt.Errorf("podIP %s: the pod of this cell has %q", fw.PodIP, podIP)}
	}
	if fw.PodIPv6 != podIPv6 {
		return ErrInvalid{fmt.Errorf("podIPv6 %s: the pod of this cell has %q", fw.PodIPv6, podIPv6)}
	}
	digest := agentapi.Digest(encoded)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun && f.digest == digest {
		return nil
	}
	err := f.load(ctx, &fw, !fw.AllowMetadata, func(exempt bool) []byte { return rendered(&fw, digest, behind, exempt) })
	if err != nil {
		f.digest = "" // what is in force, nobody knows: those before, most likely
		return fmt.Errorf("bring the firewall's rules into force: %w", err)
	}
	f.begun, f.digest = true, digest
	return nil
}

// load runs a program of nft, which takes effect as a whole or not at all; with it
// goes the guard of the uplinks. fw are the rules that it is of, nil for none.
func (f *Firewall) load(ctx context.Context, fw *agentapi.Firewall, guarded bool, program func(exempt bool) []byte) error {
	var d Devices
	if guarded {
		var err error
		if d, err = f.look(); err != nil {
			return err
		}
	}
	exempt := fw == nil || d.Pod
	all := program(exempt)
	if f.hooked {
		all = append(slices.Clip(all), uplinkGuard(guarded, exempt, d.Uplinks)...)
	}
	if err := f.run(ctx, all); err != nil {
		return err
	}
	f.guarded, f.covered, f.closed, f.exempt = guarded, d.Uplinks, fw == nil, &exempt
	return os.Rename(f.file+".new", f.file)
}

// run has nft run a program, which it leaves in the file of the next one.
func (f *Firewall) run(ctx context.Context, program []byte) error {
	next := f.file + ".new"
	if err := os.WriteFile(next, program, 0o600); err != nil {
		return err
	}
	if out, err := f.nft(ctx, "-f", next); err != nil {
		if out = strings.TrimSpace(out); out != "" {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return fmt.Errorf("nft: %w", err)
	}
	return nil
}
