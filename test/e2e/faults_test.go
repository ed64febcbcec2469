//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/cloud/host"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// localCloud is what of the world's cloud is seen from outside of its Kip.
func localCloud() host.Config {
	return host.Config{StateDir: filepath.Join(world.State, "cloud")}
}

// children are the machine's parts: the processes that its init has started and
// not ended, by name.
func (m machine) children() (map[string]int, error) {
	all, err := child.Of(m.pid)
	if err != nil {
		return nil, err
	}
	pids := map[string]int{}
	for _, pid := range all {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(args) == 0 {
			continue // it has ended
		}
		name, _, _ := strings.Cut(string(args), "\x00")
		pids[filepath.Base(name)] = pid
	}
	return pids, nil
}

// kill ends the machine at once, as if its plug was pulled: its init is itzo.
func (m machine) kill(s *space) {
	s.Helper()
	if err := syscall.Kill(m.pid, syscall.SIGKILL); err != nil {
		s.Fatal(err)
	}
}

// ended tells when the machine's last breath was, once.
func (m machine) ended(s *space) <-chan time.Time {
	s.Helper()
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		s.Fatalf("follow the machine of cell %s: %v", m.cell.Name, err)
	}
	ended := make(chan time.Time, 1)
	go func() {
		defer unix.Close(fd)
		for s.Context().Err() == nil {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
			if n > 0 {
				ended <- time.Now()
				return
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return ended
}

// cut takes the machine's network cable out of the bridge, and returns what puts
// it back.
func (m machine) cut(s *space) (mend func()) {
	s.Helper()
	side, err := host.Inspect(localCloud(), m.cell.Status.InstanceID)
	if err != nil {
		s.Fatal(err)
	}
	port, err := netlink.LinkByName(side.Device)
	if err != nil {
		s.Fatal(err)
	}
	bridge, err := netlink.LinkByName(world.Bridge)
	if err != nil {
		s.Fatal(err)
	}
	if err := netlink.LinkSetNoMaster(port); err != nil {
		s.Fatal(err)
	}
	return func() {
		if err := netlink.LinkSetMaster(port, bridge); err != nil {
			s.Fatal(err)
		}
	}
}

// fillDisk leaves nothing of the machine's disk. The file system promises all of
// it to a file; on the host that takes no room.
func (m machine) fillDisk(s *space) {
	s.Helper()
	f, err := os.Create(m.path("/var/lib/kubelet/big"))
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	for { // what runs there writes too
		var disk unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &disk); err != nil {
			s.Fatal(err)
		}
		if disk.Bavail == 0 {
			return
		}
		info, err := f.Stat()
		if err != nil {
			s.Fatal(err)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, info.Size(), int64(disk.Bavail)*disk.Bsize); err != nil && !errors.Is(err, unix.ENOSPC) {
			s.Fatalf("fill the disk of cell %s: %v", m.cell.Name, err)
		}
	}
}

// interrupt gives notice that the machine is taken back.
func (m machine) interrupt(s *space, at time.Time) {
	s.Helper()
	if err := host.Interrupt(localCloud(), m.cell.Status.InstanceID, at); err != nil {
		s.Fatal(err)
	}
}

// firstContainer is a pod's first container, as its status has it.
func firstContainer(pod *corev1.Pod) corev1.ContainerStatus {
	if len(pod.Status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[0]
}

// waitMoved waits until a pod that ran on a machine is Ready on another one,
// proves that it was given that only after the first had ended, and returns both.
func (s *space) waitMoved(before *corev1.Pod, from machine, ended <-chan time.Time) (*corev1.Pod, machine) {
	s.Helper()
	var after *corev1.Pod
	s.Within(namespace.LossPatience, "pod "+before.Name+" is Ready on another cell", func(ctx context.Context) (err error) {
		if after, err = s.Pod(ctx, before.Name); err != nil {
			return err
		}
		if after.UID != before.UID {
			return errors.New("it is another pod")
		}
		if c := firstContainer(after); !namespace.IsReady(after) || c.ContainerID == firstContainer(before).ContainerID ||
			c.State.Running == nil {
			return fmt.Errorf("it is %s", namespace.States(after))
		}
		return nil
	})
	to := s.machine(before.Name)
	if to.cell.Status.InstanceID == from.cell.Status.InstanceID {
		s.Fatalf("pod %s has another container on the same machine", before.Name)
	}
	var end time.Time
	select {
	case end = <-ended:
	default:
		s.Fatalf("pod %s runs on cell %s while the machine of cell %s lives", before.Name, to.cell.Name, from.cell.Name)
	}
	placed := 0
	for _, step := range to.cell.Status.Steps {
		if step.Name != apiv1.StepPlaced {
			continue
		}
		if placed++; !step.Time.After(end) {
			s.Errorf("cell %s was requested at %s, when the machine of cell %s lived: it ended at %s", to.cell.Name, step.Time, from.cell.Name, end)
		}
	}
	if placed != 1 {
		s.Errorf("cell %s was placed %d times: %+v", to.cell.Name, placed, to.cell.Status.Steps)
	}
	return after, to
}

// deployment keeps one pod; spec is indented by six.
func deployment(name, spec string) string {
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `}
spec:
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata: {labels: {app: ` + name + `}}
    spec:
      nodeSelector: {type: virtual-kubelet}
` + spec
}

// waitCellGone waits until nothing is left of a cell, on the host neither.
func (s *space) waitCellGone(m machine) {
	s.Helper()
	s.Eventually("cell "+m.cell.Name+" is gone", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if c.Name == m.cell.Name {
				return fmt.Errorf("it is %s (%s)", c.Status.Phase, c.Status.Reason)
			}
		}
		if _, err := host.Inspect(localCloud(), m.cell.Status.InstanceID); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("its instance is still there (%v)", err)
		}
		return nil
	})
}

