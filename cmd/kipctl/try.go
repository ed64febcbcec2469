package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/doctor"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/kippods"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/quote"
	"github.com/elotl/kip/internal/trial"
	"github.com/elotl/kip/internal/version"
)

const (
	// tryImage is busybox, in a registry that asks for no account.
	tryImage = "public.ecr.aws/docker/library/busybox:1.36"
	// tryLargeImage is about 1 GB when it is unpacked: docs/try.md.
	tryLargeImage = "public.ecr.aws/docker/library/python:3.12"
	// tryLog bounds what is read of the log of a pod.
	tryLog = 4 << 10
)

// tryFlags are those of kipctl try.
type tryFlags struct {
	trial.Options
	yes, clean bool
}

func try(k *kipctl) *cobra.Command {
	var f tryFlags
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Run a few pods in this cluster and its cloud, for less than a dollar, and report what works",
		Long: "Run a few pods in this cluster and its cloud, for less than a dollar, and report what works: what only a cloud can show.\n\n" +
			"It shows what that may cost at most, and asks. All that it makes is in one namespace, whose name begins with kip-try-. It\n" +
			"removes all of it, also when it is interrupted, and asks the cluster, and Kip about its cloud, until both have nothing of it.\n" +
			"If kipctl is killed, its pods end by themselves, and the cluster removes them after an hour; the next kipctl try, or\n" +
			"kipctl try --clean, which asks first, removes all at once. One trial runs in a cluster at a time.\n\n" +
			"Attach the report to a bug: kipctl try --yes > report.txt, or with -o json. It has names, addresses and IDs of what the\n" +
			"trial made, and no secrets. A step that lacks something is \"not tried\", never \"ok\". The exit status is not 0 if a step\n" +
			"failed, if anything is left, or if it is not known whether anything is.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return k.try(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.yes, "yes", false, "do not ask")
	flags.BoolVar(&f.clean, "clean", false, "try nothing: list what trials have left, ask, and remove it")
	flags.StringVar(&f.Image, "image", tryImage, "`name` of an image with the shell, httpd, nc and wget of busybox")
	flags.StringVar(&f.LargeImage, "large-image", tryLargeImage, "`name` of an image of about 1 GB, with a shell")
	flags.StringVar(&f.Endpoint, "endpoint", "public.ecr.aws:443", "`HOST:PORT` outside of the cluster, which a pod connects to")
	flags.StringVar(&f.PublicZone, "public-zone", "", "`zone` in which the subnet of cells is public (default: one that Kip knows)")
	flags.StringVar(&f.PrivateZone, "private-zone", "", "`zone` in which the subnet of cells is private (default: one that Kip knows)")
	flags.StringVar(&f.StorageClass, "storage-class", "", "`name` of the StorageClass of the volume (default: one that works on cells)")
	flags.Float64Var(&f.MaxPricePerHour, "max-price-per-hour", 0.08, "`dollars` that one instance may cost an hour, disk and address included")
	flags.StringSliceVar(&f.Skip, "skip", nil, "`name` of a step to leave out; may be given several times")
	return cmd
}

func (k *kipctl) try(ctx context.Context, f tryFlags) error {
	c, err := k.connect(k.config())
	if err != nil {
		return err
	}
	t, err := trial.New(trial.Config{
		Cluster: trial.Cluster{
			Kube:     c.kube,
			Cells:    c.plainCells,
			Logs:     c.log,
			Holdings: func(ctx context.Context) ([]adminapi.Holdings, error) { return k.holdingsOf(ctx, c) },
			Subnets:  func(ctx context.Context) ([]finding.Subnet, error) { return k.subnets(ctx, c) },
			DryRun: func(ctx context.Context, instanceTypes []string) ([]finding.Finding, error) {
				return k.dryRun(ctx, c, instanceTypes)
			},
			Catalogue: c.catalogue(ctx),
		},
		Options: f.Options,
		ID:      trial.NewID(),
		Kipctl:  version.String(),
		Clock:   k.waits,
		Say:     k.say,
	})
	if err != nil {
		return err
	}
	if f.clean {
		return k.cleanTrials(ctx, t, f.yes)
	}
	plan, err := t.Plan(ctx)
	if len(plan.Price.Steps) > 0 {
		if err := plan.Price.Text(plain{k.err}); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if len(plan.Left) > 0 {
		fmt.Fprintf(k.err, "An earlier trial has left this, which is removed first, also if that trial still runs: %s\n",
			adminapi.Some(plan.Left))
	}
	if !f.yes && !k.confirmed(fmt.Sprintf("Begin, for at most $%.2f? Type yes: ", plan.Price.AtMost)) {
		return errors.New("nothing was done: type yes, or add --yes")
	}
	// An interrupt ends the steps, and the trial still cleans up. A second one ends kipctl.
	steps, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	defer context.AfterFunc(ctx, func() {
		signal.Reset()
		stop(errors.New("interrupted"))
		k.say("interrupted: cleaning up; interrupt again to leave that to kipctl try --clean")
	})()
	r := t.Run(steps)
	if err := k.print(r, r.Text); err != nil {
		return err
	}
	if err := r.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: not all steps were tried")
	}
	return nil
}

