package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/sanitize"
)

func why(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "why POD",
		Short: "Explain where a pod stands, on which cell, and why",
		Long: "Explain where a pod stands, on which cell, and why.\n\n" +
			"Kip's local socket knows most: which types were considered and rejected. Where it cannot be\n" +
			"asked, what the pod, its Cell and its Events say is shown.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one pod: POD or NAMESPACE/POD; got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, pod, err := k.podName(args[0])
			if err != nil {
				return err
			}
			e, err := k.explain(cmd.Context(), namespace, pod)
			if err != nil {
				return err
			}
			return k.print(e, func(w io.Writer) error { return k.explanation(w, e) })
		},
	}
}

// podName reads POD, pod/POD or NAMESPACE/POD.
func (k *kipctl) podName(arg string) (namespace, pod string, err error) {
	namespace, pod, found := strings.Cut(arg, "/")
	if !found || namespace == "pod" || namespace == "pods" || namespace == "po" {
		if !found {
			pod = namespace
		}
		if namespace, err = k.podNamespace(); err != nil {
			return "", "", err
		}
	} else if k.namespace != "" && k.namespace != namespace {
		return "", "", fmt.Errorf("%q is in namespace %q, but --namespace says %q", arg, namespace, k.namespace)
	}
	if namespace == "" || pod == "" || strings.Contains(pod, "/") {
		return "", "", fmt.Errorf("%q is not the name of a pod: it must be POD or NAMESPACE/POD", arg)
	}
	return namespace, pod, nil
}

// explain asks the socket, and the Kubernetes API where that cannot tell.
func (k *kipctl) explain(ctx context.Context, namespace, pod string) (*adminapi.Explanation, error) {
	path, named := k.socketPath()
	e, err := adminapi.NewClient(path).Why(ctx, namespace, pod)
	switch {
	case err == nil:
		// Events are for the user to read, not for Kip: without a way to the
		// API server the rest is worth showing.
		if c, err := k.connect(k.config()); err != nil {
			fmt.Fprintln(k.err, "Warning: without events:", err)
		} else if e.Events, err = c.events(ctx, namespace, e.Pod.UID); err != nil {
			fmt.Fprintln(k.err, "Warning: without events:", err)
		}
		return &e, nil
	case errors.Is(err, adminapi.ErrNotFound): // another Kip may have it
	case named:
		return nil, err
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintln(k.err, "Warning: showing what the Kubernetes API knows:", err)
	case !errors.Is(err, adminapi.ErrNoServer):
		return nil, err
	}
	c, err := k.connect(k.config())
	if err != nil {
		return nil, err
	}
	return c.explain(ctx, namespace, pod)
}