func TestAPodGoesOnWhenItsKubeletOrContainerdIsKilled(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	before := s.WaitReady("a")
	m := s.machine("a")
	for _, part := range []string{"kubelet", "containerd"} {
		var old int
		s.Eventually(part+" runs", func(context.Context) error {
			all, err := m.children()
			if old = all[part]; err == nil && old == 0 {
				err = fmt.Errorf("the machine's processes are %v", all)
			}
			return err
		})
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.Eventually(part+" runs again", func(context.Context) error {
			all, err := m.children()
			if now := all[part]; err == nil && (now == 0 || now == old) {
				err = fmt.Errorf("%s was process %d, the machine's processes are %v", part, old, all)
			}
			return err
		})
		// A kubelet that adds a container to the pod has looked at what runs of it.
		s.Eventually("a container is added", func(ctx context.Context) error {
			_, code, errs := s.Attempt(ctx, "debug", "a", "--image=busybox:1.36", "--container=after-"+part, "--", "sleep", "3600")
			if code != 0 {
				return errors.New(errs)
			}
			return nil
		})
		s.WaitPod("a", "runs the container that was added", func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.Status.EphemeralContainerStatuses, func(c corev1.ContainerStatus) bool {
				return c.Name == "after-"+part && c.State.Running != nil
			})
		})
		unmoved(s, firstContainer(before).ContainerID, "a")
	}
	if log := s.Kubectl("logs", "a"); log != "started\n" {
		t.Errorf("the log is %q", log)
	}
	if now := s.machine("a"); now.pid != m.pid || now.cell.Name != m.cell.Name {
		t.Errorf("the pod moved from cell %s to %s", m.cell.Name, now.cell.Name)
	}
}

