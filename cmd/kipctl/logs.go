package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/agentapi"
)

// logConsole is what the machine wrote to its console, which the cloud has and not the machine.
const logConsole = "console"

var logNames = []string{agentapi.LogAgent, agentapi.LogKubelet, agentapi.LogContainerd, agentapi.LogCloudInit, logConsole}

func logsOf(k *kipctl) *cobra.Command {
	var f portFlags
	var which []string
	var tail int
	cmd := &cobra.Command{
		Use:   "logs CELL",
		Short: "Show the end of the logs of the machine of a cell: its agent's and its kubelet's",
		Long: "Show the end of the logs of the machine of a cell: its agent's and its kubelet's, or those that --log names.\n" +
			"You need the right to get cells/log (group kip.elotl.co); for the console Kip's local socket. For the logs of\n" +
			"a pod: kubectl logs.\n\n" +
			"Whoever is root on the machine writes what he likes, so what would steer a terminal is shown as question marks.",
		Args: namesOneCell,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := oneCell(args)
			if err != nil {
				return err
			}
			for _, l := range which {
				if !slices.Contains(logNames, l) {
					return fmt.Errorf("--log: %q is no log of a machine: it must be one of %s", l, strings.Join(logNames, ", "))
				}
			}
			return (&onMachine{kipctl: k, cell: name}).showLogs(cmd.Context(), which, tail, f)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringSliceVarP(&which, "log", "l", []string{agentapi.LogAgent, agentapi.LogKubelet},
		"`logs` to show: "+strings.Join(logNames, ", "))
	cmd.Flags().IntVar(&tail, "tail", 100, "how many `lines` of each")
	return cmd
}

// machineLog is a log as a program reads it.
type machineLog struct {
	Cell  string   `json:"cell"`
	Log   string   `json:"log"`
	Lines []string `json:"lines"`
	Error string   `json:"error,omitempty"`
}

// showLogs shows logs one after the other. One that cannot be had hides no other.
func (m *onMachine) showLogs(ctx context.Context, which []string, tail int, f portFlags) error {
	if slices.ContainsFunc(which, func(l string) bool { return l != logConsole }) {
		c, err := m.connect(m.config())
		if err != nil {
			return err
		}
		if m.port, err = c.port(ctx, m.cell, m.namespace, f); err != nil {
			return err
		}
		defer m.port.stop()
	}
	var all []machineLog
	var failed []error
	for _, name := range which {
		text, err := m.logOf(ctx, name, tail)
		one := machineLog{Cell: m.cell, Log: name, Lines: []string{}}
		for line := range strings.Lines(text) {
			one.Lines = append(one.Lines, strings.TrimRight(line, "\r\n"))
		}
		if err != nil {
			one.Error = err.Error()
			failed = append(failed, fmt.Errorf("log %s of cell %s: %w", name, m.cell, err))
		}
		all = append(all, one)
	}
	err := m.print(all, func(w io.Writer) error {
		for _, l := range all {
			if len(all) > 1 && l.Error == "" {
				fmt.Fprintf(w, "==> %s <==\n", l.Log)
			}
			for _, line := range l.Lines {
				if _, err := fmt.Fprintln(w, line); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(append(failed, err)...)
}

// maxLogText bounds what is read of a log, in bytes: more than an agent sends.
const maxLogText = 8 << 20

// logOf returns the end of a log.
func (m *onMachine) logOf(ctx context.Context, name string, tail int) (string, error) {
	if name == logConsole {
		path, _ := m.socketPath()
		t, err := adminapi.NewClient(path).Console(ctx, m.cell)
		return lastOf(string(t.Text), tail), err
	}
	to := m.port.base.JoinPath("cells", m.cell, "logs", name)
	to.RawQuery = url.Values{agentapi.ParamTail: {strconv.Itoa(tail)}}.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := m.port.ask(r, http.StatusOK)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxLogText))
	return string(text), err
}

// lastOf is the last lines of a text.
func lastOf(text string, lines int) string {
	all := slices.Collect(strings.Lines(text))
	return strings.Join(all[max(0, len(all)-lines):], "")
}
