package eks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/internal/cloud/aws/eks"
	"github.com/elotl/kip/internal/cloud/aws/images"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/eks/disks"
	"github.com/elotl/kip/internal/eks/wellknown"
)

// Deployment installs Kip as a Request says.
type Deployment struct {
	Request
	// Connect opens the API of the kubeconfig's cluster. It asks nothing.
	Connect func() (*Kubernetes, error)
	// Say tells of each thing that is done or found.
	Say   func(format string, args ...any)
	Clock clock.Clock
	// Transport carries the calls of AWS; nil for the SDK's own.
	Transport http.RoundTripper
	// Registries carries the questions to registries of images; nil for the usual.
	Registries http.RoundTripper
}

// Problems are why nothing was changed, each with its cure.
type Problems []string

func (p Problems) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was changed, since %d of the checks failed:", len(p))
	for _, one := range p {
		b.WriteString("\n- " + strings.ReplaceAll(one, "\n", "\n  "))
	}
	return b.String()
}

// found is what the checks leave for the installation.
type found struct {
	account *eks.Account
	api     *Kubernetes
	running running
	plan    plan
	// image is published if its file is named.
	image images.Image
}

// Run checks everything, and then, unless only checks are asked for, installs Kip and waits until its node is Ready. Run again it
// changes what differs.
func (d *Deployment) Run(ctx context.Context, checkOnly bool) error {
	d.Registry, d.Namespace = cmp.Or(d.Registry, bootimages.Published), cmp.Or(d.Namespace, DefaultNamespace)
	f, err := d.check(ctx)
	if err != nil {
		return err
	}
	if checkOnly {
		d.Say("All checks passed. Nothing was changed.")
		return nil
	}
	if f.image.File != "" {
		d.Say("Publishing the boot image %s in %s", f.image.File, d.Region)
		id, err := f.account.Publish(ctx, f.image, d.Say, d.pause)
		if err != nil {
			return fmt.Errorf("publish the boot image: %w", err)
		}
		d.Say("The boot image is %s", id)
	}
	if err := d.install(ctx, f); err != nil {
		return err
	}
	return d.wait(ctx, f)
}

// check finds all that the installation needs, or all that is in its way.
func (d *Deployment) check(ctx context.Context) (found, error) {
	if problems := d.Request.check(); len(problems) > 0 {
		return found{}, Problems(problems)
	}
	d.Say("Checking account, cluster %s and role in %s", d.Cluster, d.Region)
	account, err := eks.Open(ctx, d.Region, d.Transport)
	if err != nil {
		return found{}, Problems{err.Error()}
	}
	cluster, err := account.Cluster(ctx, d.Cluster)
	if err != nil {
		return found{}, Problems{err.Error()}
	}
	f := found{account: account}
	problems := Problems(d.checkImage(ctx))
	failed := func(err error) bool {
		if err != nil {
			problems = append(problems, err.Error())
		}
		return err != nil
	}
	api, err := d.Connect()
	if !failed(err) && !failed(api.sameCluster(cluster, d.Region)) && !failed(api.reach(cluster, d.Region)) {
		f.api = api
		f.running, err = api.find(ctx, d.Namespace)
		failed(err)
	}
	network, err := account.Network(ctx, cluster, d.Subnets, f.running.subnets)
	failed(err)
	d.note(network.Notes)
	failed(account.CheckGroups(ctx, cluster.VPC, d.own()))
	problems = append(problems, d.checkPublic(cluster, network)...)
	instanceType, image, err := d.bootImage(ctx, account)
	failed(err)
	f.image = image
	problems = append(problems, d.checkPublisher(ctx, account, image)...)
	problems = append(problems, d.checkRole(ctx, f, cluster, network)...)
	f.plan = plan{image: d.image(), role: d.Role, namespace: d.Namespace}
	settings, err := merged(f.running.config, d.settings(cluster, network, instanceType))
	if err == nil {
		err = f.plan.configure(settings)
	}
	if len(problems) == 0 {
		failed(err)
	}
	d.noteProfiles(f.plan)
	if f.api != nil {
		problems = append(problems, d.checkCluster(ctx, &f, cluster)...)
	}
	if len(problems) > 0 {
		return found{}, problems
	}
	d.Say("Cells: subnets %s of %s, %s, boot image %s", strings.Join(network.Subnets, ", "), cluster.VPC, instanceType, d.BootImage)
	return f, nil
}