// cleanTrials removes what trials have left.
func (k *kipctl) cleanTrials(ctx context.Context, t *trial.Trial, yes bool) error {
	if !yes {
		remains, err := t.Remains(ctx)
		if err != nil {
			return err
		}
		for _, name := range remains {
			fmt.Fprintf(k.err, "to be removed: %s\n", name)
		}
		if len(remains) > 0 && !k.confirmed("Remove this, also if a trial still runs? Type yes: ") {
			return errors.New("nothing was removed: type yes, or add --yes")
		}
	}
	left := t.Clean(ctx)
	if err := k.print(left, left.Text); err != nil {
		return err
	}
	return trial.Report{Left: left}.Err()
}

// confirmed asks a person.
func (k *kipctl) confirmed(question string) bool {
	fmt.Fprint(k.err, question)
	answer, err := bufio.NewReader(k.in).ReadString('\n')
	if err != nil {
		fmt.Fprintln(k.err)
	}
	return strings.TrimSpace(answer) == "yes"
}

// plainCells are the Cells alone.
func (c *cluster) plainCells(ctx context.Context) ([]apiv1.Cell, error) {
	all, err := c.cells(ctx)
	cells := make([]apiv1.Cell, len(all))
	for n := range all {
		cells[n] = all[n].Cell
	}
	return cells, err
}

// log is what the container of a pod has written, as far as it is short.
func (c *cluster) log(ctx context.Context, namespace, pod string) (string, error) {
	text, err := c.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{LimitBytes: new(int64(tryLog))}).DoRaw(ctx)
	return string(text), err
}

// catalogue has the embedded prices of the region of the virtual nodes; nil if there are none.
func (c *cluster) catalogue(ctx context.Context) *trial.Catalogue {
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: virtualNodes})
	if err != nil || len(nodes.Items) == 0 {
		return nil // the trial says so itself
	}
	labels := nodes.Items[0].Labels
	for _, name := range pricelists.Clouds() {
		list, err := pricelists.Open(name)
		if err != nil {
			continue
		}
		const gib = 1 << 30
		prices, err := quote.In(list, labels[corev1.LabelTopologyRegion], quote.Options{
			Arch:                cmp.Or(labels[corev1.LabelArchStable], "amd64"),
			DiskBytes:           5 * gib, // the defaults of provider.yaml
			ReservedMemoryBytes: gib / 8,
		})
		if err != nil {
			continue
		}
		return &trial.Catalogue{
			Region:          prices.Region,
			AsOf:            prices.AsOf,
			DiskPerGiBMonth: prices.Rates.DiskPerGiBMonth,
			AddressPerHour:  prices.Rates.AddressPerHour,
			Quote:           func(pod *corev1.Pod) (trial.Quote, bool) { return quoted(prices, pod) },
			Types: func(pod *corev1.Pod) []string {
				all := prices.Types(unbounded(pod))
				return all[:min(len(all), mostTried)]
			},
		}
	}
	return nil
}

// mostTried is of how many types EC2 is asked whether it offers one, the cheapest first.
const mostTried = 20

// unbounded is a pod that may cost anything: what it may cost is compared with what it does.
func unbounded(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	delete(pod.Annotations, placement.AnnotationMaxPrice)
	return pod
}

// quoted is what the instance of a pod of a trial is expected to cost.
func quoted(prices *quote.Prices, pod *corev1.Pod) (trial.Quote, bool) {
	pod = unbounded(pod)
	best, err := prices.Best(pod)
	if err == nil && best.Unpriced {
		// Of spot instances the catalogue may have no price, and on demand they are not cheaper.
		delete(pod.Annotations, placement.AnnotationLaunchType)
		best, err = prices.Best(pod)
	}
	if err != nil {
		return trial.Quote{}, false
	}
	parts := quote.PartsOf(best)
	q := trial.Quote{InstanceType: best.InstanceType, Machine: parts.Machine, Disk: parts.Disk, Address: parts.Address}
	if q.Machine != nil {
		q.Machine = new(*q.Machine + parts.Burst)
	}
	return q, true
}

// maxAnswer bounds what a command in a pod may print: Kip's print some kilobytes.
const maxAnswer = 1 << 20

// answer is what a command in a pod prints. Whoever is in that pod prints what he likes.
type answer struct{ text bytes.Buffer }

func (a *answer) Write(p []byte) (int, error) {
	if a.text.Len()+len(p) > maxAnswer {
		return 0, fmt.Errorf("the pod answers with more than %d bytes", maxAnswer)
	}
	return a.text.Write(p)
}

