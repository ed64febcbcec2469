package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/sanitize"
)

func getCells(k *kipctl) *cobra.Command {
	var all bool
	var worst uint
	cmd := &cobra.Command{
		Use:     "cells [NAME...]",
		Aliases: []string{"cell", "cl"},
		Short:   "List cells: every one, or those of the pods in a namespace (-n)",
		RunE: func(cmd *cobra.Command, names []string) error {
			if all && k.namespace != "" {
				return errBothNamespaces
			}
			if cmd.Flags().Changed("worst") {
				return k.worstCells(cmd.Context(), names, worst)
			}
			c, err := k.connect(k.config())
			if err != nil {
				return err
			}
			found, err := c.cells(cmd.Context())
			if err != nil {
				return err
			}
			for _, name := range names {
				if !slices.ContainsFunc(found, func(c cell) bool { return c.Name == name }) {
					return fmt.Errorf("cell %q not found", name)
				}
			}
			var cells []cell
			var objects []any
			for _, c := range found {
				if k.namespace != "" && c.Status.Pod.Namespace != k.namespace || len(names) > 0 && !slices.Contains(names, c.Name) {
					continue
				}
				cells = append(cells, c)
				objects = append(objects, c.object)
			}
			if len(names) == 1 && len(objects) == 1 {
				return k.print(objects[0], func(w io.Writer) error { return k.cellTable(w, cells) })
			}
			return k.print(listOf(objects), func(w io.Writer) error { return k.cellTable(w, cells) })
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "those of all namespaces (the default without -n)")
	cmd.Flags().UintVar(&worst, "worst", 0, "show what the `N` cells have asked of Kip that cost it most (10 without a number), from its local socket")
	cmd.Flags().Lookup("worst").NoOptDefVal = "10"
	return cmd
}

// worstCells lists what cells have asked of their API, the dearest first: who is root on
// a cell shows there.
func (k *kipctl) worstCells(ctx context.Context, names []string, most uint) error {
	path, _ := k.socketPath()
	all, err := adminapi.NewClient(path).Usage(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(u adminapi.CellUsage) bool { return u.Cell == name }) {
			return fmt.Errorf("cell %q not found", name)
		}
	}
	all = slices.DeleteFunc(all, func(u adminapi.CellUsage) bool {
		return k.namespace != "" && u.Pod.Namespace != k.namespace || len(names) > 0 && !slices.Contains(names, u.Cell)
	})
	all = all[:min(uint(len(all)), most)]
	return k.print(all, func(w io.Writer) error {
		if len(all) == 0 {
			fmt.Fprintln(k.err, "No cells found.")
			return nil
		}
		t := table(w, "NAME", "POD", "WORK", "REQUESTS", "SENT", "ANSWERED", "REFUSED", "BY")
		for _, u := range all {
			by := make([]string, 0, len(u.RefusedBy))
			for _, limit := range slices.Sorted(maps.Keys(u.RefusedBy)) {
				by = append(by, fmt.Sprintf("%s %d", limit, u.RefusedBy[limit]))
			}
			t.row(u.Cell, podOf(u.Pod), fmt.Sprintf("%.1fs", u.WorkedSeconds), strconv.FormatUint(u.Requests, 10), kibibytes(u.SentBytes),
				kibibytes(u.AnsweredBytes), strconv.FormatUint(u.Refused(), 10), strings.Join(by, ", "))
		}
		return t.w.Flush()
	})
}

func kibibytes(n uint64) string { return fmt.Sprintf("%dKi", (n+1<<10-1)>>10) }

var errBothNamespaces = fmt.Errorf("--namespace and --all-namespaces exclude each other")

func (k *kipctl) cellTable(w io.Writer, cells []cell) error {
	if len(cells) == 0 {
		fmt.Fprintln(k.err, "No cells found.")
		return nil
	}
	t := table(w, "NAME", "PHASE", "POD", "TYPE", "ZONE", "PRICE/H", "IP", "AGE", "REASON")
	for _, c := range cells {
		s, reason := c.Status, c.Status.Reason
		if s.Phase == apiv1.Bound && s.Waiting != "" {
			reason = s.Waiting // its end is held back
		}
		t.row(c.Name, string(s.Phase), podOf(s.Pod), typeOf(s), s.Zone, s.PricePerHour, s.IP, k.age(c.CreationTimestamp), reason)
	}
	return t.w.Flush()
}

func podOf(r apiv1.PodReference) string {
	if r.Name == "" {
		return ""
	}
	return r.String()
}

// typeOf is the instance type, marked if it is not on demand.
func typeOf(s apiv1.CellStatus) string {
	if s.InstanceType == "" || s.LaunchType == "" || s.LaunchType == apiv1.OnDemand {
		return s.InstanceType
	}
	return s.InstanceType + " (" + strings.ToLower(s.LaunchType) + ")"
}

