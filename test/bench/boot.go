package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/test/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// boots is how many machines are started, one after the other: emulated, each takes the
	// better part of a minute.
	boots = 3
	// bootPatience is how long one may take to its pod, as its type allows.
	bootPatience = 15 * time.Minute
	// idleScript tells of the machine's memory once it has come to rest.
	idleScript = "sleep 60; cat /proc/meminfo; exec sleep infinity"
)

// start is one of a machine: moments since its kernel began, and what was before that.
type start struct {
	// before is from the pod's creation to the kernel's first instruction.
	before                                             time.Duration
	kernel, userSpace, network, joined, ready, running time.Duration
}

// stages are what a start goes through, in order, each with when it is over.
var stages = []struct {
	figure, until string
	over          func(start) time.Duration
}{
	{figure: "boot_kernel_seconds", until: "the first process", over: func(s start) time.Duration { return s.kernel }},
	{figure: "boot_user_space_seconds", until: "the root, and init in it", over: func(s start) time.Duration { return s.userSpace }},
	{figure: "boot_network_seconds", until: "the machine has its address", over: func(s start) time.Duration { return s.network }},
	{figure: "boot_joined_seconds", until: "the agent has its configuration", over: func(s start) time.Duration { return s.joined }},
	{figure: "boot_ready_seconds", until: "the kubelet is ready", over: func(s start) time.Duration { return s.ready }},
	{figure: "boot_running_seconds", until: "the pod is Running", over: func(s start) time.Duration { return s.running }},
}

// boot measures how the image starts on virtual machines of this host, up to a pod on them,
// and then beside Debian's cloud image.
func boot(ctx context.Context) error {
	if err := sizeOfImage(); err != nil {
		return err
	}
	accelerator, err := bootPods(ctx)
	if err != nil {
		return err
	}
	return takeTurns(ctx, accelerator)
}

// bootPods measures starts up to a pod, with a Kip whose cloud is virtual machines, and says by
// what these run.
func bootPods(ctx context.Context) (accelerator string, err error) {
	w, err := harness.Start(ctx, harness.Options{
		Name:     "kipboot0",
		CIDR:     "10.116.0.0/16",
		Stderr:   os.Stderr,
		Fsync:    true,
		DevArgs:  []string{"--cloud", "qemu"},
		Patience: bootPatience,
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	b := bed{w}
	var all []start
	for i := range boots {
		progress("measuring boot %d of %d", i+1, boots)
		name := fmt.Sprintf("boot-%d", i)
		s, cell, err := b.boot(ctx, name)
		if err != nil {
			return "", err
		}
		all = append(all, s)
		if i == 0 {
			if accelerator, err = b.accelerator(cell); err != nil {
				return "", err
			}
			note("machines of type %s by %s", cell.Status.InstanceType, cmp.Or(acceleratorSays[accelerator], accelerator))
		}
		if _, err := b.end(ctx, name); err != nil {
			return "", err
		}
	}
	printStarts(all)
	progress("measuring the memory of an idle cell")
	return accelerator, b.idleMachine(ctx)
}

// image is the disk that machines boot.
func image() (string, error) {
	root, err := harness.Repository()
	return filepath.Join(root, "bin", "image", "kip-cell-"+runtime.GOARCH+".qcow2"), err
}

func sizeOfImage() error {
	path, err := image()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("there is no image for machines: make image builds it: %w", err)
	}
	print("boot_image_bytes", float64(info.Size()), "B")
	return nil
}

// boot starts a pod whose image is there on a machine of its own.
func (b bed) boot(ctx context.Context, name string) (s start, cell apiv1.Cell, err error) {
	created := time.Now()
	took, err := b.start(ctx, name, presentImage)
	if err != nil {
		return s, cell, err
	}
	if cell, err = b.cellOf(ctx, name); err != nil {
		return s, cell, err
	}
	s, err = startOf(cell.Status, created, took)
	return s, cell, err
}

// startOf puts together what a cell tells of its machine's start, and when its pod was there.
func startOf(status apiv1.CellStatus, created time.Time, took time.Duration) (s start, err error) {
	boot := status.Boot
	if boot == nil {
		return s, errors.New("the cell does not tell how its machine started")
	}
	for _, part := range []struct {
		name string
		from *metav1.Duration
		to   *time.Duration
	}{
		{"kernel", boot.Kernel, &s.kernel},
		{"userSpace", boot.UserSpace, &s.userSpace},
		{"network", boot.Network, &s.network},
		{"joined", boot.Joined, &s.joined},
		{"ready", boot.Ready, &s.ready},
	} {
		if part.from == nil {
			return s, fmt.Errorf("the cell does not tell status.boot.%s of its machine's start", part.name)
		}
		*part.to = part.from.Duration
	}
	n := slices.IndexFunc(status.Steps, func(step apiv1.Step) bool { return step.Name == apiv1.StepReady })
	if n < 0 {
		return s, fmt.Errorf("the cell has no step %s", apiv1.StepReady)
	}
	// Both clocks meet where the kubelet is ready.
	began := status.Steps[n].Time.Add(-s.ready)
	s.before = began.Sub(created)
	s.running = created.Add(took).Sub(began)
	return s, nil
}

// cellOf is the cell of a pod.
func (b bed) cellOf(ctx context.Context, pod string) (cell apiv1.Cell, err error) {
	// The resource is a mirror, and may be a moment late.
	return cell, wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := b.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, item := range list.Items {
			if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &cell); err != nil {
				return false, err
			}
			if s := cell.Status; s.Pod.Name == pod && s.Phase == apiv1.Bound {
				return true, nil
			}
		}
		return false, nil
	})
}