// dryRun asks a Kip of the cluster, in its pod, whether its cloud would launch an instance of one of some types.
func (k *kipctl) dryRun(ctx context.Context, c *cluster, instanceTypes []string) ([]finding.Finding, error) {
	report, err := k.accountByKip(ctx, c, "--instance-type", strings.Join(instanceTypes, ","))
	if err != nil {
		return nil, err
	}
	var found, others []finding.Finding
	for _, r := range report.Results {
		switch {
		case r.Check == finding.DryRun:
			found = append(found, r.Finding)
		case r.Outcome == finding.Failed:
			others = append(others, r.Finding)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("it has no dry runs")
	}
	for n := range found {
		if found[n].Outcome == finding.NotChecked && len(others) > 0 {
			found[n].Message += ": " + others[0].Message
		}
	}
	return found, nil
}

// subnets asks a Kip of the cluster, in its pod, where it launches cells.
func (k *kipctl) subnets(ctx context.Context, c *cluster) (all []finding.Subnet, err error) {
	report, err := k.accountByKip(ctx, c)
	if err != nil {
		return nil, err
	}
	why := "it names none"
	for _, r := range report.Results {
		switch {
		case r.Subnet.ID != "":
			all = append(all, r.Subnet)
		case r.Outcome == finding.Failed:
			why = r.Message
		}
	}
	if len(all) == 0 {
		return nil, errors.New(why)
	}
	return all, nil
}

// accountByKip has a Kip of the cluster check its account, in its pod and so with its rights.
func (k *kipctl) accountByKip(ctx context.Context, c *cluster, more ...string) (report doctor.Report, err error) {
	command := append([]string{"/kipctl", "doctor", "--account", "-f", "/etc/kip/config/provider.yaml"}, more...)
	own := "run kipctl " + strings.Join(command[1:], " ") + " with Kip's provider.yaml and its rights"
	if _, named := k.socketPath(); named {
		return report, errors.New("--socket is of a Kip in no pod: " + own)
	}
	pods, err := k.kipPods(ctx, c, own)
	if err != nil {
		return report, err
	}
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: virtualNodes})
	if err != nil {
		return report, fmt.Errorf("list virtual nodes: %w", err)
	}
	command = append(command, "-o", "json")
	ids := map[string]bool{}
	for _, n := range nodes.Items {
		ids[n.Labels[apiv1.LabelController]] = true
	}
	for id := range ids {
		if len(ids) == 1 && id != "" { // else whose pod it is is not known
			command = append(command, "--controller", id)
		}
	}
	return report, c.ask(ctx, &pods[0], command, &report)
}

// holdingsOf asks each Kip of the cluster for what it has: by the socket that was named, or else in Kip's pods.
func (k *kipctl) holdingsOf(ctx context.Context, c *cluster) ([]adminapi.Holdings, error) {
	if path, named := k.socketPath(); named {
		h, err := adminapi.NewClient(path).Holdings(ctx)
		return []adminapi.Holdings{h}, err
	}
	pods, err := k.kipPods(ctx, c, "name Kip's socket with --socket")
	if err != nil {
		return nil, err
	}
	// The socket is that of the pod that leads: the others fail.
	var all []adminapi.Holdings
	var errs []error
	for n := range pods {
		var h adminapi.Holdings
		// It changes nothing without --yes.
		if err := c.ask(ctx, &pods[n], []string{"/kipctl", "cleanup", "-o", "json"}, &h); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, h)
	}
	if len(all) == 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

// ask runs a command in a pod of Kip, and reads the JSON that it prints. kipctl cleanup and kipctl doctor fail where they find something,
// and print it all the same.
func (c *cluster) ask(ctx context.Context, pod *corev1.Pod, command []string, into any) error {
	var out, messages answer
	failed := c.exec(ctx, pod.Namespace, pod.Name, command, &out, &messages)
	err := json.NewDecoder(&out.text).Decode(into)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		err = nil // it has printed nothing, and says why
	}
	return fmt.Errorf("run kipctl %s in pod %s/%s: %w", command[1], pod.Namespace, pod.Name,
		errors.Join(failed, err, errors.New(strings.TrimSpace(messages.text.String()))))
}

// kipPods are the pods of all Kips that run, or of those in --namespace. Without one the error says what to do instead.
func (k *kipctl) kipPods(ctx context.Context, c *cluster, instead string) ([]corev1.Pod, error) {
	found, err := kippods.Find(ctx, c.kube, k.namespace)
	if err != nil {
		return nil, err
	}
	runs := slices.DeleteFunc(found.Own, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	switch {
	case len(runs) > 0:
		return runs, nil
	case len(found.Own) == 0 && len(found.Others) > 0:
		other := found.Others[0]
		return nil, fmt.Errorf("no pod is known to be Kip's: pod %s/%s has the labels of Kip's pods, and %s. If you have installed Kip there, "+
			"add --namespace %s; else %s", other.Pod.Namespace, other.Pod.Name, other.Why, other.Pod.Namespace, instead)
	}
	return nil, errors.New("no pod of Kip runs in this cluster: " + instead)
}
