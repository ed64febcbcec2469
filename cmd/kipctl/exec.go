package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/elotl/kip/internal/agentapi"
)

// exitError is the exit status of a command on a machine, which kipctl ends with.
type exitError struct{ status int }

func (e *exitError) Error() string {
	return fmt.Sprintf("the command ended with exit status %d", e.status)
}

func execOn(k *kipctl) *cobra.Command {
	var f portFlags
	var tty bool
	cmd := &cobra.Command{
		Use:   "exec CELL [-- COMMAND [ARGUMENT...]]",
		Short: "Run a command, or a shell, as root on the machine of a cell",
		Long: "Run a command as root on the machine of a cell, beside the pod and not in it; without a command a shell.\n" +
			"You need the right to create cells/exec (group kip.elotl.co). What you do there may end the pod.\n\n" +
			"Whoever is root on the machine decides what your terminal is sent, as with kubectl exec.",
		Args: func(_ *cobra.Command, args []string) error { _, err := oneCell(args); return err },
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := oneCell(args)
			if err != nil {
				return err
			}
			if k.output != "table" {
				return fmt.Errorf("exec shows what a command prints as it comes: --output %s is not for it", k.output)
			}
			e := agentapi.Exec{Command: args[1:], TTY: tty, Term: os.Getenv("TERM")}
			if !cmd.Flags().Changed("tty") {
				e.TTY = len(e.Command) == 0 && isTerminal(k.in) && isTerminal(k.out)
			}
			c, err := k.connect(k.config())
			if err != nil {
				return err
			}
			port, err := c.port(cmd.Context(), name, k.namespace, f)
			if err != nil {
				return err
			}
			defer port.stop()
			status, err := (&onMachine{kipctl: k, cell: name, port: port}).exec(cmd.Context(), e)
			if err == nil && status != 0 {
				cmd.SilenceErrors = true // the command has said what it had to say
				err = &exitError{status}
			}
			return err
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal (default: for a shell, if you have one)")
	return cmd
}

func isTerminal(stream any) bool {
	f := fileOf(stream)
	return f != nil && term.IsTerminal(int(f.Fd()))
}

// onMachine is what kipctl does on the machine of a cell.
type onMachine struct {
	*kipctl
	cell string
	port *kubeletPort // nil if nothing is asked of it but its console
}

// exec runs a command there until it ends or ctx does, and returns its exit status.
func (m *onMachine) exec(ctx context.Context, e agentapi.Exec) (status int, err error) {
	to := m.port.base.JoinPath("cells", m.cell, "exec")
	to.RawQuery = e.Query().Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", agentapi.ExecProtocol)
	resp, err := m.port.ask(r, http.StatusSwitchingProtocols)
	if err != nil {
		return 0, fmt.Errorf("run a command on the machine of cell %s: %w", m.cell, err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		return 0, errors.Join(errors.New("the connection cannot be written to"), resp.Body.Close())
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	frames := agentapi.NewFrames(conn)
	if in := fileOf(m.in); e.TTY && in != nil && isTerminal(m.in) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return 0, fmt.Errorf("prepare the terminal: %w", err)
		}
		defer func() { _ = term.Restore(int(in.Fd()), before) }() // it is as it was made raw
	}
	if out := fileOf(m.out); e.TTY && isTerminal(m.out) {
		defer followSize(int(out.Fd()), func(rows, cols uint16) { _ = frames.SendSize(rows, cols) })() // who reads hears of an error
	}
	go func() {
		_, _ = io.Copy(frames.To(agentapi.FrameStdin), m.in)
		_ = frames.Send(agentapi.FrameStdin, nil)
	}()
	status, err = m.show(conn)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return status, err
}

// show writes what a command prints until it has ended, and returns its exit status.
func (m *onMachine) show(conn io.Reader) (status int, err error) {
	errs := m.err
	if p, is := errs.(plain); is {
		errs = p.Writer // a character may be cut by frames
	}
	buf := make([]byte, agentapi.MaxFrame)
	for {
		kind, p, err := agentapi.ReadFrame(conn, buf)
		if err != nil {
			return 0, fmt.Errorf("the connection to the machine broke off: %w", err)
		}
		switch kind {
		case agentapi.FrameStdout:
			_, err = m.out.Write(p)
		case agentapi.FrameStderr:
			_, err = errs.Write(p)
		case agentapi.FrameExit:
			return agentapi.ExitOf(p)
		}
		if err != nil {
			return 0, err
		}
	}
}