// checkRole says what the roles of Kip and of cells lack.
func (d *Deployment) checkRole(ctx context.Context, f found, c eks.Cluster, n eks.Network) (problems []string) {
	account, wanted, profile := f.account, d.role(c, n, f.running), eks.Findings{}
	d.noteGrants(f.running.config)
	if d.Profile != "" {
		var err error
		if wanted.Passes, err = account.CheckProfile(ctx, d.Profile, &profile); err != nil {
			problems = append(problems, err.Error())
		}
	}
	role, err := account.CheckRole(ctx, c, wanted)
	if err != nil {
		problems = append(problems, err.Error())
	}
	if role.PodIdentity && f.api != nil {
		if err := f.api.findPodIdentityAgent(ctx, c, d.Region); err != nil {
			problems = append(problems, err.Error())
		}
	}
	d.note(slices.Concat(role.Notes, profile.Notes))
	return slices.Concat(problems, role.Problems, profile.Problems)
}

// noteProfiles says about which pods the API server asks Kip for the profiles.
func (d *Deployment) noteProfiles(p plan) {
	switch {
	case !p.profiled:
	case len(p.namespaces) > 0:
		d.Say("Profiles: the API server asks Kip about pods of %s, which admission.profiles names", strings.Join(p.namespaces, ", "))
	default:
		d.Say("Note: the API server asks Kip about pods of all namespaces but %s and %s, since a profile names no namespaces, or some by a "+
			"pattern. For webhooks that ask about fewer pods: docs/profiles.md#without-the-chart",
			strings.Join(config.SystemNamespaces, ", "), p.namespace)
	}
}

// noteGrants says what settings grants to whoever may make a pod, unless the installed configuration has other grants, which stay.
func (d *Deployment) noteGrants(installed map[string]any) {
	if grants, has, _ := unstructured.NestedFieldNoCopy(installed, strings.Split(grantsKey, ".")...); has && grants != nil && !open(grants) {
		d.Say("Note: cells.grants of the installed provider.yaml stay as they are")
		return
	}
	const others = "any security group of the VPC, and the metadata service of their cells (docs/kip-2020.md#pods-that-name-a-profile-or-groups)"
	if d.Profile == "" {
		d.Say("Note: pods of every namespace may name any instance profile whose role Kip's role may pass, %s. Whoever may make a pod gets what "+
			"that role may. Let the statement KipPassesRoles of Kip's role name the roles of cells alone, or set CELL_INSTANCE_PROFILE_ARN", others)
		return
	}
	d.Say("Note: pods of every namespace may name the instance profile %s, %s", d.Profile, others)
}

// checkPublic says what cells with public addresses need: a Kip that knows by its node's metadata service that it is in their VPC.
// Of the settings only cells.privateIPOnly tells Kip that, too, and with it cells in public subnets do not reach the internet. Nodes of
// Amazon Linux 2023 let no pod reach the service (aws-load-balancer-controller, issue 3695). That those of Auto Mode never do is not
// verified.
func (d *Deployment) checkPublic(c eks.Cluster, n eks.Network) (problems []string) {
	switch {
	case len(n.Subnets) == 0: // a problem of its own
	case n.Public && c.Auto:
		return []string{"the subnets of cells have routes to an internet gateway, and a pod on a node of Auto Mode cannot ask where it " +
			"runs, which Kip then has to: add subnets with a route to a NAT gateway, and name them: --subnets"}
	case n.Public && len(d.Subnets) == 0:
		return []string{fmt.Sprintf("the subnets of cells (%s) have routes to an internet gateway, and Kip then has to ask the metadata service "+
			"of its node where it runs, which nodes of Amazon Linux 2023 let no pod do: add subnets with a route to a NAT gateway, and name "+
			"them: --subnets. If your nodes let pods reach it, name these: --subnets=%s", strings.Join(n.Subnets, ", "),
			strings.Join(n.Subnets, ","))}
	case n.Public:
		d.Say("Note: cells get public addresses, since their subnets reach the internet by an internet gateway. For these Kip has to reach the "+
			"metadata service of its node: aws ec2 modify-instance-metadata-options --region %s --instance-id NODE "+
			"--http-put-response-hop-limit 2. Then every pod on that node can get the credentials of the node's role", d.Region)
	}
	return nil
}

func (d *Deployment) note(notes []string) {
	for _, n := range notes {
		d.Say("Note: %s", n)
	}
}

// own are the security groups that the request names.
func (d *Deployment) own() []string {
	if d.Group == "" {
		return nil
	}
	return []string{d.Group}
}

