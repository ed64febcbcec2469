package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	apiv1 "github.com/elotl/kip/api/v1"
)

// mostNamed is how many pods or cells an error names.
const mostNamed = 10

// uninstallation is what "kipctl uninstall" is asked for.
type uninstallation struct {
	nodes    []string
	selector string
	force    bool
	timeout  time.Duration
}

func uninstall(k *kipctl) *cobra.Command {
	var u uninstallation
	cmd := &cobra.Command{
		Use:   "uninstall --node NAME[,NAME…]",
		Short: "Check that nothing runs on Kip's nodes, before Kip is uninstalled; --force ends what runs",
		Long: "Check that nothing runs on Kip's nodes, before Kip is uninstalled: Kip ends no instance because it is stopped.\n\n" +
			"It fails if pods with machines, or cells, are on the nodes. With --force it runs kipctl cleanup --yes in Kip's pod, which deletes\n" +
			"every pod on the nodes, without regard to PodDisruptionBudgets, and ends all instances. The chart runs this command before\n" +
			"helm uninstall.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(u.nodes) == 0 {
				return errors.New("--node is missing: it must name Kip's virtual nodes, such as kip-0")
			}
			c, err := k.connect(k.config())
			if err != nil {
				return err
			}
			namespace, err := k.podNamespace()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), u.timeout)
			defer cancel()
			return k.uninstall(ctx, c, namespace, u)
		},
	}
	cmd.Flags().StringSliceVar(&u.nodes, "node", nil, "`name` of a virtual node of this Kip; may be given several times")
	cmd.Flags().StringVar(&u.selector, "selector", "app.kubernetes.io/name=kip", "`labels` of Kip's pods, which are in --namespace")
	cmd.Flags().BoolVar(&u.force, "force", false, "end what runs on the nodes")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 15*time.Minute, "how long it may take")
	return cmd
}

func (k *kipctl) uninstall(ctx context.Context, c *cluster, namespace string, u uninstallation) error {
	left, err := c.onNodes(ctx, u.nodes)
	if err != nil {
		return err
	}
	if len(left) == 0 {
		fmt.Fprintf(k.err, "Nothing runs on %s.\n", strings.Join(u.nodes, ", "))
		return nil
	}
	if !u.force {
		return fmt.Errorf("%s: their instances would run on without Kip: delete the pods and empty the standby pools, "+
			"or set uninstall.force=true in the chart (--force)", named(left))
	}
	pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: u.selector})
	if err != nil {
		return fmt.Errorf("list Kip's pods in namespace %s: %w", namespace, err)
	}
	// The socket is that of the pod that leads.
	var errs []error
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning || pod.Spec.Containers[0].Name != "kip" { // another is a Job of the chart's
			continue
		}
		fmt.Fprintf(k.err, "Ending %s, by pod %s/%s.\n", named(left), pod.Namespace, pod.Name)
		err := c.exec(ctx, pod.Namespace, pod.Name, []string{"/kipctl", "cleanup", "--yes", "--timeout=" + u.timeout.String()}, k.err)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("run kipctl cleanup in pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	if len(errs) == 0 {
		return fmt.Errorf("no pod of Kip runs in namespace %s (--selector %s), so nobody ends %s: start Kip, or end the instances in the cloud",
			namespace, u.selector, named(left))
	}
	return errors.Join(errs...)
}

// onNodes names the pods with machines and the cells of virtual nodes.
func (c *cluster) onNodes(ctx context.Context, nodes []string) (left []string, err error) {
	for _, node := range nodes {
		found, err := c.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
		}
		for i := range found.Items {
			pod := &found.Items[i]
			ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			if !ended && apiv1.WithoutMachine(pod) == nil {
				left = append(left, fmt.Sprintf("pod %s/%s", pod.Namespace, pod.Name))
			}
		}
	}
	all, err := c.cells(ctx)
	if err != nil && !errors.Is(err, errNoCellResource) {
		return nil, err
	}
	for _, cell := range all {
		if slices.Contains(nodes, cell.Status.Node) && cell.Status.Phase != apiv1.Gone {
			left = append(left, "cell "+cell.Name)
		}
	}
	slices.SortFunc(left, func(a, b string) int { return -cmp.Compare(a, b) }) // pods first
	return left, nil
}

// named lists what is left, in bounded length.
func named(left []string) string {
	if n := len(left) - mostNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(left[:mostNamed], ", "), n)
	}
	return strings.Join(left, ", ")
}

// execIn returns what runs a command in the first container of a pod, and writes what it prints.
func execIn(config *rest.Config, client rest.Interface) execFunc {
	return func(ctx context.Context, namespace, pod string, command []string, out io.Writer) error {
		config := rest.CopyConfig(config)
		config.Timeout = 0 // ctx bounds it
		url := client.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
			Command: command,
			Stdout:  true,
			Stderr:  true,
		}, scheme.ParameterCodec).URL()
		executor, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
		if err != nil {
			return err
		}
		return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: out})
	}
}

type execFunc func(ctx context.Context, namespace, pod string, command []string, out io.Writer) error
