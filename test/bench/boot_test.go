package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/gpt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAStartIsPutTogetherOfTwoClocks(t *testing.T) {
	created := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	since := func(seconds float64) *metav1.Duration {
		return &metav1.Duration{Duration: time.Duration(seconds * float64(time.Second))}
	}
	status := apiv1.CellStatus{
		Boot: &apiv1.Boot{Kernel: since(1), UserSpace: since(2), Network: since(3), Joined: since(4), Ready: since(6)},
		// The kernel began two seconds after the pod was made.
		Steps: []apiv1.Step{
			{Name: apiv1.StepJoined, Time: metav1.NewMicroTime(created.Add(6 * time.Second))},
			{Name: apiv1.StepReady, Time: metav1.NewMicroTime(created.Add(8 * time.Second))},
		},
	}
	got, err := startOf(status, created, 9500*time.Millisecond)
	want := start{
		before:    2 * time.Second,
		kernel:    time.Second,
		userSpace: 2 * time.Second,
		network:   3 * time.Second,
		joined:    4 * time.Second,
		ready:     6 * time.Second,
		running:   7500 * time.Millisecond,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	status.Boot.Network = nil
	if _, err := startOf(status, created, time.Second); err == nil || !strings.Contains(err.Error(), "status.boot.network") {
		t.Errorf("without a network: %v", err)
	}
	if _, err := startOf(apiv1.CellStatus{}, created, time.Second); err == nil {
		t.Error("a machine without a kernel of its own has a start")
	}
}

func TestTheTableSaysWhereTheTimeGoes(t *testing.T) {
	s := start{
		kernel:    time.Second,
		userSpace: 2 * time.Second,
		network:   2 * time.Second,
		joined:    4 * time.Second,
		ready:     8 * time.Second,
		running:   10 * time.Second,
	}
	got := tableOf(func(of func(start) time.Duration) []float64 { return []float64{of(s).Seconds()} })
	if len(got) != 1+len(stages) {
		t.Fatalf("%q", got)
	}
	for n, want := range []string{"1.00 1.00 10 %", "2.00 1.00 10 %", "2.00 0.00 0 %", "4.00 2.00 20 %", "8.00 4.00 40 %", "10.00 2.00 20 %"} {
		if line := strings.Join(strings.Fields(got[n+1]), " "); !strings.HasSuffix(line, want) {
			t.Errorf("%q, want %q", line, want)
		}
	}
}

func TestWhatAMachineIsRunByIsReadOfItsCommand(t *testing.T) {
	for line, want := range map[string]string{
		"qemu -m 1 -accel kvm -cpu host":     "kvm",
		"qemu -accel tcg,thread=multi -cpu":  "tcg",
		"qemu -accel hvf -m 1":               "hvf",
		"qemu -m 1 -accel":                   "",
		"qemu -name accel -append accel=kvm": "",
	} {
		if got := acceleratorOf(strings.Fields(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestWhatPodsCannotHaveOfAMachineIsItsCost(t *testing.T) {
	const info = "MemTotal:         984000 kB\nMemFree:          700000 kB\nMemAvailable:     800000 kB\n"
	if got, err := costOfIdle(1<<30, info); err != nil || got != 1<<30-800000*1024 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "MemAvailable: x kB\n", "MemAvailable: 1048577 kB\n"} {
		if got, err := costOfIdle(1<<30, bad); err == nil {
			t.Errorf("of %q: %v", bad, got)
		}
	}
}

func TestUserSpaceIsCountedFromTheFirstProcess(t *testing.T) {
	a := arrival{
		kernel:  2 * time.Second,
		root:    3 * time.Second,
		network: 4 * time.Second,
		joined:  7 * time.Second,
	}
	if got := a.afterKernel(); got != 5*time.Second {
		t.Errorf("%v, want what it joined after the kernel", got)
	}
}

func TestVersionsOfDebiansPackagesAreRead(t *testing.T) {
	kernel := "linux-image-cloud-" + runtime.GOARCH
	const head = "Status: install ok installed\n"
	status := "Package: " + kernel + "\n" + head + "Version: 6.12-1\n\nPackage: systemd-sysv\n" + head + "Version: 9\n\n" +
		"Package: systemd\n" + head + "Version: 257-1\nDepends: systemd-dev (= 1)\n\nPackage: cloud-init\n" + head + "Version: 25.1\n"
	write := func(text string) string {
		dir := t.TempDir()
		if err := writeBelow(dir, "var/lib/dpkg/status", text); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	want := kernel + " 6.12-1, systemd 257-1, cloud-init 25.1"
	if got, err := debianVersions(write(status)); err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for lacks, text := range map[string]string{
		"systemd":    strings.Replace(status, "Package: systemd\n", "Package: systemd-x\n", 1),
		"cloud-init": strings.Replace(status, "Version: 25.1\n", "", 1),
	} {
		if got, err := debianVersions(write(text)); err == nil || !strings.HasSuffix(err.Error(), "has no "+lacks) {
			t.Errorf("without %s: %q, %v", lacks, got, err)
		}
	}
}

func TestADiskOfDebiansHasItsRootWhereTheKernelLooks(t *testing.T) {
	tree, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk")
	if err := writeBelow(tree, "etc/some", "thing"); err != nil {
		t.Fatal(err)
	}
	if err := debianWrite(t.Context(), tree, disk); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := gpt.Read(f, debianDisk/gpt.Sector)
	if err != nil || len(table.Partitions) != 1 || table.Partitions[0].ID != debianRoot {
		t.Fatalf("%+v, %v", table, err)
	}
	root := fmt.Sprintf("%s?offset=%d", disk, table.Partitions[0].First*gpt.Sector)
	out, err := exec.Command("debugfs", "-R", "cat /etc/some", root).Output()
	if err != nil || string(out) != "thing" {
		t.Errorf("its root has %q, %v", out, err)
	}
}
