package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/kippods"
)

const (
	// askFor bounds the questions to a cluster that may be gone.
	askFor = 15 * time.Second
	// leaseTime is how long a node's lease holds (nodeutil.DefaultLeaseDuration of Virtual Kubelet, as a kubelet's).
	leaseTime = 40 * time.Second
	// labelsOfKip select what Kip's chart and manifests make, and labelsOfPods its pods and the claims of its StatefulSet, which
	// Kubernetes labels as the pods.
	labelsOfKip, labelsOfPods = "app.kubernetes.io/name=kip", kippods.Labels
)

// leftover is what is left of a Kip in its cluster, of one kind.
type leftover struct {
	Kind  string   `json:"kind"`
	Names []string `json:"names"`
	// Command removes it.
	Command string `json:"command"`
}

// clusterOutside is the cluster of the kubeconfig, as somebody sees it who cleans up after a Kip.
type clusterOutside struct {
	c          *cluster // nil if there is none to ask
	clock      clock.PassiveClock
	controller string
	kipGone    bool // a person says that the Kip is gone
	// unknown says why the cluster could not be asked at first; "" if it could.
	unknown string
	// answered reports whether it has ever listed its virtual nodes.
	answered bool
	// nodes are the virtual nodes of each controller, and cells reports whether there is a Cell of this one.
	nodes map[string][]string
	cells bool
	// left is what is there of the Kip, and notAsked what could not be asked.
	left     []leftover
	notAsked []string
	// renewed is when each lease was renewed, as it was seen first.
	renewed map[string]time.Time
}

var _ cleanup.Watch = (*clusterOutside)(nil)

// lookAtCluster asks the cluster of the kubeconfig what it has of a controller.
func (k *kipctl) lookAtCluster(ctx context.Context, asked outside) *clusterOutside {
	o := &clusterOutside{
		clock:      k.clock,
		controller: asked.controller,
		kipGone:    asked.kipGone,
		nodes:      map[string][]string{},
		left:       []leftover{},
		notAsked:   []string{},
		renewed:    map[string]time.Time{},
	}
	c, err := k.connect(k.config())
	if err != nil {
		o.unknown = err.Error()
		return o
	}
	o.c = c
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	list, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: apiv1.LabelController})
	if err != nil {
		o.unknown = fmt.Sprintf("list its virtual nodes: %v", err)
		return o
	}
	o.answered = true
	for _, n := range list.Items {
		id := n.Labels[apiv1.LabelController]
		o.nodes[id] = append(o.nodes[id], n.Name)
	}
	if o.controller != "" {
		o.leftovers(ctx)
	}
	return o
}

// nodesOf are the virtual nodes of a controller.
func (o *clusterOutside) nodesOf(controller string) []string {
	if all := o.nodes[controller]; all != nil {
		return all
	}
	return []string{}
}

// mayEnd refuses while only a person can say that the Kip is gone, and none has.
func (o *clusterOutside) mayEnd(ctx context.Context, asked outside) error {
	const gone = "if this Kip is gone for good, add --kip-gone"
	switch {
	case asked.kipGone:
		return nil
	case o.unknown != "":
		return fmt.Errorf("the cluster does not tell whether this Kip runs: %s; %s", o.unknown, gone)
	case len(o.nodesOf(o.controller)) == 0 && !o.cells:
		return fmt.Errorf("the cluster of your kubeconfig has no node and no Cell of controller %s. This Kip may run in another cluster: "+
			"name its kubeconfig with --kubeconfig or --context; %s", o.controller, gone)
	}
	if err := o.Lives(ctx); err != nil {
		return err
	}
	found, err := o.workloads(ctx)
	if err != nil {
		return fmt.Errorf("the cluster does not tell whether this Kip may start again: %w; %s", err, gone)
	}
	if len(found) > 0 {
		return fmt.Errorf("this Kip may run or start again, although no node of it is Ready: the cluster has %s. Start Kip and run kipctl cleanup in "+
			"its pod, or uninstall it (helm uninstall --no-hooks); if these belong to another Kip, or %s", adminapi.Some(found), gone)
	}
	return nil
}

