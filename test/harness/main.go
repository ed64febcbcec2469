package harness

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/qemu"
	"github.com/elotl/kip/internal/netdump"
)

// Main is a package's TestMain: it starts the world that all tests share, runs them
// by run, looks whether anything is left, ends the world, looks once more, and at
// how each Kip has ended and what it said. It returns an exit code.
func Main(o Options, world **World, run func() int) int {
	if o.AuditLog != "" { // an earlier run that failed has left its own
		if err := os.Remove(o.AuditLog); err != nil && !errors.Is(err, os.ErrNotExist) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	var err error
	if *world, err = Start(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := *world
	if o.Race {
		if err := w.racesAreTold(); err != nil {
			fmt.Fprintln(os.Stderr, errors.Join(err, w.Stop()))
			return 1
		}
	}
	code := run()
	fail := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "after the tests: "+format+"\n", args...)
		code = max(code, 1)
	}
	if code == 0 { // else tests have failed that say what is left
		// Before the end of the world, which sweeps everything away.
		if err := errors.Join(w.Empty(context.Background()), w.noStrays(context.Background())); err != nil {
			fail("%v", err)
		}
	}
	if err := w.Stop(); err != nil {
		fail("%v", err)
	}
	if !o.Installed && !o.EKS {
		if err := w.wellEnded(); err != nil {
			fail("%v", err)
		}
	}
	if races, err := w.Races(); err != nil || races != "" {
		fail("Kip had data races (%v):\n%s", err, races)
	}
	switch {
	case o.AuditLog == "", o.EKS && w.audited.Load():
	case o.EKS:
		fail("no test has asked whether the API server refused Kip anything")
	default:
		if err := w.WithinItsRights(time.Time{}); err != nil {
			fail("%v", err)
		}
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the logs are in %s\n", w.State)
		return code
	}
	if o.AuditLog != "" {
		if err := os.Remove(o.AuditLog); err != nil {
			fail("%v", err)
		}
	}
	// It says what Stop has left, and removes the logs.
	clean := exec.Command(w.Tool("kip-dev"), "clean", "--state", w.State, "--bridge", w.Bridge, "--cidr", w.cidr.String())
	if out, err := clean.CombinedOutput(); err != nil || strings.Contains(string(out), "removed") {
		fail("something was left: %v\n%s", err, out)
	}
	return code
}

// Empty waits until there is no cell, no instance and no disk, and says which there are.
// It is for when all pods are gone and no pool of standby cells is configured.
func (w *World) Empty(ctx context.Context) error {
	left := ""
	err := w.wait(ctx, "all cells, instances and disks are gone", func(ctx context.Context) (bool, error) {
		now := ""
		cells, err := w.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range cells.Items {
			now += " cell " + c.GetName()
		}
		machines, err := within(filepath.Join(w.State, "cloud", "machines"), w.hadMachine.Load())
		if err != nil {
			return false, err
		}
		for _, m := range machines {
			now += " instance " + m
		}
		disks, err := within(filepath.Join(w.State, "cloud", "disks"), w.hadDisk.Load())
		if err != nil {
			return false, err
		}
		for _, d := range disks {
			now += " disk " + d
		}
		left = now // else they are those of the look before
		return left == "", nil
	})
	if err != nil {
		return fmt.Errorf("left:%s: %w", left, err)
	}
	return nil
}

// SawMachine tells that a pod has run, and SawDisk that a disk has been made: from then
// on the cloud has folders for them, and Empty fails where it finds none.
func (w *World) SawMachine() { w.hadMachine.Store(true) }

// SawDisk is SawMachine of disks.
func (w *World) SawDisk() { w.hadDisk.Store(true) }

