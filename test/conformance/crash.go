package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/elotl/kip/test/harness"
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

// ended is what a Kip prints when it ends badly, besides what harness.Amiss knows: at its
// stop nobody else tells.
var ended = regexp.MustCompile(`^(runtime: |unexpected fault address |kip: )`)

// amiss fails when the log of a Kip in the state folder tells of a panic, of a race, of
// a bad end or of an instance that it did not know, or when fewer than n Kips have a log.
// All their logs are read, so that none hides another's.
func amiss(state string, n int) error {
	logs, err := filepath.Glob(filepath.Join(state, "*kip.log"))
	errs := []error{err}
	if len(logs) < n {
		errs = append(errs, fmt.Errorf("%s has the logs of %d Kips, want %d", state, len(logs), n))
	}
	for _, log := range logs {
		data, err := os.ReadFile(log)
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			if ended.MatchString(line) || len(harness.Amiss([]byte(line))) > 0 {
				err = fmt.Errorf("%s, line %d: %s", log, number, shortened(line))
				break
			}
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