func getPods(k *kipctl) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "pods [NAME...]",
		Aliases: []string{"pod", "po"},
		Short:   "List the pods on virtual nodes, with their cells",
		RunE: func(cmd *cobra.Command, names []string) error {
			if all && k.namespace != "" {
				return errBothNamespaces
			}
			c, err := k.connect(k.config())
			if err != nil {
				return err
			}
			namespace := metav1.NamespaceAll
			if !all {
				if namespace, err = k.podNamespace(); err != nil {
					return err
				}
			}
			pods, err := c.pods(cmd.Context(), namespace)
			if err != nil {
				return err
			}
			for _, name := range names {
				if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == name }) {
					return fmt.Errorf("pod %q not found on a virtual node%s", name, in(namespace))
				}
			}
			if len(names) > 0 {
				pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !slices.Contains(names, p.Name) })
			}
			for i := range pods { // a list leaves it out
				pods[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
			}
			show := func(w io.Writer) error {
				if len(pods) == 0 {
					fmt.Fprintf(k.err, "No pods found on virtual nodes%s.\n", in(namespace))
					return nil
				}
				cells, err := c.cells(cmd.Context())
				if err != nil {
					fmt.Fprintln(k.err, "Warning: cells are not shown:", err)
				}
				return k.podTable(w, pods, newestByPod(cells), namespace)
			}
			if len(names) == 1 && len(pods) == 1 {
				return k.print(pods[0], show)
			}
			return k.print(listOf(pods), show)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "in all namespaces")
	return cmd
}

func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return fmt.Sprintf(" in namespace %q", namespace)
}

func (k *kipctl) podTable(w io.Writer, pods []corev1.Pod, cells map[types.UID]cell, namespace string) error {
	columns := []string{"NAME", "STATUS", "CELL", "TYPE", "PRICE/H", "IP", "NODE", "AGE"}
	if namespace == "" {
		columns = append([]string{"NAMESPACE"}, columns...)
	}
	t := table(w, columns...)
	for _, p := range pods {
		c := cells[p.UID]
		row := []string{p.Name, podStatus(&p), c.Name, typeOf(c.Status), c.Status.PricePerHour, p.Status.PodIP, p.Spec.NodeName,
			k.age(p.CreationTimestamp)}
		if namespace == "" {
			row = append([]string{p.Namespace}, row...)
		}
		t.row(row...)
	}
	return t.w.Flush()
}

// podStatus is the pod's phase, or what says more.
func podStatus(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "Terminating"
	}
	if p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning {
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
				return w.Reason
			}
		}
	}
	return cmp.Or(p.Status.Reason, string(p.Status.Phase))
}

func (k *kipctl) age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(k.clock.Since(t.Time))
}

func getStandby(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "standby",
		Short: "List the standby pools, from Kip's local socket",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			pools, err := adminapi.NewClient(path).Standby(cmd.Context())
			if err != nil {
				return err
			}
			return k.print(pools, func(w io.Writer) error {
				if len(pools) == 0 {
					fmt.Fprintln(k.err, "No standby pools: provider.yaml has no cells.standbyCells.")
					return nil
				}
				t := table(w, "NAME", "WANT", "READY", "BOOTING", "WHY")
				for _, p := range pools {
					t.row(p.Name, strconv.Itoa(p.Want), strconv.Itoa(p.Ready), strconv.Itoa(p.Booting), p.Why)
				}
				return t.w.Flush()
			})
		},
	}
}

func getCapacity(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "capacity",
		Short: "List what the cloud is out of, from Kip's local socket",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			shortages, err := adminapi.NewClient(path).Capacity(cmd.Context())
			if err != nil {
				return err
			}
			return k.print(shortages, func(w io.Writer) error {
				if len(shortages) == 0 {
					fmt.Fprintln(k.err, "Nothing is known to be out of capacity.")
					return nil
				}
				t := table(w, "TYPE", "ZONE", "SUBNET", "LAUNCH", "TRIED AGAIN IN", "WHY")
				for _, s := range shortages {
					all := func(s string) string { return cmp.Or(s, "all") }
					t.row(all(typesOf(s)), all(s.Zone), all(s.Subnet), all(s.LaunchType), duration.HumanDuration(s.Until.Sub(k.clock.Now())), s.Why)
				}
				return t.w.Flush()
			})
		},
	}
}

// typesOf says of which types there is a shortage; "" for all.
func typesOf(s adminapi.Shortage) string {
	types := s.InstanceType
	if s.Family != "" {
		types = strings.TrimPrefix(types+", family "+s.Family, ", ")
	}
	if s.LeastMilliCPU > 0 {
		types += fmt.Sprintf(", from %s CPU", resource.NewMilliQuantity(s.LeastMilliCPU, resource.DecimalSI))
	}
	return types
}

// rows writes a table as kubectl does.
type rows struct{ w *tabwriter.Writer }

func table(w io.Writer, columns ...string) rows {
	t := rows{tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)}
	t.row(columns...)
	return t
}

func (t rows) row(cells ...string) {
	for i := range cells {
		cells[i] = sanitize.Printable(orNone(cells[i]))
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t")) // a failure stays in w until Flush
}
