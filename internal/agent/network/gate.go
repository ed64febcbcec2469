package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// gatePoll is how often Wait looks: far less than starting a container takes.
const gatePoll = 10 * time.Millisecond

// Open opens the gate of this name below dir: what it stands for is in force.
// A gate that was never opened is closed.
func Open(dir, name string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open gate %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		return fmt.Errorf("open gate %s: %w", name, err)
	}
	return nil
}

// Close closes the gate of this name below dir, which need not be open: at a
// machine's start, before anything of it is in force.
func Close(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("close gate %s: %w", name, err)
	}
	return nil
}

// IsOpen reports whether the gate of this name below dir is open.
func IsOpen(dir, name string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Wait waits until all gates of these names below dir are open. When ctx ends
// first, the error names those that are not.
func Wait(ctx context.Context, dir string, names ...string) error {
	closed := slices.Clone(names)
	poll := time.NewTicker(gatePoll)
	defer poll.Stop()
	for {
		var broken error
		closed = slices.DeleteFunc(closed, func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				broken = fmt.Errorf("look at gate %s: %w", name, err)
			}
			return err == nil
		})
		if broken != nil || len(closed) == 0 {
			return broken
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%s not in force yet: %w", strings.Join(closed, ", "), ctx.Err())
		}
	}
}