func (d *Deployment) role(c eks.Cluster, n eks.Network, r running) eks.Role {
	role := eks.Role{
		ARN:        d.Role,
		Namespace:  d.Namespace,
		Account:    name,
		Profile:    d.Profile,
		SkipRights: d.SkipRights,
		Owner:      r.owner,
		VPC:        c.VPC,
	}
	if len(n.Subnets) > 0 {
		role.Subnet = n.Subnets[0]
	}
	return role
}

// checkCluster says what of the cluster itself is in the way.
func (d *Deployment) checkCluster(ctx context.Context, f *found, c eks.Cluster) (problems []string) {
	var err error
	if f.plan.dns, err = f.api.findDNS(ctx, c, d.Region); err != nil {
		problems = append(problems, err.Error())
	}
	store, err := f.api.findStorage(ctx, c, d.Region, f.account.ID, f.running.class)
	if err != nil {
		problems = append(problems, err.Error())
	}
	if f.plan.class = store.class; store.own {
		f.plan.ownClass = classFor(c)
	}
	if store.byEBS {
		d.noteDriver(ctx, f.api, c)
	}
	objects, err := f.plan.objects()
	if err != nil {
		return append(problems, err.Error())
	}
	if err := f.api.mayDefine(ctx); err != nil {
		problems = append(problems, err.Error())
	}
	return append(problems, f.api.mayApply(ctx, objects, d.Namespace, f.running.namespaceUID != "")...)
}

// noteDriver says what is known of the role of EBS' driver.
func (d *Deployment) noteDriver(ctx context.Context, api *Kubernetes, c eks.Cluster) {
	role, err := disks.Role(ctx, api.Client)
	if role != "" {
		d.Say("The driver of disks has its role by %s", role)
		return
	}
	why := ""
	if err != nil {
		why = fmt.Sprintf(" (%v)", err)
	}
	d.Say("Note: not checked: whether the driver of disks has its role, without which Kip's store gets no volume%s: %s", why,
		wellknown.ShowEBSDriver(d.Region, c.Name))
}

// smallest are the types of pods that name no resources, by the architecture of the boot image.
var smallest = map[string]string{"amd64": "t3.micro", "arm64": "t4g.micro"}

// bootImage chooses the instance type of pods that name no resources, and finds the image that it boots: in the account, else in the
// folder.
func (d *Deployment) bootImage(ctx context.Context, account *eks.Account) (instanceType string, publish images.Image, err error) {
	there, err := account.Images(ctx, d.BootImage)
	if err != nil {
		return "", images.Image{}, err
	}
	arch := "amd64"
	if _, has := there["arm64"]; has && there["amd64"] == "" {
		arch = "arm64"
	}
	if d.Type != "" {
		if arch, err = account.Architecture(ctx, d.Type); err != nil {
			return "", images.Image{}, fmt.Errorf("--instance-type: %w", err)
		}
	}
	instanceType = cmp.Or(d.Type, smallest[arch])
	switch has := slices.Sorted(maps.Keys(there)); {
	case there[arch] != "":
		return instanceType, images.Image{}, nil
	case len(has) > 0:
		return "", images.Image{}, fmt.Errorf("the boot image %s is for %s, and %s is %s: want an image for %s (docs/boot-image.md#on-ec2), "+
			"or another "+
			"--instance-type", there[has[0]], strings.Join(has, " and "), instanceType, arch, arch)
	case d.BootImage != DefaultBootImage:
		return "", images.Image{}, fmt.Errorf("account %s has no image %s in %s: want the ID of one, or a name, or no --boot-image, which "+
			"publishes Kip's own",
			account.ID, d.BootImage, d.Region)
	}
	if publish, err = d.imageToPublish(ctx, arch); err != nil {
		return "", images.Image{}, fmt.Errorf("account %s has no boot image %s in %s, and there is none to publish: push it to the registry with Kip's "+
			"own image (make images), run make image IMAGE_ARCH=%s, or name the folder with kip-cell-%s.tar.gz and .manifest.json of a release: "+
			"--image-folder: %w", account.ID, d.BootImage, d.Region, arch, arch, err)
	}
	d.Say("Note: account %s has no boot image in %s: %s will be published", account.ID, d.Region, publish.File)
	return instanceType, publish, nil
}

// checkPublisher says why the caller may not publish an image, if one is to be published.
func (d *Deployment) checkPublisher(ctx context.Context, account *eks.Account, image images.Image) []string {
	if image.File == "" || d.SkipRights {
		return nil
	}
	found := account.CheckPublisher(ctx, image)
	d.note(found.Notes)
	return found.Problems
}