// workloads names the pods of all Kips, and the StatefulSets and Deployments that make them.
func (o *clusterOutside) workloads(ctx context.Context) (found []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	core, apps := o.c.kube.CoreV1(), o.c.kube.AppsV1()
	for _, kind := range []struct {
		kind
		selectors []string
	}{
		{kind{"pod", listed(core.Pods("").List)}, []string{labelsOfPods}}, // labelsOfKip has those of Helm's hooks, too
		{kind{"statefulset", listed(apps.StatefulSets("").List)}, []string{labelsOfKip, labelsOfPods}},
		{kind{"deployment", listed(apps.Deployments("").List)}, []string{labelsOfKip, labelsOfPods}},
	} {
		for _, selector := range kind.selectors {
			objects, err := kind.list(ctx, metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				return nil, fmt.Errorf("list %ss of Kip: %w", kind.name, err)
			}
			_ = meta.EachListItem(objects, func(object runtime.Object) error { // which no list of the API fails
				if m, err := meta.Accessor(object); err == nil && replicas(object) > 0 {
					found = append(found, kind.name+" "+m.GetNamespace()+"/"+m.GetName())
				}
				return nil
			})
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// replicas returns how many pods an object stands for.
func replicas(object runtime.Object) int32 {
	switch w := object.(type) {
	case *appsv1.StatefulSet:
		return ptr.Deref(w.Spec.Replicas, 1)
	case *appsv1.Deployment:
		return ptr.Deref(w.Spec.Replicas, 1)
	}
	return 1
}

// Lives implements cleanup.Watch. A node lives that is Ready, or whose lease is young or is renewed. With --kip-gone it ignores
// a cluster that has never answered.
func (o *clusterOutside) Lives(ctx context.Context) error {
	if o.c == nil {
		return nil // only --kip-gone gets here
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	nodes, err := o.c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: apiv1.LabelController + "=" + o.controller})
	if err != nil && o.kipGone && !o.answered {
		return nil
	}
	if err != nil {
		return fmt.Errorf("see whether this Kip lives: list its virtual nodes: %w", err)
	}
	o.answered = true
	for _, n := range nodes.Items {
		if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return &cleanup.LivesError{Sign: "node " + n.Name + " is Ready"}
		}
		lease, err := o.c.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && lease.Spec.RenewTime == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("see whether this Kip lives: get the lease of node %s: %w", n.Name, err)
		}
		at := lease.Spec.RenewTime.Time
		was, seen := o.renewed[n.Name]
		o.renewed[n.Name] = at
		// By this machine's clock, which may be wrong: so a later renewal counts, too.
		if age := o.clock.Since(at); age < leaseTime || seen && !at.Equal(was) {
			return &cleanup.LivesError{Sign: fmt.Sprintf("node %s renewed its lease at %s", n.Name, at.UTC().Format(time.RFC3339))}
		}
	}
	return nil
}

// refused adds to the error of a Kip that lives how its instances are ended.
func (o *clusterOutside) refused(ctx context.Context, err error) error {
	if lives, is := errors.AsType[*cleanup.LivesError](err); is {
		return fmt.Errorf("%w; %s", lives, o.instead(ctx))
	}
	return err
}

// instead says how the instances of a Kip that lives are ended.
func (o *clusterOutside) instead(ctx context.Context) string {
	where := "NAMESPACE POD"
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askFor)
	defer cancel()
	pods, err := kippods.Find(ctx, o.c.kube, "")
	if err == nil && len(pods.Own) > 0 { // else the words say what to put there
		where = pods.Own[0].Namespace + " " + pods.Own[0].Name
	}
	return "it ends its instances itself: kubectl exec -n " + where + " -- kipctl cleanup --yes"
}

// leftovers names what the cluster has of the Kip. With another Kip beside it only what is named after its own nodes. Without a
// node of its own nothing that only has Kip's labels: another Kip may need that, whose node is not here now.
func (o *clusterOutside) leftovers(ctx context.Context) {
	own := o.nodesOf(o.controller)
	others := 0
	for id := range o.nodes {
		if id != o.controller {
			others++
		}
	}
	add := func(kind string, names []string, command string) {
		if len(names) > 0 {
			o.left = append(o.left, leftover{Kind: kind, Names: names, Command: fmt.Sprintf(command, strings.Join(names, " "))})
		}
	}
	var leases []string
	for _, n := range own {
		_, err := o.c.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n, metav1.GetOptions{})
		if o.asked("the lease of node "+n, err) {
			leases = append(leases, n)
		}
	}
	add("lease", leases, "kubectl delete lease -n "+corev1.NamespaceNodeLease+" %s") // goes with the node, too, so it is first
	add("node", own, "kubectl delete node %s")
	o.addCells(ctx, others > 0 || len(own) == 0)
	if len(own) == 0 {
		o.notAsked = append(o.notAsked, fmt.Sprintf("whether the webhooks, policies, roles, StorageClasses and claims with Kip's labels, and the definition "+
			"of Cell, are left by this Kip: controller %s has no node here", o.controller))
		return
	}
	for _, kind := range o.kinds() {
		objects, err := kind.list(ctx, metav1.ListOptions{LabelSelector: labelsOfKip})
		if !o.asked(kind.name+"s", err) {
			continue
		}
		var names []string
		_ = meta.EachListItem(objects, func(object runtime.Object) error { // which no list of the API fails
			if m, err := meta.Accessor(object); err == nil && (others == 0 || namedAfter(m.GetName(), own)) {
				names = append(names, m.GetName())
			}
			return nil
		})
		add(kind.name, names, "kubectl delete "+kind.name+" %s")
	}
	o.addClaims(ctx, others > 0, own)
}

