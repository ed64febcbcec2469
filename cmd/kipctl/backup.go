package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/store"
)

// progressEvery is how often a transfer says how far it is; what is done before
// says nothing.
const progressEvery = 2 * time.Second

func backup(k *kipctl) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "backup [-f FILE]",
		Short: "Write a backup of Kip's store",
		Long: "Write a backup of Kip's store, as it is at one moment, while Kip goes on.\n\n" +
			"It holds secrets, the key of the CA that cells trust among them: keep it like a private key. A\n" +
			"file gets its name only when it is whole and its checksum is right; one of that name is replaced.\n" +
			"Without -f it goes to standard output, unless that is a terminal: then see the exit status.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			client := adminapi.NewClient(path)
			if file == "" {
				if f, ok := k.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
					return errors.New("a backup holds secrets and is not for a terminal: give -f FILE, or redirect the output")
				}
				_, err := k.copyBackup(cmd.Context(), client, k.out)
				return err
			}
			summary, err := k.backupTo(cmd.Context(), client, file)
			if err != nil {
				return fmt.Errorf("%s is not written: %w", file, err)
			}
			fmt.Fprintf(k.err, "Wrote %s (records: %s), revision %d of the store, schema %d.\n", file, records(summary.Keys), summary.Revision,
				summary.Schema)
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "`file` to write, which only you can read")
	return cmd
}

// backupTo writes a backup as writeWhole does.
func (k *kipctl) backupTo(ctx context.Context, client *adminapi.Client, file string) (summary store.Summary, err error) {
	err = writeWhole(file, func(w io.Writer) (err error) {
		summary, err = k.copyBackup(ctx, client, w)
		return err
	})
	return summary, err
}

// copyBackup copies a backup to w and checks it on the way.
func (k *kipctl) copyBackup(ctx context.Context, client *adminapi.Client, w io.Writer) (store.Summary, error) {
	check, checked := io.Pipe()
	type result struct {
		summary store.Summary
		err     error
	}
	results := make(chan result, 1)
	go func() {
		s, err := store.Inspect(check)
		// What comes after the trailer, or after a fault, is read and thrown away:
		// the copy is not held up.
		_, rest := io.Copy(io.Discard, check)
		results <- result{s, errors.Join(err, rest)}
	}()
	err := client.Backup(ctx, &progress{
		to:    io.MultiWriter(w, checked),
		say:   k.err,
		clock: k.clock,
		last:  k.clock.Now(),
	})
	checked.Close()
	r := <-results
	if err != nil {
		return r.summary, err // it says more than the check
	}
	return r.summary, r.err
}

// progress writes on, and says how much every few seconds.
type progress struct {
	to, say io.Writer
	clock   clock.PassiveClock
	last    time.Time
	bytes   int64
}

func (p *progress) Write(b []byte) (int, error) {
	n, err := p.to.Write(b)
	p.bytes += int64(n)
	if now := p.clock.Now(); now.Sub(p.last) >= progressEvery {
		p.last = now
		fmt.Fprintf(p.say, "%.1f MiB…\n", float64(p.bytes)/(1<<20))
	}
	return n, err
}