// DefaultBootImage is what Kip's own images are called.
const DefaultBootImage = "kip-cell-*"

// settings are the content of provider.yaml.
func (d *Deployment) settings(c eks.Cluster, n eks.Network, instanceType string) map[string]any {
	image := map[string]any{"name": d.BootImage}
	if strings.HasPrefix(d.BootImage, "ami-") {
		image = map[string]any{"imageID": d.BootImage}
	}
	cloud := map[string]any{"region": d.Region, "vpcID": c.VPC, "subnetID": n.Subnets, "clusterName": d.Cluster}
	cells := map[string]any{
		"bootImageSpec":       image,
		"defaultInstanceType": instanceType,
		// The cluster's own lets pods on cells reach those on nodes, the cluster's DNS first, and has the tag by which the AWS Load Balancer
		// Controller knows the group of a cell. Its members also reach the agents' port, which answers only Kip's certificate.
		// deploy/terraform-aws avoids that by a rule in the cluster's group. That group is the user's, and this program changes no rule
		// of it. Kip's own group lets the VPC reach that port as well: a Kip that cannot ask the metadata service does not know its node's
		// groups, and the cluster's need not be one of them (cloud.aws.kipSources).
		"extraSecurityGroups": append([]string{c.Group}, d.own()...),
		// Pods of 2020 name profiles and groups: what Kip's role may pass bounds them, and a profile that is given.
		"grants": map[string]any{"namespaces": []any{map[string]any{
			"namespace": "*", "instanceProfiles": d.profiles(), "securityGroups": []string{"*"}, "allowMetadata": true,
		}}},
	}
	if d.Profile != "" {
		cells["defaultIAMPermissions"] = d.Profile
	}
	if n.Public {
		cloud["publicAddress"] = true
	} else {
		cells["privateIPOnly"] = true // so that Kip need not ask where it runs, which a pod on many nodes cannot
	}
	return map[string]any{
		"apiVersion":         "v1",
		"kind":               "serverConfig",
		"cloud":              map[string]any{"aws": cloud},
		"cells":              cells,
		"nodes":              "zones",
		"kubelet":            map[string]any{"capacity": "auto"},
		"servingCertificate": map[string]any{"signerName": wellknown.ServingSigner},
	}
}

// profiles are the instance profiles that pods may name: the given one, by its ARN or its name, else any.
func (d *Deployment) profiles() []string {
	if d.Profile == "" {
		return []string{"*"}
	}
	return []string{d.Profile, d.Profile[strings.LastIndex(d.Profile, "/")+1:]}
}

// install applies everything. What is not in the namespace has it as its owner, so that the garbage collector deletes it with the
// namespace.
func (d *Deployment) install(ctx context.Context, f found) error {
	objects, err := f.plan.objects()
	if err != nil {
		return err
	}
	d.Say("Installing Kip into namespace %s", d.Namespace)
	if _, err := crd.Update(ctx, f.api.CRDs); err != nil {
		return err
	}
	for _, o := range objects {
		if leave, err := d.leaves(ctx, f, o); err != nil {
			return err
		} else if leave {
			continue
		}
		if o.GetKind() != "Namespace" && o.GetNamespace() != d.Namespace {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: d.Namespace,
				UID: types.UID(f.running.namespaceUID)}})
		}
		if err := f.api.apply(ctx, o); err != nil {
			return fmt.Errorf("%w; run this again to go on", err)
		}
		if o.GetKind() == "Namespace" {
			ns, err := f.api.Client.CoreV1().Namespaces().Get(ctx, d.Namespace, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("get namespace %s: %w; run this again to go on", d.Namespace, err)
			}
			f.running.namespaceUID = string(ns.UID)
		}
	}
	return nil
}

// leaves reports whether an object is somebody else's, and is left as it is: a namespace, which may have another level of Pod Security,
// or a StorageClass, which two Kips of a cluster may share.
func (d *Deployment) leaves(ctx context.Context, f found, o *unstructured.Unstructured) (bool, error) {
	if o.GetKind() == "Namespace" {
		return f.running.namespaceUID != "", nil
	}
	if o.GetKind() != "StorageClass" {
		return false, nil
	}
	s, err := f.api.Client.StorageV1().StorageClasses().Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get the StorageClass %s: %w; run this again to go on", o.GetName(), err)
	}
	return !slices.ContainsFunc(s.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == manager }), nil
}

