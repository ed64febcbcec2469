package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	kipv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/story"
)

// patience is how long nothing may happen before the waiting is told.
const patience = 5 * time.Second

// FollowJob tells the story of a Job's pod until it is done, which is when its
// cells are gone. The Job must be created after began; waiting is told why when
// nothing happens for a while.
func (s *Stack) FollowJob(ctx context.Context, namespace, job string, began time.Time, tell func(story.Step),
	waiting func(why string)) (story.Outcome, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Everything that is observed is told by one goroutine, this one.
	observed := make(chan func(*story.Story))
	end, err := s.Jobs.observe(ctx, namespace, job, func(f func(*story.Story)) {
		select {
		case observed <- f:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return story.Outcome{}, fmt.Errorf("follow job %s/%s: %w", namespace, job, err)
	}
	defer func() { stop(); end() }()

	failed := make(chan error, 1)
	go func() { failed <- s.Failed(ctx) }()

	tale := story.New(began, tell)
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	for !tale.Done() {
		select {
		case f := <-observed:
			f(tale)
			quiet.Reset(patience)
		case <-quiet.C:
			waiting(tale.Waiting())
			quiet.Reset(patience)
		case err := <-failed:
			if err == nil {
				err = ctx.Err()
			}
			return story.Outcome{}, fmt.Errorf("while waiting for %s: %w", tale.Waiting(), err)
		case <-ctx.Done():
			return story.Outcome{}, fmt.Errorf("while waiting for %s: %w", tale.Waiting(), ctx.Err())
		}
	}
	return tale.Outcome(), nil
}

// jobs shows what becomes of Jobs.
type jobs struct {
	*site
	controlPlane *controlPlane
}

// observe has the Job's pods, the Events of pods and the cells watched until ctx ends; end
// returns when nothing watches any more.
func (s *jobs) observe(ctx context.Context, namespace, job string, observe func(func(*story.Story))) (end func(), err error) {
	client, err := kubernetes.NewForConfig(s.controlPlane.Cluster.AdminConfig())
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(s.controlPlane.Cluster.AdminConfig())
	if err != nil {
		return nil, err
	}
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "batch.kubernetes.io/job-name=" + job }))
	events := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "involvedObject.kind=Pod" }))
	cells := dyn.Resource(kipv1.Resource)
	cellInformer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return cells.List(ctx, o) },
		WatchFuncWithContext: cells.Watch,
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})

	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods.Core().V1().Pods().Informer(): handlerOf(func(obj any) {
			observe(func(s *story.Story) { s.Pod(time.Now(), obj.(*corev1.Pod)) })
		}, nil),
		events.Core().V1().Events().Informer(): handlerOf(func(obj any) {
			observe(func(s *story.Story) { s.Event(time.Now(), obj.(*corev1.Event)) })
		}, nil),
		cellInformer: handlerOf(func(obj any) {
			observe(func(s *story.Story) {
				if c, err := cellOf(obj); err == nil {
					s.Cell(c)
				}
			})
		}, func(obj any) {
			observe(func(s *story.Story) {
				if c, err := cellOf(obj); err == nil {
					s.CellDeleted(time.Now(), c)
				}
			})
		}),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, err
		}
	}
	pods.Start(ctx.Done())
	events.Start(ctx.Done())
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		// The resource is new, and an informer that is told so lists again only after
		// seconds.
		served := func(ctx context.Context) (bool, error) {
			_, err := cells.List(ctx, metav1.ListOptions{Limit: 1})
			return !apierrors.IsNotFound(err), nil // any other error is the informer's to tell
		}
		if wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, served) == nil {
			cellInformer.RunWithContext(ctx)
		}
	}()
	return func() { <-followed; pods.Shutdown(); events.Shutdown() }, nil
}

// handlerOf tells of what is new or has changed, and with gone of what is deleted.
func handlerOf(changed, gone func(obj any)) cache.ResourceEventHandlerFuncs {
	handler := cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }}
	if gone != nil {
		handler.DeleteFunc = func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			gone(obj)
		}
	}
	return handler
}

func cellOf(obj any) (*kipv1.Cell, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("not a cell: %T", obj)
	}
	var c kipv1.Cell
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c); err != nil {
		return nil, fmt.Errorf("read cell %s: %w", u.GetName(), err)
	}
	return &c, nil
}

// PodLog returns the log of a container, as kubectl would show it.
func (s *jobs) PodLog(ctx context.Context, namespace, pod, container string) (_ []byte, err error) {
	client, err := kubernetes.NewForConfig(s.controlPlane.Cluster.AdminConfig())
	if err != nil {
		return nil, err
	}
	log, err := client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of pod %s/%s: %w", namespace, pod, err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	return io.ReadAll(log)
}
