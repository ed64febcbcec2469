package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

var errClusterEnded = errors.New("the cluster ended by itself")

// kips has what the state folder's records say of the Kips that run, by file:
// process number and start. kip-dev removes a record when its process ends.
type kips map[string]string

// readKips reads the records of as many Kips as there must be.
func readKips(state string, n int) (kips, error) {
	files, err := filepath.Glob(filepath.Join(state, "peers", "*", "kip.json"))
	if err != nil {
		return nil, err
	}
	k := kips{}
	for _, f := range append(files, filepath.Join(state, "kip.json")) {
		data, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		k[f] = string(data)
	}
	if len(k) != n {
		return nil, fmt.Errorf("%d Kips run, want %d", len(k), n)
	}
	return k, nil
}

// alive fails when one of the Kips is not the process that it was.
func (k kips) alive() error {
	for file, was := range k {
		if data, err := os.ReadFile(file); err != nil || string(data) != was {
			return fmt.Errorf("the Kip of %s ended by itself: it was %s, and is %q (%v)", file, was, data, err)
		}
	}
	return nil
}

// watch waits until the cluster or one of its Kips ends, and says so. It returns
// nil when ctx ends first.
func (k kips) watch(ctx context.Context, cluster <-chan struct{}, tick <-chan time.Time) error {
	for {
		select {
		case <-cluster:
			return errClusterEnded
		case <-tick:
			if err := k.alive(); err != nil {
				return err
			}
		case <-ctx.Done():
			// Once more, for what happened since the last tick.
			select {
			case <-cluster:
				return errClusterEnded
			default:
				return k.alive()
			}
		}
	}
}

// panicked is what a Go program prints, or logs where it recovers.
var panicked = regexp.MustCompile(`(?m)^(panic: |fatal error: ).*|.*(DATA RACE|panic serving|Observed a panic).*`)

// panics fails when the log of a Kip in the state folder tells of a panic or a race.
func panics(state string) error {
	logs, err := filepath.Glob(filepath.Join(state, "*kip.log"))
	errs := []error{err}
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if found := panicked.Find(data); found != nil {
			err = fmt.Errorf("%s, line %d: %s", log, 1+bytes.Count(data[:bytes.Index(data, found)], []byte("\n")), shortened(string(found)))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keepLogs copies the logs of a cluster to where no later one removes them: kip-dev's
// own, which is beside the state folder, and all in it.
func keepLogs(state, dir string) error {
	logs, err := filepath.Glob(filepath.Join(state, "*.log"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	for _, log := range append(logs, state+".log") {
		data, err := os.ReadFile(log)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(log)), data, 0o644)
		}
		if err != nil {
			return fmt.Errorf("keep the logs: %w", err)
		}
	}
	return nil
}