func TestAMachineThatDiesIsReplacedAsThePodsRestartPolicySays(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("always", `  initContainers:
  - {name: first, image: 'busybox:1.36', command: [touch, /d/made], volumeMounts: [{name: d, mountPath: /d}]}
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'test -f /d/made || exit 9; trap "exit 0" TERM; touch /d/mine; while :; do sleep 0.1; done']
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, emptyDir: {}}]
`))
	s.Apply(namespace.Bare("never", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	s.Apply(`apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  template:
    metadata: {labels: {app: job}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
      restartPolicy: Never
      containers:
      - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`)
	always, never, job := s.WaitReady("always"), s.WaitReady("never"), s.WaitPodOf("job", "")
	s.Kubectl("exec", "always", "--", "touch", "/d/lost")
	machines := map[string]machine{}
	for _, pod := range []string{"always", "never", job.Name} {
		machines[pod] = s.machine(pod)
	}
	ended := machines["always"].ended(s)
	for _, m := range machines {
		m.kill(s)
	}

	after, _ := s.waitMoved(always, machines["always"], ended)
	s.WaitEvent("always", "CellLost", "")
	s.Eventually("exec in pod always", s.ExecTrue("always"))
	// The init container has run again, on another disk.
	if files := s.Kubectl("exec", "always", "--", "ls", "/d"); files != "made\nmine\n" {
		t.Errorf("the pod's volume holds %q", files)
	}
	wasLost(s, after)

	failed := s.WaitPod("never", "has Failed", namespace.HasPhase(corev1.PodFailed))
	if failed.UID != never.UID || failed.Status.Reason != "CellLost" || !isDisrupted(failed) || namespace.IsReady(failed) {
		t.Errorf("pod never has reason %q, conditions %+v", failed.Status.Reason, failed.Status.Conditions)
	}
	if x := firstContainer(failed).State.Terminated; x == nil || x.Reason != "ContainerStatusUnknown" || x.ExitCode != 137 {
		t.Errorf("pod never is %s", namespace.States(failed))
	}

	other := s.WaitPodOf("job", job.Name)
	lost := s.WaitPod(job.Name, "has Failed", namespace.HasPhase(corev1.PodFailed))
	if lost.Status.Reason != "CellLost" || !isDisrupted(lost) {
		t.Errorf("the Job's first pod has reason %q, conditions %+v", lost.Status.Reason, lost.Status.Conditions)
	}
	s.Eventually("exec in the Job's second pod", s.ExecTrue(other.Name))
	for _, m := range machines {
		s.waitCellGone(m)
	}
}

// whole is a container that says how it ends, after its hook.
const whole = `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "sleep 1; echo ended; exit 3" TERM; echo started; while :; do sleep 0.1; done']
    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo hook >/proc/1/fd/1']}}}
`

func TestAMachineThatIsSwitchedOffEndsItsPodFirst(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(strings.Replace(namespace.Bare("never", "  restartPolicy: Never\n"+whole), "PeriodSeconds: 2", "PeriodSeconds: 10", 1))
	s.Apply(namespace.Sleeper("always"))
	// With exit status 0 they would count as Succeeded, which is the kubelet's way.
	s.Apply(deployment("d", strings.NewReplacer("exit 0", "exit 3", "PeriodSeconds: 1", "PeriodSeconds: 10").Replace(namespace.Sleeps)))
	never, always, first := s.WaitReady("never"), s.WaitReady("always"), s.WaitPodOf("d", "")
	machines := map[string]machine{}
	for _, pod := range []string{"never", "always", first.Name} {
		machines[pod] = s.machine(pod)
	}
	rest := s.Follow("never", "started")
	ended := machines["always"].ended(s)
	for _, m := range machines {
		if err := syscall.Kill(m.pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}

	if log, err := rest(); err != nil || log != "hook\nended\n" {
		t.Errorf("who follows the log sees then %q (%v)", log, err)
	}
	for _, p := range []*corev1.Pod{never, first} {
		failed := s.WaitPod(p.Name, "has Failed, and its kubelet says how its container ended", namespace.FailedAndTold)
		disrupted := slices.ContainsFunc(failed.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
		})
		if failed.UID != p.UID || failed.Status.Reason != "Terminated" || !disrupted {
			t.Errorf("pod %s has reason %q, conditions %+v", p.Name, failed.Status.Reason, failed.Status.Conditions)
		}
		if x := firstContainer(failed).State.Terminated; x.ExitCode != 3 {
			t.Errorf("pod %s is %s, want exit code 3", p.Name, namespace.States(failed))
		}
	}
	// Its log is kept, as that of each pod that ended.
	if got := s.Kubectl("logs", "never"); got != "started\nhook\nended\n" {
		t.Errorf("the log is %q", got)
	}
	s.Eventually("exec in the Deployment's second pod", s.ExecTrue(s.WaitPodOf("d", first.Name).Name))

	s.waitMoved(always, machines["always"], ended)
	s.Eventually("exec in pod always", s.ExecTrue("always"))
	for _, m := range machines {
		s.waitCellGone(m)
	}
}

// wasLost checks what a kubelet makes of a pod that ran on another machine.
func wasLost(s *space, pod *corev1.Pod) {
	s.Helper()
	c := firstContainer(pod)
	if last := c.LastTerminationState.Terminated; c.RestartCount != 1 || last == nil || last.Reason != "ContainerStatusUnknown" ||
		last.ExitCode != 137 {
		s.Errorf("pod %s has %d restarts and the last state %+v, want 1 and ContainerStatusUnknown, 137", pod.Name, c.RestartCount, last)
	}
}

func isDisrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "CellLost"
	})
}

