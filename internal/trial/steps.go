package trial

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/placement"
)

// step is one thing that a trial proves.
type step struct {
	name, what string
	// needs is the step of the same group whose pods it uses; "" for none.
	needs string
	// pods are those that it makes. With launchesNone Kip launches nothing for them.
	pods         []*corev1.Pod
	launchesNone bool
	// most bounds how long it runs, and beside is what it costs beside instances.
	most   time.Duration
	beside extra
	// run returns a notTriedError if something is missing. What it makes carries the step's labels.
	run func(context.Context, *running) error
	// check looks at the pods' reports, when their cells were seen. Optional.
	check func(*StepReport) error
}

// Names of steps that others, or the code here, refer to.
const (
	stepBatch    = "batch"
	stepBalancer = "load-balancer"
	stepGPU      = "gpu"
	stepPublic   = "egress-public"
	stepPrivate  = "egress-private"
)

const (
	gpuResource = corev1.ResourceName("nvidia.com/gpu")
	// reached is what a pod of the batch writes when the other one has answered.
	reached = "trial: reached"
	// port is that of the web servers of the batch.
	port = 8080
)

// steps are all of them, in order. What the steps of a group make lives until the last of them has ended.
func (t *Trial) steps() [][]step {
	return [][]step{
		{t.batch(), t.logs(), t.balancer()},
		{t.egress("egress", "a pod reaches "+t.Endpoint, "", false)},
		{t.egress(stepPublic, "a pod in a public subnet reaches "+t.Endpoint, t.PublicZone, false)},
		{t.egress(stepPrivate, "a pod in a private subnet reaches "+t.Endpoint, t.PrivateZone, true)},
		{t.volume()},
		{t.spot()},
		{t.gpu(), t.dryRun()},
		{t.largeImage()},
	}
}

// batch proves that pods of one launch have addresses that others reach.
func (t *Trial) batch() step {
	s := step{name: stepBatch, what: "two pods made at once have addresses, and reach each other", most: 10 * time.Minute}
	const balancerLasts = 11 * time.Minute
	for n := range 2 {
		other := fmt.Sprintf("batch-%d", 1-n)
		name := fmt.Sprintf("batch-%d", n)
		pod := t.pod(s.name, name, t.Image, fmt.Sprintf(`mkdir /tmp/www && echo "trial: hello from %[1]s" > /tmp/www/index.html
httpd -p %[3]d -h /tmp/www
until timeout 3 wget -q -O /tmp/got http://%[2]s.batch:%[3]d/; do sleep 1; done
echo "%[4]s %[2]s: $(cat /tmp/got)"; touch /tmp/reached; exec sleep 3600`, name, other, port, reached), s.most+balancerLasts)
		pod.Spec.Hostname, pod.Spec.Subdomain = name, "batch"
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "/tmp/reached"}}},
			PeriodSeconds: 1,
		}
		s.pods = append(s.pods, pod)
	}
	s.run = func(ctx context.Context, r *running) error {
		if _, err := t.Kube.CoreV1().Services(t.namespace).Create(ctx, &corev1.Service{
			ObjectMeta: t.ofTrial(s.name, "batch"),
			Spec: corev1.ServiceSpec{
				ClusterIP:                corev1.ClusterIPNone,
				PublishNotReadyAddresses: true,
				Selector:                 map[string]string{labelStep: s.name},
				Ports:                    []corev1.ServicePort{{Port: port}},
			},
		}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create Service batch: %w", err)
		}
		if err := r.create(ctx, s.pods...); err != nil {
			return err
		}
		if err := r.await(ctx, hasStarted, "batch-0", "batch-1"); err != nil {
			return err
		}
		t.Say("batch: both pods run; waiting until each has reached the other")
		return r.await(ctx, isReady, "batch-0", "batch-1")
	}
	s.check = func(r *StepReport) error {
		if len(r.Pods) != 2 {
			return fmt.Errorf("%d pods were seen: want 2", len(r.Pods))
		}
		a, b := r.Pods[0], r.Pods[1]
		for _, p := range r.Pods {
			if _, err := netip.ParseAddr(p.IP); err != nil {
				return fmt.Errorf("pod %s has the address %q: want an IP address", p.Name, p.IP)
			}
		}
		if a.IP == b.IP {
			return fmt.Errorf("both pods have address %s: want one each", a.IP)
		}
		if a.Instance == "" || a.Instance == b.Instance {
			return fmt.Errorf("the pods have the instances %q and %q: want one each", a.Instance, b.Instance)
		}
		r.Found = append(r.Found, fmt.Sprintf("%s and %s reach each other by name", a.IP, b.IP))
		return nil
	}
	return s
}

