package trial

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
)

const (
	// cleansFor is how long a trial waits until nothing is left.
	cleansFor = 10 * time.Minute
	// betweenLooks is the least time between the two looks at a cloud that prove that nothing is left.
	betweenLooks = 2 * time.Second
)

// spaces are all namespaces of the cluster.
type spaces []corev1.Namespace

func (t *Trial) spaces(ctx context.Context) (spaces, error) {
	list, err := t.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	return list.Items, nil
}

// ofTrial reports whether a namespace is that of a trial: its name ends with the ID that is its label's value. A namespace that is gone
// has no label, but a Cell, a PersistentVolume or a disk may still have its name.
func (s spaces) ofTrial(name string) bool {
	id, prefixed := strings.CutPrefix(name, prefix)
	if !prefixed || !isID(id) {
		return false
	}
	at := slices.IndexFunc(s, func(n corev1.Namespace) bool { return n.Name == name })
	return at < 0 || s[at].Labels[Label] == id
}

// trials returns the namespaces of trials.
func (s spaces) trials() (found []corev1.Namespace) {
	for _, n := range s {
		if s.ofTrial(n.Name) {
			found = append(found, n)
		}
	}
	return found
}

// look returns all Cells, and enters those of this trial in the ledger.
func (t *Trial) look(ctx context.Context) ([]apiv1.Cell, error) {
	all, err := t.Cells(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.Status.Pod.Namespace == t.namespace {
			t.cells.enter(c, t.Clock.Now())
		}
	}
	return all, nil
}

func (l ledger) enter(c apiv1.Cell, now time.Time) {
	e := l[c.Name]
	if e == nil {
		e = &entry{}
		l[c.Name] = e
	}
	e.seen = now
	e.controller = c.Status.ControllerID
	if c.Status.InstanceID != "" {
		e.instance = c.Status.InstanceID
	}
	if dollars, err := strconv.ParseFloat(c.Status.PricePerHour, 64); err == nil {
		e.perHour = dollars
	}
	launched := slices.IndexFunc(c.Status.Steps, func(s apiv1.Step) bool {
		return s.Name == apiv1.StepGiven || s.Name == apiv1.StepLaunched
	})
	if e.since.IsZero() && launched >= 0 {
		e.since = c.Status.Steps[launched].Time.Time
	}
}

// Remains names what the cluster has of all trials, which Clean would remove. It names what is in a terminating namespace, too.
func (t *Trial) Remains(ctx context.Context) (names []string, err error) {
	spaces, err := t.spaces(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range spaces.trials() {
		names = append(names, "namespace "+n.Name)
		named, err := t.within(ctx, n.Name)
		if err != nil {
			return nil, err
		}
		names = append(names, named...)
	}
	volumes, err := t.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list PersistentVolumes: %w", err)
	}
	for _, v := range volumes.Items {
		if claim := v.Spec.ClaimRef; claim != nil && spaces.ofTrial(claim.Namespace) {
			names = append(names, fmt.Sprintf("PersistentVolume %s of claim %s/%s", v.Name, claim.Namespace, claim.Name))
		}
	}
	cells, err := t.look(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range cells {
		s := c.Status
		if !spaces.ofTrial(s.Pod.Namespace) {
			continue
		}
		names = append(names, strings.TrimSpace(fmt.Sprintf("Cell %s of pod %s, %s %s", c.Name, s.Pod, s.Phase, s.InstanceID)))
	}
	return names, nil
}

// within names what costs money in a namespace.
func (t *Trial) within(ctx context.Context, namespace string) (names []string, err error) {
	for _, k := range t.kinds(namespace) {
		found, err := k.list(ctx, "")
		if err != nil {
			return nil, fmt.Errorf("list what namespace %s has of kind %s: %w", namespace, k.name, err)
		}
		for _, o := range found {
			names = append(names, k.name+" "+namespace+"/"+o.Name)
		}
	}
	return names, nil
}

// Clean removes all trials, waits until nothing is left of them, and says what is. When ctx is interrupted it goes on all the same.
func (t *Trial) Clean(ctx context.Context) Left {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleansFor, fmt.Errorf("not within %s", cleansFor))
	defer cancel()
	l := Left{Names: []string{}, Looked: []string{}, NotKnown: []string{}}
	if len(t.nodes) == 0 {
		if err := t.see(ctx); err != nil {
			l.NotKnown = append(l.NotKnown, err.Error())
			return l
		}
	}
	t.Say("removing what the trial has made")
	var names []string
	err := t.wait(ctx, func(ctx context.Context) (string, error) {
		found, err := t.Remains(ctx)
		if err == nil {
			names = found
			err = t.deleteNamespaces(ctx)
		}
		if err != nil {
			return "an answer: " + err.Error(), nil
		}
		if len(found) == 0 {
			return "", nil
		}
		return "the end of " + strings.Join(found, ", "), nil
	})
	if err != nil && len(names) == 0 {
		l.NotKnown = append(l.NotKnown, err.Error())
	}
	l.Names = append(l.Names, names...)
	if err == nil {
		l.Looked = append(l.Looked, "the cluster has no namespace, pod, Service, claim, PersistentVolume and Cell of a trial")
	}
	t.cleanOfCloud(ctx, &l)
	return l
}