const (
	lookEvery = 2 * time.Second
	sayEvery  = 15 * time.Second
	// patience is how long Kip's pod may take: its disk is made, and its image pulled.
	patience = 10 * time.Minute
)

// wait waits until Kip's pod runs the new template and its node is Ready, and says what it waits for.
func (d *Deployment) wait(ctx context.Context, f found) error {
	began, said, last := d.Clock.Now(), time.Time{}, ""
	for {
		waits, err := f.api.waitsFor(ctx, d.Namespace)
		switch now := d.Clock.Now(); {
		case err != nil:
			return err
		case waits == "":
			d.done()
			return nil
		case now.Sub(began) > patience:
			return fmt.Errorf("node %s is not Ready after %v: %s; see kubectl --namespace %s describe pod %s and kubectl --namespace %s logs %s",
				node, patience, waits, d.Namespace, node, d.Namespace, node)
		case waits != last || now.Sub(said) > sayEvery:
			d.Say("Waiting: %s", waits)
			said, last = now, waits
		}
		if err := d.pause(ctx, lookEvery); err != nil {
			return fmt.Errorf("wait for node %s: %w", node, err)
		}
	}
}

// pause waits, unless ctx ends before.
func (d *Deployment) pause(ctx context.Context, long time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-d.Clock.After(long):
		return nil
	}
}

// waitsFor says what the installation still lacks; "" for nothing.
func (k *Kubernetes) waitsFor(ctx context.Context, namespace string) (string, error) {
	set, err := k.Client.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get StatefulSet %s/%s: %w", namespace, name, err)
	}
	if set.Status.ObservedGeneration >= set.Generation && set.Status.ReadyReplicas > 0 &&
		set.Status.UpdateRevision == set.Status.CurrentRevision {
		n, err := k.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return "Kip runs, and has not made node " + node + " yet", nil
		case err != nil:
			return "", fmt.Errorf("get node %s: %w", node, err)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return "", nil
			}
		}
		return "node " + node + " is not Ready", nil
	}
	pod, err := k.Client.CoreV1().Pods(namespace).Get(ctx, node, metav1.GetOptions{}) // which is called as the node
	switch {
	case apierrors.IsNotFound(err):
		return "Kip's pod is not there yet", nil
	case err != nil:
		return "", fmt.Errorf("get pod %s/%s: %w", namespace, node, err)
	}
	if set.Status.ObservedGeneration >= set.Generation && pod.DeletionTimestamp == nil &&
		pod.Labels[appsv1.ControllerRevisionHashLabelKey] != set.Status.UpdateRevision && !isReady(pod) {
		return "Kip's pod is of an older template and not Ready: deleting it, since the StatefulSet does not replace it", k.remove(ctx, pod)
	}
	for _, s := range pod.Status.ContainerStatuses {
		switch w, t := s.State.Waiting, s.LastTerminationState.Terminated; {
		case w == nil:
		case w.Reason == "CrashLoopBackOff" && t != nil && t.Message != "":
			// The end of Kip's log, of which the last line says why it ended.
			message := strings.TrimSpace(t.Message)
			return fmt.Sprintf("Kip's pod: %s: %s", w.Reason, message[strings.LastIndex(message, "\n")+1:]), nil
		default:
			return strings.TrimSuffix(fmt.Sprintf("Kip's pod: %s: %s", w.Reason, w.Message), ": "), nil
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "Kip's pod is not scheduled: " + c.Message, nil
		}
	}
	return "Kip's pod starts", nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// remove deletes a pod as it was seen: not one that has become Ready, nor the next of its name. A StatefulSet with OrderedReady
// replaces no pod that never got Ready, such as one with a wrong image. Sources: Kubernetes, "StatefulSets", forced rollback;
// kubernetes/kubernetes issue 67250.
func (k *Kubernetes) remove(ctx context.Context, pod *corev1.Pod) error {
	err := k.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s, which is of an older template and not Ready: %w; delete it, and run this again", pod.Namespace,
			pod.Name, err)
	}
	return nil
}

func (d *Deployment) done() {
	d.Say("Node %s is Ready.", node)
	d.Say("For kubectl logs and exec, compare and approve the request of Kip's certificate (docs/serving-certificates.md): kubectl get csr")
	d.Say("Then: kubectl run hello --image=busybox:1.36 --restart=Never " +
		`--overrides='{"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}' -- echo hello`)
	d.Say("kipctl try proves in this account what works, for less than a dollar (docs/try.md). kipctl doctor finds what does not.")
}