// logs proves that the API server tells what a pod has written.
func (t *Trial) logs() step {
	s := step{name: "logs", what: "the API server tells what a pod has written", needs: stepBatch, most: time.Minute}
	s.run = func(ctx context.Context, r *running) error {
		return r.wait(ctx, func(ctx context.Context) (string, error) {
			log, err := t.Logs(ctx, t.namespace, "batch-0")
			if err != nil {
				return "the log of pod batch-0: " + err.Error(), nil
			}
			if !strings.Contains(log, reached) {
				return fmt.Sprintf("%q in the log of pod batch-0, which is %q", reached, log), nil
			}
			r.found("log of pod batch-0: %s", strings.TrimSpace(log))
			return "", nil
		})
	}
	return s
}

// annotations of the AWS Load Balancer Controller, which others ignore: an internal Network Load Balancer that sends to pods' addresses.
// https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/service/annotations/
var balancerAnnotations = map[string]string{
	"service.beta.kubernetes.io/aws-load-balancer-type":            "external",
	"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip",
	"service.beta.kubernetes.io/aws-load-balancer-scheme":          "internal",
}

// balancerTaken is how long a controller may take to show that a Service is its own.
const balancerTaken = 30 * time.Second

// balancer proves that a load balancer sends to the pods of a batch.
func (t *Trial) balancer() step {
	s := step{
		name:   stepBalancer,
		what:   "a load balancer sends to the pods of the batch",
		needs:  stepBatch,
		most:   10 * time.Minute,
		beside: balancerCosts,
	}
	client := t.pod(s.name, "client", t.Image, `until timeout 3 wget -q -O /tmp/got "http://$TARGET/" && grep -q "trial: hello" /tmp/got
do sleep 2; done
echo "trial: $TARGET answers: $(cat /tmp/got)"; sleep 5`, s.most)
	s.pods = []*corev1.Pod{client}
	s.run = func(ctx context.Context, r *running) error {
		meta := t.ofTrial(s.name, "balancer")
		meta.Annotations = balancerAnnotations
		service, err := t.Kube.CoreV1().Services(t.namespace).Create(ctx, &corev1.Service{
			ObjectMeta: meta,
			Spec: corev1.ServiceSpec{
				Type:     corev1.ServiceTypeLoadBalancer,
				Selector: map[string]string{labelStep: stepBatch},
				Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(port)}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create Service balancer: %w", err)
		}
		address, err := r.balancerAddress(ctx, service)
		if err != nil {
			return err
		}
		client := client.DeepCopy()
		client.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TARGET", Value: address}}
		if err := r.create(ctx, client); err != nil {
			return err
		}
		return r.await(ctx, hasSucceeded, "client")
	}
	return s
}

// balancerAddress waits for the address of a load balancer. Without a controller it is a notTriedError.
func (r *running) balancerAddress(ctx context.Context, service *corev1.Service) (address string, err error) {
	began := r.Clock.Now()
	err = r.wait(ctx, func(ctx context.Context) (string, error) {
		s, err := r.Kube.CoreV1().Services(r.namespace).Get(ctx, service.Name, metav1.GetOptions{})
		if err != nil {
			return "the Service: " + err.Error(), nil
		}
		all, err := r.eventsOf(ctx, service.UID)
		if err != nil {
			return "the Service: " + err.Error(), nil
		}
		if all := s.Status.LoadBalancer.Ingress; len(all) > 0 {
			at := all[0]
			address = cmp.Or(at.Hostname, at.IP)
			r.found("address of the load balancer: %s, after %.1f s", address, r.Clock.Since(began).Seconds())
			if at.Hostname == "" && (at.IPMode == nil || *at.IPMode == corev1.LoadBalancerIPModeVIP) {
				r.found("kube-proxy answers for this address itself, so the way of the pod was not through the load balancer")
			}
			return "", nil
		}
		said := "nothing is said of it yet"
		if len(all) > 0 {
			said = all[len(all)-1].Message
		}
		if taken := len(s.Finalizers)+len(all) > 0; !taken && r.Clock.Since(began) > balancerTaken {
			return "", notTried("no controller of load balancers took a Service within %s", balancerTaken)
		}
		return fmt.Sprintf("the load balancer of Service %s (%s)", s.Name, said), nil
	})
	return address, err
}

// egress proves that a pod reaches what is outside of the cluster.
func (t *Trial) egress(name, what, zone string, private bool) step {
	s := step{name: name, what: what, most: 10 * time.Minute}
	pod := t.pod(name, name, t.Image, `n=0
until timeout 20 nc -w 5 "$HOST" "$PORT" </dev/null >/dev/null 2>&1; do
  n=$((n+1)); [ $n -lt 12 ] || { echo "trial: no connection to $HOST port $PORT in $n attempts"; exit 1; }
  sleep 2
done
echo "trial: connected to $HOST port $PORT"; sleep 5`, s.most)
	host, service, _ := net.SplitHostPort(t.Endpoint) // New has looked at the error
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "HOST", Value: host}, {Name: "PORT", Value: service}}
	if zone != "" {
		terms, _ := json.Marshal([]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{ // strings have no error
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone},
		}}}})
		pod.Annotations[placement.AnnotationRequirements] = string(terms)
	}
	if private {
		pod.Annotations[placement.AnnotationPrivateIPOnly] = "true"
	}
	if zone != "" || name == "egress" {
		s.pods = []*corev1.Pod{pod}
	}
	s.run = func(ctx context.Context, r *running) error {
		if len(s.pods) == 0 {
			kind := strings.TrimPrefix(name, "egress-")
			return notTried("%s; --%s-zone names a zone in which the subnet of cells is %s", t.zoneless, kind, kind)
		}
		if err := r.create(ctx, pod); err != nil {
			return err
		}
		return r.await(ctx, hasSucceeded, name)
	}
	s.check = func(r *StepReport) error {
		for _, p := range r.Pods {
			if zone != "" && p.Zone != zone {
				return fmt.Errorf("the instance is in zone %q: want %s", p.Zone, zone)
			}
		}
		return nil
	}
	return s
}

