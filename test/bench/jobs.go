package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	burstJobs = 500
	// jobWork is how long each of them works, once its containers run.
	jobWork = 2 * time.Second
	// jobStandby is how many cells stand by for the second burst.
	jobStandby = 50
	// billedAtLeast is what EC2 charges for an instance of Linux at least.
	billedAtLeast = 60 * time.Second
	// sampleEvery is how often the states of instances are read.
	sampleEvery = 100 * time.Millisecond
)

// jobs measures a burst of short Jobs on the model of EC2: what machines are paid for beside what the Jobs work, without and with
// standby cells.
func jobs(ctx context.Context) (err error) {
	s, model, err := startOnEC2(ctx, "kipjobs0", "10.116.0.0/16")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	note("each of %d Jobs works for %s; a cell pulls no image; launch, boot and end take what sim.EC2 says", burstJobs, jobWork)
	if _, err := s.create(ctx, "first", 1); err != nil {
		return err
	}
	if err := s.running(ctx, 1); err != nil {
		return err
	}
	if err := s.endAll(ctx); err != nil {
		return err
	}
	b := jobBurst{simulated: s, machines: model.Machines()}
	if err := b.measure(ctx, fmt.Sprintf("jobs_%d_", burstJobs), 0); err != nil {
		return err
	}
	if _, err := s.Reconfigure(ctx, func(provider map[string]any) {
		provider["cells"].(map[string]any)["standbyCells"] = []any{map[string]any{"instanceType": ec2Type, "count": jobStandby}}
	}); err != nil {
		return err
	}
	return b.measure(ctx, fmt.Sprintf("jobs_%d_standby_%d_", burstJobs, jobStandby), jobStandby)
}

// jobBurst is where bursts of Jobs are measured.
type jobBurst struct {
	*simulated

	machines *sim.Cloud
}

// measure runs the Jobs and prints what they took and cost. So many cells stand by before and after.
func (b jobBurst) measure(ctx context.Context, name string, standby int) error {
	progress("%d Jobs, %d standby cells", burstJobs, standby)
	if err := b.rest(ctx, standby); err != nil {
		return err
	}
	// What stands by has been paid for a minute, and the account's budget of calls is full again.
	if err := harness.Sleep(ctx, billedAtLeast); err != nil {
		return err
	}
	account := newAccount(b.machines)
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan struct{})
	go func() { defer close(sampled); account.sample(sampling) }()
	defer func() { stop(); <-sampled }()

	began := time.Now()
	if err := b.createJobs(ctx); err != nil {
		return err
	}
	took, err := b.completed(ctx)
	if err != nil {
		return err
	}
	wall := time.Since(began)
	if err := b.rest(ctx, standby); err != nil {
		return err
	}
	paid := account.since(began)
	print(name+"wall_seconds", wall.Seconds(), "s")
	printAll(name+"job_seconds", took, "s")
	print(name+"work_seconds", burstJobs*jobWork.Seconds(), "s")
	print(name+"machines", float64(paid.launched), "machines")
	print(name+"machine_seconds", paid.time.Seconds(), "s")
	print(name+"billed_seconds", paid.billed.Seconds(), "s")
	print(name+"standby_seconds", float64(standby)*time.Since(began).Seconds(), "s")
	print(name+"dollars", paid.billed.Hours()*ec2Price, "$")
	return b.removeJobs(ctx)
}

// createJobs makes all Jobs.
func (b jobBurst) createJobs(ctx context.Context) error {
	zero := int32(0)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(writers)
	for i := range burstJobs {
		all.Go(func() error {
			_, err := b.Admin.BatchV1().Jobs(metav1.NamespaceDefault).Create(ctx, &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("job-%d", i)},
				Spec: batchv1.JobSpec{BackoffLimit: &zero, Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{hollow.AnnotationRunSeconds: fmt.Sprint(jobWork.Seconds())}},
					Spec: corev1.PodSpec{
						NodeSelector:  map[string]string{"type": "virtual-kubelet"},
						RestartPolicy: corev1.RestartPolicyNever,
						Containers: []corev1.Container{{Name: "main", Image: presentImage, Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}},
					},
				}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	return all.Wait()
}

// completed waits until all Jobs are complete, and returns what each took.
func (b jobBurst) completed(ctx context.Context) (took []float64, err error) {
	said := time.Now()
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, scalePatience, true, func(ctx context.Context) (bool, error) {
		list, err := b.Admin.BatchV1().Jobs(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		took = nil
		for _, j := range list.Items {
			if j.Status.Failed > 0 {
				return false, fmt.Errorf("job %s has failed", j.Name)
			}
			if j.Status.CompletionTime != nil {
				took = append(took, j.Status.CompletionTime.Sub(j.CreationTimestamp.Time).Seconds())
			}
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			progress("  %d of %d Jobs are complete", len(took), burstJobs)
		}
		return len(took) == burstJobs, nil
	})
	return took, err
}

// rest waits until no machine is paid for but those that stand by, which are ready.
func (b jobBurst) rest(ctx context.Context, standby int) error {
	if err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, scalePatience, true, func(context.Context) (bool, error) {
		n := 0
		for _, i := range b.machines.Truth() {
			if i.State == cloud.Terminating {
				continue
			}
			if n++; i.State != cloud.Running || i.Booted.IsZero() {
				return false, nil
			}
		}
		return n == standby, nil
	}); err != nil {
		return fmt.Errorf("wait until there are %d machines: %w", standby, err)
	}
	return nil
}

// removeJobs deletes the Jobs and their pods.
func (b jobBurst) removeJobs(ctx context.Context) error {
	background := metav1.DeletePropagationBackground
	if err := b.Admin.BatchV1().Jobs(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background},
		metav1.ListOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, scalePatience, true, func(ctx context.Context) (bool, error) {
		pods, err := b.Admin.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(pods.Items) == 0, err
	})
}

// account notes from when to when instances are paid for: EC2 charges from the state running until it begins to end one.
type account struct {
	machines *sim.Cloud

	mu            sync.Mutex
	running, ends map[string]time.Time
}

func newAccount(machines *sim.Cloud) *account {
	a := &account{machines: machines, running: map[string]time.Time{}, ends: map[string]time.Time{}}
	a.look()
	return a
}

// sample reads states until ctx ends.
func (a *account) sample(ctx context.Context) {
	for harness.Sleep(ctx, sampleEvery) == nil {
		a.look()
	}
}

func (a *account) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, i := range a.machines.History() {
		if a.running[i.ID].IsZero() {
			if i.State == cloud.Running {
				a.running[i.ID] = now
			}
		} else if a.ends[i.ID].IsZero() && i.State == cloud.Terminating {
			a.ends[i.ID] = now
		}
	}
}

// payment is what machines were paid for.
type payment struct {
	launched     int           // which began to run meanwhile
	time, billed time.Duration // billed is time with the least that is charged for each
}

// since is what was paid for from a time until now. What ran before has been paid for the least already.
func (a *account) since(from time.Time) (p payment) {
	a.look()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for id, began := range a.running {
		end, ended := a.ends[id]
		if !ended {
			end = now
		}
		if began.Before(from) {
			p.time += end.Sub(from)
			p.billed += end.Sub(from)
			continue
		}
		p.launched++
		p.time += end.Sub(began)
		p.billed += max(end.Sub(began), billedAtLeast)
	}
	return p
}