// explanation writes e for people.
func (k *kipctl) explanation(out io.Writer, e *adminapi.Explanation) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(w, "%s:\t%s\n", name, sanitize.Printable(value)) }
	line("Pod", e.Pod.String())
	line("Node", orNone(e.Node))
	if e.Profile != "" {
		line("Profile", e.Profile)
	}
	line("Phase", orNone(strings.Join(adminapi.NonEmpty(e.PodPhase, e.Ended), ", ")))
	if e.Waiting != "" {
		line("Waiting for", e.Waiting)
	}
	if e.StatusTrouble != "" {
		line("Status", e.StatusTrouble)
	}
	if c := e.Cell; c == nil {
		line("Cell", strings.Join(adminapi.NonEmpty("<none>", e.NoMachine), ": "))
	} else {
		line("Cell", fmt.Sprintf("%s, %s", c.Name, c.Status.Phase))
		if t := typeOf(c.Status); t != "" {
			line("Instance", strings.Join(adminapi.NonEmpty(t, c.Status.Zone, price(c.Status.PricePerHour), c.Status.InstanceID), ", "))
		}
		if c.Status.Reason != "" {
			line("Reason", c.Status.Reason)
		}
		if a := c.Status.Agent; a != nil {
			words := adminapi.NonEmpty(a.Version)
			if a.SHA256 != "" {
				words = append(words, "sha256 "+a.SHA256)
			}
			if a.Kip != "" {
				words = append(words, "which is not Kip's, "+a.Kip)
			}
			line("Agent version", strings.Join(words, ", "))
		}
		for _, b := range c.Status.Beside {
			how := "ready"
			if !b.Ready {
				how = strings.Join(adminapi.NonEmpty("not ready", b.Message), ": ")
			}
			line("Beside it", fmt.Sprintf("%s/%s, %s", b.Namespace, b.Name, how))
		}
		if c.Tunnel != nil {
			line("Connection", k.connection(c.Tunnel))
		}
		if c.Agent != nil {
			line("Agent", agent(c.Agent))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, part := range []func(io.Writer, *adminapi.Explanation){k.steps, boot, k.console, k.placement, k.events} {
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		part(w, e)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (k *kipctl) connection(t *adminapi.Tunnel) string {
	words := []string{"up"}
	if !t.Connected {
		words = adminapi.NonEmpty("down", t.Error)
	}
	if t.LastHeard != nil {
		words = append(words, "last heard "+duration.HumanDuration(k.clock.Since(*t.LastHeard))+" ago")
	}
	return strings.Join(words, "; ")
}

// agent says how the parts of a cell's system fare.
func agent(a *adminapi.Agent) string {
	words := adminapi.NonEmpty(a.Error)
	for _, c := range a.Components {
		text := c.Name + " runs"
		if c.PID == 0 {
			text = c.Name + " does not run"
		}
		switch {
		case c.Restarts == 1:
			text += " (restarted once)"
		case c.Restarts > 1:
			text += fmt.Sprintf(" (restarted %d times)", c.Restarts)
		}
		if c.Waiting != "" {
			text += ": " + c.Waiting
		}
		words = append(words, text)
	}
	return orNone(strings.Join(words, "; "))
}

func (k *kipctl) steps(w io.Writer, e *adminapi.Explanation) {
	if e.Cell == nil || len(e.Cell.Status.Steps) == 0 {
		return
	}
	fmt.Fprint(w, "\nSteps:\n")
	var before apiv1.Step
	for i, s := range e.Cell.Status.Steps {
		took := ""
		if i > 0 {
			took = fmt.Sprintf("+%.3fs", s.Time.Sub(before.Time.Time).Seconds())
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", s.Time.UTC().Format(time.RFC3339), sanitize.Printable(s.Name), took)
		before = s
	}
}

// boot writes how the machine of the cell started, where a kernel was started for it.
func boot(w io.Writer, e *adminapi.Explanation) {
	if e.Cell == nil || e.Cell.Status.Boot == nil {
		return
	}
	b := e.Cell.Status.Boot
	fmt.Fprint(w, "\nBoot, since the kernel started, as the agent says:\n")
	var before time.Duration
	for _, part := range []struct {
		name string
		at   *metav1.Duration
	}{{"kernel", b.Kernel}, {"user space", b.UserSpace}, {"network", b.Network}, {"joined", b.Joined}, {"ready", b.Ready}} {
		if part.at == nil {
			continue
		}
		fmt.Fprintf(w, "  %s\t%.3fs\t+%.3fs\n", part.name, part.at.Seconds(), (part.at.Duration - before).Seconds())
		before = part.at.Duration
	}
}

func (k *kipctl) console(w io.Writer, e *adminapi.Explanation) {
	if e.Cell == nil || e.Cell.Console == nil {
		return
	}
	c := e.Cell.Console
	fmt.Fprint(w, "\nConsole of the machine:\n")
	for _, text := range append(c.Lines, adminapi.NonEmpty(c.Error)...) {
		fmt.Fprintf(w, "  %s\n", sanitize.Printable(text))
	}
	if len(c.Lines) == 0 && c.Error == "" {
		fmt.Fprint(w, "  nothing yet, or the cloud does not show it yet\n")
	}
}

func (k *kipctl) placement(w io.Writer, e *adminapi.Explanation) {
	p := e.Placement
	if p == nil {
		return
	}
	fmt.Fprint(w, "\nPlacement:\n")
	if p.Need != "" {
		fmt.Fprintf(w, "  needs %s\n", p.Need)
	}
	if p.Standby != "" {
		fmt.Fprintf(w, "  standby cell %s would be taken\n", p.Standby)
	}
	for i, c := range p.Candidates {
		cost := price(cmp.Or(c.CostPerHour, c.PricePerHour))
		if parts := parts(c); parts != "" {
			cost += " (" + parts + ")"
		}
		fmt.Fprintf(w, "  %d. %s\t%s\t%s\t%s\t%s\n", i+1, c.InstanceType, c.Zone, c.LaunchType, cost, c.Why)
	}
	if p.Rank > 0 {
		fmt.Fprintf(w, "  this is rank %d of %d\n", p.Rank, p.Ranks)
	}
	for _, b := range p.Better {
		fmt.Fprintf(w, "  rank %d: %s\n", b.Rank, sanitize.Printable(b.Why))
	}
	if !p.MovesBack.IsZero() {
		if left := p.MovesBack.Sub(k.clock.Now()); left > 0 {
			fmt.Fprintf(w, "  the pod is moved back in %s, if a better rank can be launched then\n", duration.HumanDuration(left))
		} else {
			fmt.Fprintln(w, "  the pod is moved back when a better rank can be launched")
		}
	}
	if !p.PricesTold.IsZero() && len(p.Candidates) > 0 {
		fmt.Fprintf(w, "  prices on demand were told %s ago, on %s\n", duration.HumanDuration(k.clock.Since(p.PricesTold)),
			p.PricesTold.UTC().Format(time.DateOnly))
	}
	for _, r := range p.Rejected {
		fmt.Fprintf(w, "  not %s: %s\n", sanitize.Printable(r.What), sanitize.Printable(r.Why))
	}
	if p.Error != "" {
		fmt.Fprintf(w, "  %s\n", sanitize.Printable(p.Error))
	}
}

func (k *kipctl) events(w io.Writer, e *adminapi.Explanation) {
	if len(e.Events) == 0 {
		return
	}
	fmt.Fprint(w, "\nEvents:\n")
	for _, ev := range e.Events {
		age := duration.HumanDuration(k.clock.Since(ev.Time))
		if ev.Count > 1 {
			age += fmt.Sprintf(" (x%d)", ev.Count)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", age, sanitize.Printable(ev.Type), sanitize.Printable(ev.Reason), sanitize.Printable(ev.Message))
	}
}

// parts says of what the cost of a candidate is made, "" where it is the machine's price.
func parts(c adminapi.Candidate) string {
	var with []string
	for _, part := range []struct{ name, price string }{{"burst", c.BurstPerHour}, {"disk", c.DiskPerHour}, {"address", c.AddressPerHour}} {
		if part.price != "" {
			with = append(with, part.name+" "+part.price)
		}
	}
	if with == nil {
		return ""
	}
	return strings.Join(append([]string{"machine " + c.PricePerHour}, with...), ", ")
}

func price(perHour string) string {
	switch perHour {
	case "":
		return ""
	case apiv1.Unknown:
		return "price unknown"
	}
	return "$" + perHour + "/h"
}