// provisioners make disks for cells: docs/volumes.md.
var provisioners = []string{"disk.kip.elotl.co", "ebs.csi.aws.com"}

// volume proves that a disk outlives the instance of its first pod.
func (t *Trial) volume() step {
	s := step{name: "volume", what: "a second pod reads what a first one has written to a volume", most: 20 * time.Minute, beside: volumeCosts}
	with := func(name, script string) *corev1.Pod {
		pod := t.pod(s.name, name, t.Image, script, s.most/2)
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		return pod
	}
	s.pods = []*corev1.Pod{
		with("writer", "echo "+t.ID+" > /data/trial && sync && sleep 5"),
		with("reader", "grep "+t.ID+" /data/trial && sleep 5"),
	}
	s.run = func(ctx context.Context, r *running) error {
		class, err := t.storageClass(ctx)
		if err != nil {
			return err
		}
		r.found("StorageClass %s of %s", class.Name, class.Provisioner)
		if _, err := t.Kube.CoreV1().PersistentVolumeClaims(t.namespace).Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: t.ofTrial(s.name, "data"),
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class.Name,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				},
			},
		}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create PersistentVolumeClaim data: %w", err)
		}
		for _, pod := range s.pods {
			if err := r.create(ctx, pod); err != nil {
				return err
			}
			if err := r.await(ctx, hasSucceeded, pod.Name); err != nil {
				return err
			}
		}
		return nil
	}
	s.check = func(r *StepReport) error {
		if len(r.Pods) == 2 && r.Pods[0].Instance != "" && r.Pods[0].Instance == r.Pods[1].Instance {
			return fmt.Errorf("both pods had instance %s: want one each", r.Pods[0].Instance)
		}
		return nil
	}
	return s
}

