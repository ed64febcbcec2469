package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/sanitize"
)

func describe(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "describe CELL",
		Short: "Show all that the Cell resource has of a cell, and the Events of its pod",
		Long: "Show all that the Cell resource has of a cell, and the Events of its pod.\n\n" +
			"kipctl describe pod/POD is kipctl why POD.",
		Args: namesOneCell,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, kind := range []string{"pod/", "pods/", "po/"} {
				if pod, is := strings.CutPrefix(args[0], kind); is {
					w := why(k)
					w.SetContext(cmd.Context())
					return w.RunE(w, []string{pod})
				}
			}
			name, err := oneCell(args)
			if err != nil {
				return err
			}
			return k.describeCell(cmd.Context(), name)
		},
	}
}

func (k *kipctl) describeCell(ctx context.Context, name string) error {
	c, err := k.connect(k.config())
	if err != nil {
		return err
	}
	u, err := c.dynamic.Resource(apiv1.Resource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("cell %q not found", name)
	}
	if err != nil {
		return fmt.Errorf("get cell %s: %w", name, err)
	}
	one, err := toCell(u)
	if err != nil {
		return err
	}
	e := &adminapi.Explanation{Pod: one.Status.Pod, Cell: &adminapi.Cell{Name: one.Name, Status: one.Status}}
	if s := one.Status; len(s.Candidates)+len(s.RuledOut) > 0 {
		e.Placement = &adminapi.Placement{Candidates: s.Candidates}
		for _, r := range s.RuledOut {
			e.Placement.Rejected = append(e.Placement.Rejected, adminapi.Rejection{What: adminapi.Count(r.Types, "type"), Why: r.Why})
		}
	}
	if one.Status.Pod.UID != "" {
		if e.Events, err = c.events(ctx, one.Status.Pod.Namespace, one.Status.Pod.UID); err != nil {
			fmt.Fprintln(k.err, "Warning: without the Events of its pod:", err)
		}
	}
	return k.print(one.object, func(w io.Writer) error { return k.cellDescription(w, one, e) })
}

// cellDescription writes a cell for people.
func (k *kipctl) cellDescription(out io.Writer, c cell, e *adminapi.Explanation) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	s := c.Status
	line := func(name string, values ...string) {
		if text := strings.Join(adminapi.NonEmpty(values...), ", "); text != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, sanitize.Printable(text))
		}
	}
	line("Cell", c.Name)
	line("Phase", string(s.Phase))
	line("Age", k.age(c.CreationTimestamp))
	line("Waiting for", s.Waiting)
	line("Reason", s.Reason)
	line("Pod", orNone(podOf(s.Pod)))
	line("Node", s.Node)
	line("Instance", typeOf(s), s.Zone, price(s.PricePerHour), s.InstanceID)
	line("Machine address", s.ManagementIP)
	line("Pod address", s.IP, s.IPv6)
	if s.Attempt > 1 {
		line("Attempt", strconv.Itoa(s.Attempt))
	}
	if a := s.Agent; a != nil {
		line("Agent version", a.Version, a.SHA256)
	}
	line("Image", s.Image)
	line("Old", s.Old)
	line("Kip", s.ControllerID)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, part := range []func(io.Writer, *adminapi.Explanation){k.steps, boot, k.placement, k.events} {
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		part(w, e)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
