package namespace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestATestBeginsWhenTheMachineHasCPUForIt(t *testing.T) {
	loads := make(chan float64)
	o := newTurns(filepath.Join(t.TempDir(), "lock"), func(ctx context.Context) (float64, error) {
		select {
		case l := <-loads:
			return l, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	told := 0
	wait := func(ctx context.Context, test string) error { return o.wait(ctx, test, func() { told++ }) }
	for n := range fewest {
		if err := wait(t.Context(), fmt.Sprint(n)); err != nil || told > 0 {
			t.Fatalf("the first have to wait (%v)", err)
		}
	}
	// For another namespace of its own none waits.
	if err := wait(t.Context(), "0"); err != nil || len(o.running) != fewest {
		t.Fatal(err)
	}
	o.leave("0")
	begun := make(chan error)
	go func() { begun <- wait(t.Context(), "next") }()
	loads <- 1
	loads <- busy
	select {
	case err := <-begun:
		t.Fatalf("it began on a busy machine (%v)", err)
	case loads <- busy - 0.1:
	}
	if err := <-begun; err != nil || len(o.running) != fewest+1 || told != 1 {
		t.Errorf("%d run (%v), %d told, want %d and one", len(o.running), err, told, fewest+1)
	}

	// One that ends makes room for one, however busy the machine is.
	t.Run("ends", func(t *testing.T) {
		o.leave("0")
		o.leave("1")
		o.take(t)
		if len(o.running) != fewest {
			t.Errorf("%d run, want %d", len(o.running), fewest)
		}
	})
	if len(o.running) != fewest-1 {
		t.Errorf("%d run, want %d", len(o.running), fewest-1)
	}

	o.enter(math.MaxInt, "another")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ctx, "over"); !errors.Is(err, context.Canceled) {
		t.Errorf("whose test has ended waits: %v", err)
	}
}

func TestOneProcessMeasuresAtATime(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	began, end := make(chan bool), make(chan bool)
	first := newTurns(lock, func(context.Context) (float64, error) {
		began <- true
		<-end
		return 0, nil
	})
	measured := make(chan error, 1)
	go func() {
		_, err := first.isFree(t.Context())
		measured <- err
	}()
	<-began
	second := newTurns(lock, func(context.Context) (float64, error) { return 0, errors.New("it measured too") })
	if free, err := second.isFree(t.Context()); free || err != nil {
		t.Errorf("beside another it says %t (%v)", free, err)
	}
	close(end)
	if err := <-measured; err != nil {
		t.Error(err)
	}
	if _, err := second.isFree(t.Context()); err == nil {
		t.Error("after the other it does not measure")
	}
}

func TestWhatIsNiceIsNoLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stat")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var cpus unix.CPUSet
	cpus.Set(0)
	cpus.Set(2)
	write("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 20 300 4000 50000 600000 7000000 80000000 9 9\n" +
		"cpu1 9 9 9 9 9 9 9 9 9 9\ncpu2 1 1 1 1 1 1 1 1 1 1\nintr 1 2\n")
	used, all, err := cpuTimes(file, &cpus)
	if err != nil || used != 1+300+600000+7000000+80000000+5 || all != 87654321+8 {
		t.Errorf("%d of %d are used (%v)", used, all, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3\n", "cpu 1 2 3 4 5 6 7 8 9 10\n", "cpu0 1 2 x 4 5 6 7 8 9 10\n"} {
		write(bad)
		if _, _, err := cpuTimes(file, &cpus); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func TestTheMachinesLoadIsAPart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if l, err := load(ctx); err != nil || l < 0 || l > 1 {
		t.Errorf("%v, %v", l, err)
	}
}