// within lists a folder, which may be missing if nothing has been in it.
func within(folder string, had bool) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) && !had {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("see what is left in %s, where something has been: %w", folder, err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// noStrays waits until nothing is on the machine that was not there before the
// tests, but for the world itself, and says what is: what Empty cannot see.
func (w *World) noStrays(ctx context.Context) error {
	var strays []string
	err := w.wait(ctx, "nothing of a cell or a test is on the machine", func(ctx context.Context) (bool, error) {
		now, err := w.onMachine(ctx)
		if err != nil {
			return false, err // strays are those of the look before
		}
		strays = slices.DeleteFunc(now, func(what string) bool { return slices.Contains(w.before, what) })
		return len(strays) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("left by the tests:\n  %s\n%w", strings.Join(strays, "\n  "), err)
	}
	return nil
}

// TempPrefix is what the names of a process's folders in the temporary folder begin with, if tests mount
// anything there. Other runs have others, so that none finds theirs.
func TempPrefix() string { return fmt.Sprintf("kip-e2e-%d-", os.Getpid()) }

// onMachine names what there is on this machine of the world's cells, of this process
// and of the Kips that it ran: processes, cgroups, network devices, mounts (those that
// keep network namespaces too), loop devices, folders.
func (w *World) onMachine(ctx context.Context) ([]string, error) {
	cfg := host.Config{StateDir: filepath.Join(w.State, "cloud"), Bridge: w.Bridge, CIDR: w.cidr}
	all, err := local.Leftovers(ctx, local.Config{Config: cfg})
	virtual, virtualErr := qemu.Leftovers(ctx, qemu.Config{Config: cfg})
	if err := errors.Join(err, virtualErr); err != nil {
		return nil, err
	}
	// Both name what is in the cgroups.
	all = slices.Compact(slices.Sorted(slices.Values(append(all, virtual...))))
	// That of all machines, which is made with the first.
	all = slices.DeleteFunc(all, func(what string) bool {
		return strings.HasPrefix(what, "cgroup ") && strings.HasSuffix(what, "/kip-"+w.Bridge)
	})
	links, err := netdump.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	bridge := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == w.Bridge })
	for _, l := range links {
		if bridge >= 0 && l.Attrs().MasterIndex == links[bridge].Attrs().Index {
			all = append(all, "network device "+l.Attrs().Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		// Device, folder and type.
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "nsfs" || strings.HasPrefix(f[1], w.State+"/") ||
			strings.HasPrefix(f[1], filepath.Join(os.TempDir(), TempPrefix()))) {
			all = append(all, "mount "+f[1])
		}
	}
	kip, err := w.KipPID()
	if err != nil {
		return nil, err
	}
	pids, err := child.Marked(mark(w.State))
	if err != nil {
		return nil, err
	}
	own, err := child.Of(os.Getpid())
	if err != nil {
		return nil, err
	}
	for _, pid := range append(pids, own...) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil && pid != kip { // else it ended meanwhile
			all = append(all, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// wellEnded looks at how each Kip that the tests ran has ended, and at what each has
// logged. How the world's own ended is kip-dev's to tell.
func (w *World) wellEnded() error {
	var errs []error
	for _, k := range w.kips {
		select {
		case <-k.Done():
			errs = append(errs, k.Amiss())
		default:
			errs = append(errs, fmt.Errorf("Kip, process %d, which a test ran, runs on (%v)", k.PID(), k.Kill()))
		}
	}
	logs, err := filepath.Glob(filepath.Join(w.State, "*kip.log"))
	if err != nil || len(logs) == 0 {
		errs = append(errs, fmt.Errorf("no log of Kip is in %s (%v)", w.State, err))
	}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if amiss := Amiss(text); err != nil || len(amiss) > 0 {
			errs = append(errs, fmt.Errorf("%s (%v) has\n  %s", log, err, strings.Join(amiss, "\n  ")))
		}
	}
	return errors.Join(errs...)
}

// Rights are what Kip may do in the cluster.
type Rights struct {
	// Account is the user name of Kip's service account, and Provisioner that of the one as which it makes volumes.
	Account, Provisioner string
	// File has the rights.
	File string
}

// Of deploy/: the namespace, Kip's service account, and that of the provisioner.
const (
	kipNamespace       = "kip-system"
	kipAccount         = "system:serviceaccount:kip-system:kip"
	provisionerAccount = "system:serviceaccount:kip-system:kip-provisioner"
	rightsFile         = "deploy/manifests/rights/rbac.yaml"
)

// WithinItsRights fails if the API server refused Kip anything that it asked for as itself, or as the provisioner, from a time on: its
// rights must be enough.
func (w *World) WithinItsRights(from time.Time) error {
	w.audited.Store(true)
	return withinItsRights(w.auditLog, w.rights, from)
}

func withinItsRights(auditLog string, of Rights, from time.Time) error {
	if of == (Rights{}) {
		of = Rights{kipAccount, provisionerAccount, rightsFile}
	}
	f, err := os.Open(auditLog)
	if err != nil {
		return err
	}
	defer f.Close()
	refused, allowed := map[string]int{}, 0
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // what is left has no end yet
		}
		if err != nil {
			return err
		}
		var e struct {
			Stage, Verb, UserAgent, RequestURI string
			RequestReceivedTimestamp           time.Time
			User                               struct{ Username string }
			ImpersonatedUser                   *struct{ Username string }
			ResponseStatus                     struct{ Code int }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read %s: event %q: %w", auditLog, line, err)
		}
		// Tests borrow its account, to see what it may not do.
		asItself := e.ImpersonatedUser == nil || e.ImpersonatedUser.Username == of.Provisioner
		if e.User.Username != of.Account || e.UserAgent != "kip" || !asItself || e.Stage != "ResponseComplete" ||
			e.RequestReceivedTimestamp.Before(from) {
			continue
		}
		if e.ResponseStatus.Code == http.StatusForbidden {
			refused[e.Verb+" "+e.RequestURI]++
		} else {
			allowed++
		}
	}
	if len(refused) > 0 || allowed == 0 {
		return fmt.Errorf("with the rights of %s Kip was refused %v; of what it asked as itself %d requests were answered", of.File, refused, allowed)
	}
	return nil
}

// racesAreTold fails if the Kip that runs would tell of no data race.
func (w *World) racesAreTold() error {
	pid, err := w.KipPID()
	if err != nil {
		return err
	}
	return tellsOfRaces(filepath.Join("/proc", strconv.Itoa(pid)), w.races)
}

// tellsOfRaces fails if a process, which /proc has in this folder, is not built with
// -race, or does not tell of data races in files that begin with log.
func tellsOfRaces(proc, log string) error {
	info, err := buildinfo.ReadFile(filepath.Join(proc, "exe"))
	if err != nil {
		return fmt.Errorf("see whether Kip is built with -race: %w", err)
	}
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return fmt.Errorf("%s is built with %v: want -race=true, or it tells of no data race", filepath.Join(proc, "exe"), info.Settings)
	}
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return fmt.Errorf("see where Kip tells of data races: %w", err)
	}
	options := "not set"
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if value, is := strings.CutPrefix(entry, "GORACE="); is {
			options = value
		}
	}
	if !slices.Contains(strings.Fields(options), "log_path="+log) {
		return fmt.Errorf("GORACE of Kip is %q: want log_path=%s, where its data races are looked for", options, log)
	}
	return nil
}

// Races returns what Kip, and those that RunKip ran, told of data races.
func (w *World) Races() (string, error) {
	files, err := filepath.Glob(w.races + ".*")
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%s:\n%s\n", file, text)
	}
	return all.String(), nil
}

// forgetRaces removes what earlier worlds of this name told.
func (w *World) forgetRaces() error {
	files, err := filepath.Glob(w.races + ".*")
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}