// storageClass returns the one to try. It is a notTriedError if there is none.
func (t *Trial) storageClass(ctx context.Context) (*storagev1.StorageClass, error) {
	list, err := t.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	all := slices.DeleteFunc(list.Items, func(c storagev1.StorageClass) bool {
		if t.StorageClass != "" {
			return c.Name != t.StorageClass
		}
		return !slices.Contains(provisioners, c.Provisioner)
	})
	if len(all) == 0 && t.StorageClass != "" {
		return nil, notTried("there is no StorageClass %s", t.StorageClass)
	}
	if len(all) == 0 {
		return nil, notTried("there is no StorageClass of %s; --storage-class names another", strings.Join(provisioners, " or "))
	}
	keeps := func(c storagev1.StorageClass) bool {
		return c.ReclaimPolicy != nil && *c.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete
	}
	if deletes := slices.DeleteFunc(slices.Clone(all), keeps); len(deletes) > 0 {
		first := slices.MinFunc(deletes, func(a, b storagev1.StorageClass) int {
			return cmp.Compare(slices.Index(provisioners, a.Provisioner), slices.Index(provisioners, b.Provisioner))
		})
		return &first, nil
	}
	return nil, notTried("StorageClass %s keeps its disks (reclaimPolicy %s): want Delete, so that nothing is left", all[0].Name,
		*all[0].ReclaimPolicy)
}

// spot proves that a pod runs on a spot instance.
func (t *Trial) spot() step {
	s := step{name: "spot", what: "a pod runs on a spot instance", most: 10 * time.Minute}
	pod := t.pod(s.name, "spot", t.Image, `echo "trial: started"; sleep 5`, s.most)
	pod.Annotations[placement.AnnotationLaunchType] = string(placement.Spot)
	s.pods = []*corev1.Pod{pod}
	s.run = func(ctx context.Context, r *running) error {
		err := r.create(ctx, pod)
		if err == nil {
			err = r.await(ctx, hasSucceeded, "spot")
		}
		return lacks(err)
	}
	s.check = func(r *StepReport) error {
		for _, p := range r.Pods {
			if p.LaunchType != apiv1.Spot {
				return fmt.Errorf("the instance was launched as %q: want %s", p.LaunchType, apiv1.Spot)
			}
		}
		return nil
	}
	return s
}

// lacks makes an error a notTriedError where Kip or the API server refuses a pod for what it asks for.
func lacks(err error) error {
	if _, refused := errors.AsType[*refusedError](err); refused || apierrors.IsForbidden(err) {
		return notTried("%s", err)
	}
	return err
}

const (
	// noGPUCosts is a price for an hour that no instance with a GPU has, so that Kip launches none.
	noGPUCosts = "0.0001"
	// gpuScheduled is how long the scheduler may take to find a node with a GPU.
	gpuScheduled = 20 * time.Second
	// dearer is of the words by which Kip rejects types for their price alone.
	dearer = "dearer than the $" + noGPUCosts
)

