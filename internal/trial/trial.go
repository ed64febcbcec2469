package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/finding"
)

const (
	// Label is on the namespace of a trial and on all in it. Its value is the trial's ID.
	Label = "kip.elotl.co/trial"
	// labelStep says which step of the trial has made something.
	labelStep = "kip.elotl.co/trial-step"
	// prefix begins the names of the namespaces of trials. The trial's ID follows.
	prefix = "kip-try-"
	// idLength and idLetters are those of a trial's ID. Without vowels few namespaces of others look like that of a trial.
	idLength  = 6
	idLetters = "bcdfghjklmnpqrstvwxz2456789" // those of rand.String
	// endsName is the Job that ends an abandoned trial.
	endsName = "ends"
)

// Cluster is what a trial asks.
type Cluster struct {
	Kube kubernetes.Interface
	// Cells returns all Cells of the cluster.
	Cells func(context.Context) ([]apiv1.Cell, error)
	// Logs returns what the container of a pod has written, as the API server tells it.
	Logs func(ctx context.Context, namespace, pod string) (string, error)
	// Holdings returns what each Kip of the cluster has in its cloud. It fails if none answers.
	Holdings func(context.Context) ([]adminapi.Holdings, error)
	// Catalogue has the prices of the cluster's region. Optional.
	Catalogue *Catalogue
	// Subnets are those that Kip launches cells in, as Kip itself knows them. The error says why they are not known.
	Subnets func(ctx context.Context) ([]finding.Subnet, error)
	// DryRun has Kip's cloud say, to Kip itself, whether it would launch an instance of one of some types, and
	// launches none. It returns at least one finding. The error says why the cloud was not asked.
	DryRun func(ctx context.Context, instanceTypes []string) ([]finding.Finding, error)
}

// Options are what a user asks for.
type Options struct {
	// Image has a shell, httpd, nc and wget of busybox.
	Image string
	// LargeImage has a shell, and about 1 GB.
	LargeImage string
	// Endpoint is HOST:PORT outside of the cluster.
	Endpoint string
	// PublicZone and PrivateZone are zones in which the cells' subnet is public, or private; "" for those that Kip knows.
	PublicZone, PrivateZone string
	// StorageClass is that of the volume; "" for one that works on cells.
	StorageClass string
	// MaxPricePerHour is the most that an instance may cost an hour, in US dollars.
	MaxPricePerHour float64
	// Skip are the names of steps that are left out.
	Skip []string
}

// Config is that of a Trial.
type Config struct {
	Cluster
	Options
	// ID is one that NewID returned.
	ID string
	// Kipctl is the version of kipctl, for the report.
	Kipctl string
	Clock  clock.Clock
	// Say tells a person what goes on.
	Say func(string)
}

// Trial is one trial.
type Trial struct {
	Config
	namespace string
	// nodes are the controllers of Kip's virtual nodes, by their names.
	nodes map[string]string
	about About
	// zoneless says why there is no public, or no private zone.
	zoneless string
	// owner is the Job that ends the trial; none before it is made.
	owner []metav1.OwnerReference
	// cells are those of the trial that were seen.
	cells ledger
}

// NewID returns the ID of a new trial.
func NewID() string { return rand.String(idLength) }

func isID(s string) bool { return len(s) == idLength && strings.Trim(s, idLetters) == "" }

// New returns a Trial, or what is wrong with the options.
func New(c Config) (*Trial, error) {
	t := &Trial{
		Config:    c,
		namespace: prefix + c.ID,
		nodes:     map[string]string{},
		cells:     ledger{},
	}
	if !isID(c.ID) { // Clean would not find what the trial makes
		return nil, fmt.Errorf("the trial's ID is %q: it must be %d characters of %s", c.ID, idLength, idLetters)
	}
	if c.MaxPricePerHour <= 0 {
		return nil, fmt.Errorf("--max-price-per-hour is %v: it must be above 0", c.MaxPricePerHour)
	}
	if host, port, err := net.SplitHostPort(c.Endpoint); err != nil || host == "" || port == "" {
		return nil, fmt.Errorf("--endpoint is %q: it must be HOST:PORT, such as public.ecr.aws:443", c.Endpoint)
	}
	for flag, image := range map[string]string{"image": c.Image, "large-image": c.LargeImage} {
		if image == "" {
			return nil, fmt.Errorf("--%s is empty: it must be the name of an image", flag)
		}
	}
	names := t.names()
	for _, name := range c.Skip {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--skip: %q is no step: it must be one of %s", name, strings.Join(names, ", "))
		}
	}
	return t, nil
}