// Nothing is said of the evicted pod's log and exit code: on a full disk the kubelet collects
// dead containers, sometimes before Kip has saved the one, and it has told the other.
func TestAFullDiskEvictsThePodWhichIsReplaced(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	// With exit status 0 it would count as Succeeded, which is the kubelet's way.
	s.Apply(deployment("d", strings.Replace(namespace.Sleeps, "exit 0", "exit 3", 1)))
	first := s.WaitPodOf("d", "")
	m := s.machine(first.Name)
	m.fillDisk(s)
	evicted := s.WaitPod(first.Name, "has Failed", namespace.HasPhase(corev1.PodFailed))
	if evicted.Status.Reason != "Evicted" || !strings.Contains(evicted.Status.Message, "ephemeral-storage") {
		t.Errorf("the pod failed for %q: %s", evicted.Status.Reason, evicted.Status.Message)
	}
	s.waitCellGone(m)
	second := s.WaitPodOf("d", first.Name)
	s.Eventually("exec in the second pod", s.ExecTrue(second.Name))
}

func TestAMachineThatDiesWhileItBootsIsReplaced(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a"))
	var side host.Side
	var cell apiv1.Cell
	s.Eventually("the machine boots", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		if len(cells) != 1 || cells[0].Status.InstanceID == "" {
			return fmt.Errorf("the cells are %+v", cells)
		}
		cell = cells[0]
		side, err = host.Inspect(localCloud(), cell.Status.InstanceID)
		if err == nil && side.PID == 0 {
			err = fmt.Errorf("it is %s", side.State)
		}
		if err == nil {
			err = syscall.Kill(side.PID, syscall.SIGSTOP) // it boots no further
		}
		return err
	})
	m := machine{cell: cell, pid: side.PID}
	s.waitPhase("a", apiv1.Booting)
	if cells, err := s.Cells(t.Context()); err != nil || len(cells) != 1 || cells[0].Name != cell.Name {
		t.Fatalf("the cells are %+v, %v; want %s alone", cells, err, cell.Name)
	}
	m.kill(s)
	s.Within(namespace.LossPatience, "another cell runs the pod", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		if len(cells) != 1 || cells[0].Name == cell.Name || cells[0].Status.Phase != apiv1.Bound {
			return fmt.Errorf("the cells are %+v", cells)
		}
		return nil
	})
	pod := s.WaitReady("a")
	s.Eventually("exec", s.ExecTrue("a"))
	if c := firstContainer(pod); c.RestartCount != 0 {
		t.Errorf("a pod that had not begun has %d restarts", c.RestartCount)
	}
	s.WaitEvent("a", "CellLost", "")
	s.waitCellGone(m)
}

// Not parallel: it starts Kip with other settings.
func TestAStandbyCellThatDiesOrIsTakenBackIsReplaced(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	restore := reconfigure(t, map[string]any{"standbyCells": []any{map[string]any{"instanceType": "small", "count": 1}}})
	only := func() machine {
		for _, cell := range s.waitStandby(1) {
			side, err := host.Inspect(localCloud(), cell.Status.InstanceID)
			if err != nil || side.PID == 0 {
				t.Fatalf("the machine of standby cell %s is %+v, %v", cell.Name, side, err)
			}
			return machine{cell: cell, pid: side.PID}
		}
		panic("none")
	}
	replaced := func(m machine) {
		t.Helper()
		s.Eventually("standby cell "+m.cell.Name+" is gone", func(ctx context.Context) error {
			all, err := standby(ctx)
			if _, is := all[m.cell.Name]; err == nil && is {
				err = fmt.Errorf("it is %s", all[m.cell.Name].Status.Phase)
			}
			return err
		})
		if next := only(); next.cell.Status.InstanceID == m.cell.Status.InstanceID {
			t.Fatalf("cells %s and %s have the same machine", m.cell.Name, next.cell.Name)
		}
		s.waitCellGone(m)
	}
	first := only()
	first.kill(s)
	replaced(first)

	// Long before it is taken.
	second := only()
	second.interrupt(s, time.Now().Add(time.Hour))
	replaced(second)
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")

	restore()
	s.Eventually("the standby cells are gone", func(ctx context.Context) error {
		left, err := standby(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left", len(left))
		}
		return err
	})
}
