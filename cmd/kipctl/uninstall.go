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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/kippods"
)

// kipContainer is Kip's container in its pod.
const kipContainer = kippods.Container

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
		Short: "End what Kip has made in the cluster and the cloud, before Kip is uninstalled, if nothing runs on its nodes",
		Long: "End what Kip has made in the cluster and the cloud, before Kip is uninstalled: Kip ends no instance because it is stopped.\n\n" +
			"It fails, and changes nothing, if pods with machines, or cells, are on the nodes. Else, and with --force, it runs\n" +
			"kipctl cleanup --yes in Kip's pod, which deletes every pod on the nodes, without regard to PodDisruptionBudgets, ends all\n" +
			"instances, and removes the nodes. The chart runs this command before helm uninstall.",
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

// withoutCheck is how a Kip that cannot clean up is uninstalled all the same.
const withoutCheck = "helm uninstall --no-hooks uninstalls without this check"

func (k *kipctl) uninstall(ctx context.Context, c *cluster, namespace string, u uninstallation) error {
	left, err := c.onNodes(ctx, u.nodes, u.force)
	if err != nil {
		return err
	}
	pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: u.selector})
	if err != nil {
		return fmt.Errorf("list Kip's pods in namespace %s: %w", namespace, err)
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { // others are Jobs of the chart
		return p.Status.Phase != corev1.PodRunning ||
			!slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == kipContainer })
	})
	switch {
	case len(left) > 0 && !u.force:
		pod := "KIP-POD"
		if len(pods.Items) > 0 {
			pod = pods.Items[0].Name
		}
		return fmt.Errorf("%s: their instances would run on without Kip: delete the pods and empty the standby pools, "+
			"or end all by kubectl exec -n %s %s -- /kipctl cleanup --yes. Then uninstall again; %s", named(left), namespace, pod, withoutCheck)
	case len(pods.Items) == 0 && len(left) > 0:
		return fmt.Errorf("no pod of Kip runs in namespace %s (--selector %s), so nobody ends %s: "+
			"start Kip, or end the instances by kipctl cleanup -f provider.yaml; %s", namespace, u.selector, named(left), withoutCheck)
	case len(pods.Items) == 0:
		fmt.Fprintf(k.err, "No pod of Kip runs, and nothing runs on node %s. The node stays, and what Kip has made in the cloud: "+
			"kipctl cleanup -f provider.yaml shows it.\n", u.nodes[0])
		return nil
	}
	// The socket is that of the pod that leads.
	var errs []error
	for i := range pods.Items {
		pod := &pods.Items[i]
		fmt.Fprintf(k.err, "Cleaning up by pod %s/%s.\n", pod.Namespace, pod.Name)
		err := c.exec(ctx, pod.Namespace, pod.Name, []string{"/kipctl", "cleanup", "--yes", "--timeout=" + u.timeout.String()}, k.err, k.err)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("run kipctl cleanup in pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	return fmt.Errorf("%w; %s", errors.Join(errs...), withoutCheck)
}

// onNodes names the pods with machines on virtual nodes, and the cells of their Kip. Without the Cell resource it fails,
// unless it may be blind.
func (c *cluster) onNodes(ctx context.Context, nodes []string, blind bool) (left []string, err error) {
	var controllers []string
	for _, name := range nodes {
		found, err := c.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("list the pods of node %s: %w", name, err)
		}
		for i := range found.Items {
			pod := &found.Items[i]
			ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			if !ended && apiv1.WithoutMachine(pod) == nil {
				left = append(left, fmt.Sprintf("pod %s/%s", pod.Namespace, pod.Name))
			}
		}
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		if id := node.GetLabels()[apiv1.LabelController]; err == nil && id != "" {
			controllers = append(controllers, id)
		}
	}
	all, err := c.cells(ctx)
	if err != nil && !blind {
		return nil, fmt.Errorf("see which cells run: %w: run kipctl crd update, and wait until Kip shows its cells; %s", err, withoutCheck)
	}
	for _, cell := range all {
		ours := slices.Contains(nodes, cell.Status.Node) || slices.Contains(controllers, cell.Status.ControllerID)
		if ours && cell.Status.Phase != apiv1.Gone {
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

// execIn returns what runs a command in Kip's container of a pod, and writes what it prints and its messages.
func execIn(config *rest.Config, client rest.Interface) execFunc {
	return func(ctx context.Context, namespace, pod string, command []string, out, messages io.Writer) error {
		config := rest.CopyConfig(config)
		config.Timeout = 0 // ctx bounds it
		url := client.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
			Container: kipContainer,
			Command:   command,
			Stdout:    true,
			Stderr:    true,
		}, scheme.ParameterCodec).URL()
		executor, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
		if err != nil {
			return err
		}
		return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: messages})
	}
}

type execFunc func(ctx context.Context, namespace, pod string, command []string, out, messages io.Writer) error