func (t *Trial) names() (names []string) {
	for _, group := range t.steps() {
		for _, s := range group {
			names = append(names, s.name)
		}
	}
	return names
}

func (t *Trial) skipped(step string) bool { return slices.Contains(t.Skip, step) }

// Plan is what a trial would do.
type Plan struct {
	Price Price
	// Left is what earlier trials have left, which goes first.
	Left []string
}

// Plan returns what the trial would do, and changes nothing. The error says why it must not begin.
func (t *Trial) Plan(ctx context.Context) (Plan, error) {
	if err := t.see(ctx); err != nil {
		return Plan{}, err
	}
	t.findZones(ctx)
	left, err := t.Remains(ctx)
	if err != nil {
		return Plan{}, err
	}
	price, err := t.price(t.steps())
	return Plan{Price: price, Left: left}, err
}

// see learns about the cluster.
func (t *Trial) see(ctx context.Context) error {
	list, err := t.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=virtual-kubelet," + apiv1.LabelController})
	if err != nil {
		return fmt.Errorf("list virtual nodes: %w", err)
	}
	if len(list.Items) == 0 {
		return errors.New("this cluster has no virtual node of Kip: install Kip first")
	}
	version, err := t.Kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server for its version: %w", err)
	}
	t.about = About{Kubernetes: version.GitVersion}
	for _, n := range list.Items {
		t.nodes[n.Name] = n.Labels[apiv1.LabelController]
		t.about.Nodes = append(t.about.Nodes, strings.TrimSpace(n.Name+" "+n.Status.NodeInfo.KubeletVersion))
		t.about.Region = n.Labels[corev1.LabelTopologyRegion]
	}
	return nil
}

// findZones finds a zone whose subnets of cells are all public, and one whose are all private, where the user has named none: Kip chooses
// among the subnets of a zone.
func (t *Trial) findZones(ctx context.Context) {
	if (t.PublicZone != "" || t.skipped(stepPublic)) && (t.PrivateZone != "" || t.skipped(stepPrivate)) {
		return
	}
	t.Say("asking Kip which subnets of its cells are public")
	subnets, err := t.Subnets(ctx)
	if err != nil {
		t.zoneless = "Kip was not asked for its subnets: " + err.Error()
		return
	}
	kinds := map[string][]bool{} // by zone, whether subnets are public
	for _, s := range subnets {
		kinds[s.Zone] = append(kinds[s.Zone], s.Public)
	}
	for _, zone := range slices.Sorted(maps.Keys(kinds)) {
		switch public := slices.Contains(kinds[zone], true); {
		case public && slices.Contains(kinds[zone], false):
		case public:
			t.PublicZone = cmp.Or(t.PublicZone, zone)
		default:
			t.PrivateZone = cmp.Or(t.PrivateZone, zone)
		}
	}
	t.zoneless = fmt.Sprintf("Kip has %d subnets for cells, and no zone where all are of this kind", len(subnets))
}

// Run tries all steps, removes what they have made, and reports. When ctx ends it tries no more, and removes all the same. Plan is called
// first.
func (t *Trial) Run(ctx context.Context) Report {
	r := Report{
		ID:      t.ID,
		Began:   t.Clock.Now(),
		Kipctl:  t.Kipctl,
		Cluster: t.about,
		Steps:   []StepReport{},
	}
	groups := t.steps()
	r.Price, _ = t.price(groups) // Plan has told the error
	steps, cancel := context.WithTimeoutCause(ctx, runsFor, fmt.Errorf("a trial takes %s at most", runsFor))
	if err := t.begin(steps); err != nil {
		r.Problem = err.Error()
		groups = nil
	}
	for _, group := range groups {
		r.Steps = append(r.Steps, t.group(steps, group)...)
	}
	cancel()
	r.Left = t.Clean(ctx)
	r.Spent, r.Ended = t.cells.spent(), t.Clock.Now()
	return r
}