// gpu proves that Kip would launch an instance with a GPU, and launches none: the pod allows no price that one has. So Kip chooses, and
// says which types it leaves out for nothing but their price.
func (t *Trial) gpu() step {
	s := step{name: stepGPU, what: "Kip finds an instance type with a GPU, and launches none", most: 2 * time.Minute, launchesNone: true}
	pod := t.gpuPod(s.most)
	s.pods = []*corev1.Pod{pod}
	s.run = func(ctx context.Context, r *running) error {
		err := r.create(ctx, pod)
		if err == nil {
			err = r.await(ctx, func(p *corev1.Pod) bool { return r.noNode(p) != "" }, "gpu")
		}
		if refused, is := errors.AsType[*refusedError](err); is && refused.reason == events.Unplaceable &&
			strings.Contains(refused.message, dearer) {
			r.found("%s", refused.message)
			return nil
		}
		if err != nil {
			return lacks(err)
		}
		return notTried("no virtual node takes a pod with a GPU: the quota of the account, or the catalogue, has none")
	}
	s.check = func(r *StepReport) error {
		for _, p := range r.Pods {
			if p.Instance != "" {
				return fmt.Errorf("it launched instance %s: want none", p.Instance)
			}
		}
		return nil
	}
	return s
}

func (t *Trial) gpuPod(lives time.Duration) *corev1.Pod {
	pod := t.pod(stepGPU, "gpu", t.Image, "exit 0", lives)
	pod.Annotations[placement.AnnotationMaxPrice] = noGPUCosts
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpuResource: resource.MustParse("1")}
	return pod
}

// dryRun has the cloud itself say whether it takes the launch of an instance with a GPU, without launching one.
func (t *Trial) dryRun() step {
	s := step{
		name:         "gpu-dry-run",
		what:         "the cloud takes a dry run of a launch with a GPU, by Kip's own rights",
		most:         2 * time.Minute,
		launchesNone: true,
	}
	s.run = func(ctx context.Context, r *running) error {
		if t.Catalogue == nil {
			return notTried("kipctl has no catalogue of the region of Kip's nodes, and so no type with a GPU")
		}
		types := t.Catalogue.Types(t.gpuPod(s.most))
		if len(types) == 0 {
			return notTried("the catalogue of %s has no type with a GPU", t.Catalogue.Region)
		}
		answers, err := t.DryRun(ctx, types)
		if err != nil {
			return notTried("Kip's cloud was not asked for a dry run: %v", err)
		}
		for _, f := range answers {
			switch f.Outcome {
			case finding.Failed:
				return errors.New(strings.TrimSuffix(f.Message+". Fix it: "+f.Cure, ". Fix it: "))
			case finding.NotChecked:
				return notTried("%s", f.Message)
			default:
				r.found("%s", f.Message)
			}
		}
		return nil
	}
	return s
}

// noNode says why the scheduler has found no node for a pod in good time; "" if it has, or may.
func (r *running) noNode(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || r.Clock.Since(r.created[pod.Name]) < gpuScheduled {
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// largeImageDisk is the root disk for the large image.
const largeImageDisk = "10Gi"

// largeImage measures the pull of a large image.
func (t *Trial) largeImage() step {
	s := step{name: "large-image", what: "a pod runs an image of about 1 GB", most: 15 * time.Minute, beside: largeImageCosts}
	pod := t.pod(s.name, "large-image", t.LargeImage, `echo "trial: started"; sleep 5`, s.most)
	pod.Annotations[placement.AnnotationVolumeSize] = largeImageDisk
	s.pods = []*corev1.Pod{pod}
	s.run = func(ctx context.Context, r *running) error {
		if err := r.create(ctx, pod); err != nil {
			return err
		}
		if err := r.await(ctx, hasSucceeded, pod.Name); err != nil {
			return err
		}
		return r.wait(ctx, func(ctx context.Context) (string, error) {
			now, err := t.Kube.CoreV1().Pods(t.namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return "the pod: " + err.Error(), nil
			}
			all, err := t.eventsOf(ctx, now.UID)
			if err != nil {
				return "the pod: " + err.Error(), nil
			}
			for _, e := range all {
				if e.Reason == "Pulled" { // of every kubelet; the message has the time and the size
					r.found("kubelet: %s", e.Message)
					return "", nil
				}
			}
			return "the kubelet's Event of the pull", nil
		})
	}
	return s
}