// printStarts prints the figures of all starts, and where the time goes: of each stage the
// median, and what it is more than the stage before.
func printStarts(all []start) {
	seconds := func(of func(start) time.Duration) (values []float64) {
		for _, s := range all {
			values = append(values, of(s).Seconds())
		}
		return values
	}
	before := func(s start) time.Duration { return s.before }
	printAll("boot_before_kernel_seconds", seconds(before), "s")
	for _, s := range stages {
		printAll(s.figure, seconds(s.over), "s")
	}
	printAll("boot_pod_seconds", seconds(func(s start) time.Duration { return s.before + s.running }), "s")
	for _, line := range tableOf(seconds) {
		note("%s", line)
	}
}

// tableOf is where the time goes, a line a stage.
func tableOf(seconds func(func(start) time.Duration) []float64) (lines []string) {
	total := median(seconds(func(s start) time.Duration { return s.running }))
	line := func(until, at, took, part string) {
		lines = append(lines, fmt.Sprintf("%-45s %8s %8s %6s", until, at, took, part))
	}
	line("until, since the kernel's start", "at s", "took s", "of all")
	last := 0.0
	for _, s := range stages {
		at := median(seconds(s.over))
		line(s.until, fmt.Sprintf("%.2f", at), fmt.Sprintf("%.2f", at-last), fmt.Sprintf("%.0f %%", 100*(at-last)/total))
		last = at
	}
	return lines
}

// accelerator is by what the machine of a cell is run, as its own process says.
func (b bed) accelerator(cell apiv1.Cell) (string, error) {
	pid, err := b.processOf(cell.Status.InstanceID)
	if err != nil {
		return "", err
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "", err
	}
	by := acceleratorOf(strings.Split(string(line), "\x00"))
	if by == "" {
		return "", fmt.Errorf("the machine's process %d does not say by what it is run", pid)
	}
	return by, nil
}

// acceleratorSays is what the figures say of accelerators.
var acceleratorSays = map[string]string{vm.KVM: "KVM", vm.TCG: "TCG: they are emulated, some ten times slower than by KVM"}

// acceleratorOf reads QEMU's command line.
func acceleratorOf(args []string) string {
	for i, arg := range args[:max(0, len(args)-1)] {
		if arg == "-accel" {
			name, _, _ := strings.Cut(args[i+1], ",")
			return name
		}
	}
	return ""
}

// processOf is the process of a machine: the one that works in its folder.
func (b bed) processOf(instance string) (int, error) {
	folder := filepath.Join(b.State, "cloud", "machines", instance)
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return 0, err
	}
	for _, link := range all {
		if dir, err := os.Readlink(link); err == nil && dir == folder {
			return strconv.Atoi(filepath.Base(filepath.Dir(link)))
		}
	}
	return 0, fmt.Errorf("no process works in %s", folder)
}

// idleMachine measures the memory of a machine with a pod that does nothing: what the machine
// lacks for others, and what its process has of this host's.
func (b bed) idleMachine(ctx context.Context) error {
	const name = "boot-idle"
	if _, err := b.startPod(ctx, name, pulledImage, "1", []string{"sh", "-c", idleScript}); err != nil {
		return err
	}
	cell, err := b.cellOf(ctx, name)
	if err != nil {
		return err
	}
	types := sizes.Types(runtime.GOARCH)
	n := slices.IndexFunc(types, func(t catalog.InstanceType) bool { return t.Name == cell.Status.InstanceType })
	if n < 0 {
		return fmt.Errorf("cell %s has the type %q, which is none of this host's", cell.Name, cell.Status.InstanceType)
	}
	var said string
	logs := b.Admin.CoreV1().Pods(metav1.NamespaceDefault).GetLogs(name, &corev1.PodLogOptions{})
	if err := wait.PollUntilContextTimeout(ctx, 2*time.Second, patience, false, func(ctx context.Context) (bool, error) {
		text, err := logs.DoRaw(ctx)
		said = string(text)
		return err == nil && strings.Contains(said, "VmallocUsed:"), nil // a late line of it
	}); err != nil {
		return fmt.Errorf("wait for what pod %s says of its machine's memory, it said %.200q: %w", name, said, err)
	}
	cost, err := costOfIdle(types[n].MemoryBytes, said)
	if err != nil {
		return err
	}
	print("boot_idle_memory_bytes", cost, "B")
	pid, err := b.processOf(cell.Status.InstanceID)
	if err != nil {
		return err
	}
	resident, err := residentBytes(pid)
	if err != nil {
		return err
	}
	print("boot_idle_host_memory_bytes", resident, "B")
	_, err = b.end(ctx, name)
	return err
}

// costOfIdle is what of a machine's memory is not to be had for pods, by its kernel's own
// account (/proc/meminfo): what the kernel has not even counted is in it.
func costOfIdle(memory int64, meminfo string) (float64, error) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "MemAvailable:" && f[2] == "kB" {
			kib, err := strconv.ParseFloat(f[1], 64)
			if err != nil || kib*1024 > float64(memory) {
				return 0, fmt.Errorf("the line %q is not of a machine with %d bytes", strings.TrimSpace(line), memory)
			}
			return float64(memory) - kib*1024, nil
		}
	}
	return 0, fmt.Errorf("there is no MemAvailable in %.200q", meminfo)
}