// addCells adds the Cells of the Kip, and their definition if no other Kip needs it.
func (o *clusterOutside) addCells(ctx context.Context, others bool) {
	all, err := o.c.cells(ctx)
	if errors.Is(err, errNoCellResource) {
		return
	}
	if !o.asked("Cells", err) {
		return
	}
	var names []string
	for _, cell := range all {
		if cell.Status.ControllerID == o.controller || cell.Labels[apiv1.LabelController] == o.controller {
			names = append(names, cell.Name)
		}
	}
	const resource = "cells.kip.elotl.co"
	if len(names) > 0 {
		o.cells = true
		o.left = append(o.left, leftover{Kind: "cell", Names: names,
			Command: "kubectl delete " + resource + " -l " + apiv1.LabelController + "=" + o.controller})
	}
	if !others && len(names) == len(all) {
		o.left = append(o.left, leftover{Kind: "customresourcedefinition", Names: []string{resource}, Command: "kubectl delete crd " + resource})
	}
}

// addClaims adds the claims of the Kip's store.
func (o *clusterOutside) addClaims(ctx context.Context, others bool, own []string) {
	seen := map[string]bool{}
	for _, selector := range []string{labelsOfPods, labelsOfKip} {
		claims, err := o.c.kube.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if !o.asked("PersistentVolumeClaims", err) {
			return
		}
		for _, c := range claims.Items {
			at, isOwn := c.Namespace+"/"+c.Name, slices.ContainsFunc(own, func(n string) bool { return c.Name == "data-"+n })
			if !seen[at] && (isOwn || !others) {
				seen[at] = true
				o.left = append(o.left, leftover{Kind: "persistentvolumeclaim", Names: []string{at},
					Command: fmt.Sprintf("kubectl delete pvc -n %s %s # Kip's store: keep it to install Kip again", c.Namespace, c.Name)})
			}
		}
	}
}

// asked reports whether the cluster answered with what there is. It notes what could not be asked.
func (o *clusterOutside) asked(what string, err error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		if text := what + ": " + err.Error(); !slices.Contains(o.notAsked, text) {
			o.notAsked = append(o.notAsked, text)
		}
	}
	return err == nil
}

// namedAfter reports whether an object of the whole cluster is named after one of the nodes, as kip.kip-0 is: its nodes are called
// kip-0, and kip-0-1 and so on.
func namedAfter(name string, nodes []string) bool {
	base := name
	if i := strings.IndexByte(name, '.'); i >= 0 {
		base = name[i+1:]
	}
	return slices.ContainsFunc(nodes, func(n string) bool { return n == base || strings.HasPrefix(n, base+"-") })
}

// kind is one of the objects of the whole cluster that Kip's chart makes.
type kind struct {
	name string
	list lister
}

// kinds are all of them, webhooks first: without Kip they delay the pods that they are about.
func (o *clusterOutside) kinds() []kind {
	admission, rbac := o.c.kube.AdmissionregistrationV1(), o.c.kube.RbacV1()
	return []kind{
		{"mutatingwebhookconfiguration", listed(admission.MutatingWebhookConfigurations().List)},
		{"validatingwebhookconfiguration", listed(admission.ValidatingWebhookConfigurations().List)},
		{"validatingadmissionpolicybinding", listed(admission.ValidatingAdmissionPolicyBindings().List)},
		{"validatingadmissionpolicy", listed(admission.ValidatingAdmissionPolicies().List)},
		{"clusterrolebinding", listed(rbac.ClusterRoleBindings().List)},
		{"clusterrole", listed(rbac.ClusterRoles().List)},
		{"storageclass", listed(o.c.kube.StorageV1().StorageClasses().List)},
	}
}

// lister lists the objects of a kind.
type lister func(context.Context, metav1.ListOptions) (runtime.Object, error)

// listed makes a list of one kind a list of any.
func listed[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) lister {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}