// deleteNamespaces deletes the namespaces of trials. Their UIDs keep it from deleting one that has come since with the same name.
func (t *Trial) deleteNamespaces(ctx context.Context) error {
	spaces, err := t.spaces(ctx)
	if err != nil {
		return err
	}
	for _, n := range spaces.trials() {
		if err := deleted(n.ObjectMeta, func() error {
			return t.Kube.CoreV1().Namespaces().Delete(ctx, n.Name, metav1.DeleteOptions{
				Preconditions: metav1.NewUIDPreconditions(string(n.UID)),
			})
		}); err != nil {
			return fmt.Errorf("delete namespace %s: %w", n.Name, err)
		}
	}
	return nil
}

// cleanOfCloud looks until each Kip has shown twice that its cloud has no instance and no disk of a trial.
func (t *Trial) cleanOfCloud(ctx context.Context, l *Left) {
	t.Say("asking Kip what its cloud has, twice")
	var names, notAsked []string
	looks, seen := 0, map[string]bool{}
	var looked time.Time
	err := t.wait(ctx, func(ctx context.Context) (string, error) {
		if looks > 0 && t.Clock.Since(looked) < betweenLooks {
			return "the next look at the cloud", nil
		}
		now, missing, err := t.ofCloud(ctx, seen)
		if err != nil {
			return "", err
		}
		names, notAsked = now, missing
		if looked = t.Clock.Now(); len(names) > 0 || looks == 0 {
			looks = 1
			return "the cloud to show nothing twice; it shows " + orNothing(names), nil
		}
		return "", nil
	})
	if err != nil && len(names) == 0 {
		l.NotKnown = append(l.NotKnown, "instances and disks of the cloud: "+err.Error())
		return
	}
	l.Names = append(l.Names, names...)
	for _, controller := range notAsked {
		l.NotKnown = append(l.NotKnown, "instances and disks of the cloud: the Kip with controller ID "+controller+" was not asked")
	}
	if err == nil && len(notAsked) == 0 {
		l.Looked = append(l.Looked, "Kip's lists of its cloud have shown no instance and no disk of a trial, twice")
	}
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// ofCloud names the instances and disks of trials that the clouds have, and the controllers of which no Kip was asked. An instance that no
// Cell tells of, and that was so at the look before, too, may be of a trial. unknown are those of that look.
func (t *Trial) ofCloud(ctx context.Context, unknown map[string]bool) (names, notAsked []string, err error) {
	all, err := t.Holdings(ctx)
	if err != nil {
		return nil, nil, err
	}
	cells, err := t.Cells(ctx)
	if err != nil {
		return nil, nil, err
	}
	spaces, err := t.spaces(ctx)
	if err != nil {
		return nil, nil, err
	}
	// By name and by instance: an instance of a batch is tagged with its cell after its launch.
	of := map[string]string{}
	for _, c := range cells {
		of[c.Name], of[c.Status.InstanceID] = c.Status.Pod.Namespace, c.Status.Pod.Namespace
	}
	for name, e := range t.cells {
		of[name], of[e.instance] = t.namespace, t.namespace
	}
	delete(of, "")
	before := maps.Clone(unknown)
	clear(unknown)
	controllers := map[string]bool{}
	for _, h := range all {
		controllers[t.nodes[h.Node]] = true
		for _, i := range h.Instances {
			id, cell, _ := strings.Cut(i, " of ")
			namespace, known := of[id]
			if !known {
				namespace, known = of[cell]
			}
			unknown[id] = !known
			if spaces.ofTrial(namespace) || !known && before[id] {
				names = append(names, "instance "+i)
			}
		}
		for _, d := range h.Disks {
			if spaces.ofTrial(namespaceOf(d)) {
				names = append(names, "disk "+d)
			}
		}
	}
	needed := map[string]bool{}
	for _, e := range t.cells {
		needed[e.controller] = true
	}
	if len(needed) == 0 {
		for _, controller := range t.nodes {
			needed[controller] = true
		}
	}
	for _, controller := range slices.Sorted(maps.Keys(needed)) {
		if !controllers[controller] {
			notAsked = append(notAsked, controller)
		}
	}
	return names, notAsked, nil
}

// namespaceOf returns the namespace of a disk's claim. Kip names a disk last by NAMESPACE/CLAIM.
func namespaceOf(disk string) string {
	namespace, _, _ := strings.Cut(disk[strings.LastIndex(disk, " ")+1:], "/")
	return namespace
}
