package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// LoopsOf returns the loop devices of files under dir.
func LoopsOf(dir string) ([]string, error) {
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var loops []string
	for _, path := range backing {
		file, err := os.ReadFile(path)
		if err != nil {
			continue // freed meanwhile
		}
		if strings.HasPrefix(string(file), dir+"/") {
			loops = append(loops, strings.Split(path, "/")[3])
		}
	}
	return loops, nil
}

// freeDisk waits until no loop device has the machine's disk: the kernel
// unmounts it some time after the machine's last process. Before, what the
// machine wrote may not be there, and mounted once more it would be destroyed.
func freeDisk(ctx context.Context, clk clock.Clock, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, DiskImage)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	pause := time.Millisecond
	for {
		loops, err := LoopsOf(dir)
		if err != nil {
			return fmt.Errorf("look for the loop device of %s: %w", dir, err)
		}
		if len(loops) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: loop devices %v still have the disk in %s", ctx.Err(), loops, dir)
		case <-clk.After(pause):
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}