// begin removes what is left of earlier trials, and makes the namespace of this one. Its label is the record of the trial: all that costs
// money is made after it.
func (t *Trial) begin(ctx context.Context) error {
	left, err := t.Remains(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		t.Say("removing what an earlier trial has left: " + adminapi.Some(left))
		l := t.Clean(ctx)
		if len(l.Names) > 0 {
			return fmt.Errorf("an earlier trial has left %s", adminapi.Some(l.Names))
		}
		if len(l.NotKnown) > 0 {
			return fmt.Errorf("it is not known whether an earlier trial has left something: %s", strings.Join(l.NotKnown, "; "))
		}
	}
	t.Say("making namespace " + t.namespace)
	labels := map[string]string{Label: t.ID}
	if _, err := t.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: t.namespace, Labels: labels},
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", t.namespace, err)
	}
	// The Job makes no pod. It owns all that the trial makes, and fails when its time is up; the controller of
	// ttlSecondsAfterFinished then removes it. So the garbage collector ends a trial whose kipctl was killed.
	// https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup
	job, err := t.Kube.BatchV1().Jobs(t.namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: endsName, Namespace: t.namespace, Labels: labels},
		Spec: batchv1.JobSpec{
			Parallelism:             new(int32(0)),
			ActiveDeadlineSeconds:   new(int64(livesFor.Seconds())),
			TTLSecondsAfterFinished: new(int32(0)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       t.pod(endsName, endsName, t.Image, "exit 0", time.Minute).Spec,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Job %s/%s, which ends the trial if kipctl is killed: %w", t.namespace, endsName, err)
	}
	t.owner = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
	return t.wait(ctx, func(ctx context.Context) (string, error) {
		_, err := t.Kube.CoreV1().ServiceAccounts(t.namespace).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "the service account of namespace " + t.namespace, nil
		}
		return "", err
	})
}

// group tries steps one after the other, and then removes what all of them have made.
func (t *Trial) group(ctx context.Context, group []step) (reports []StepReport) {
	results := map[string]Result{}
	for _, s := range group {
		r := StepReport{
			Name:   s.name,
			What:   s.what,
			Result: NotTried,
		}
		switch {
		case t.skipped(s.name):
			r.Why = "--skip has it"
		case ctx.Err() != nil:
			r.Why = context.Cause(ctx).Error()
		case s.needs != "" && results[s.needs] != OK:
			r.Why = fmt.Sprintf("it needs the pods of step %s, which is %s", s.needs, results[s.needs])
		default:
			t.try(ctx, s, &r)
		}
		results[s.name] = r.Result
		reports = append(reports, r)
	}
	for _, s := range slices.Backward(group) {
		if ctx.Err() == nil && !t.skipped(s.name) {
			within, cancel := context.WithTimeoutCause(ctx, ending, fmt.Errorf("not within %s", ending))
			if err := t.remove(within, s.name); err != nil {
				t.Say(fmt.Sprintf("what step %s has made is not gone yet: %v", s.name, err))
			}
			cancel()
		}
	}
	return reports
}

// try tries one step.
func (t *Trial) try(ctx context.Context, s step, r *StepReport) {
	t.Say(s.name + ": " + s.what)
	began := t.Clock.Now()
	within, cancel := context.WithTimeoutCause(ctx, s.most, fmt.Errorf("not within %s", s.most))
	defer cancel()
	run := &running{
		Trial:   t,
		step:    s,
		report:  r,
		created: map[string]time.Time{},
		started: map[string]time.Time{},
		cells:   map[types.UID]apiv1.Cell{},
	}
	err := s.run(within, run)
	if len(run.created) > 0 && ctx.Err() == nil && len(r.Pods) == 0 {
		if seen := run.observe(ctx); seen != nil {
			run.found("not all of the pods' cells were seen to their end: %v", seen)
		}
	}
	if err == nil && s.check != nil {
		err = s.check(r)
	}
	r.Seconds = t.Clock.Since(began).Seconds()
	if _, lacks := errors.AsType[*notTriedError](err); lacks {
		r.Result, r.Why = NotTried, err.Error()
	} else if err != nil {
		r.Result, r.Why = Failed, err.Error()
		run.tellLogs(ctx)
	} else {
		r.Result = OK
	}
	said := fmt.Sprintf("%s: %s", s.name, r.Result)
	if r.Why != "" {
		said += ": " + r.Why
	}
	t.Say(said)
}
