package kip

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/config"
)

// profiles are those of the configuration that this process began with: the chart makes the selectors of the webhook of the same.
func (k *process) profiles() (admission.Profiles, error) {
	all := admission.Profiles{
		System: config.SystemNamespaces,
		IsGPU:  func(name corev1.ResourceName) bool { return config.IsGPU(string(name)) },
		LabelsOf: (&namespaceLabels{
			get: func(ctx context.Context, name string) (*corev1.Namespace, error) {
				return k.api.profiled.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
			},
			clock: k.clock,
		}).of,
		AnnotationsOf: k.annotationsOf,
	}
	if own := k.Provisioner.Namespace; own != "" {
		all.System = append([]string{own}, all.System...)
	}
	for i, p := range k.cfg.Admission.Profiles {
		one, err := profile(p)
		if err != nil {
			return admission.Profiles{}, fmt.Errorf("admission.profiles[%d]: %w", i, err)
		}
		all.List = append(all.List, one)
	}
	return all, nil
}

// profile is one as package admission has it.
func profile(p config.Profile) (admission.Profile, error) {
	ofNamespace, err := p.NamespaceSelector.Selector()
	if err != nil {
		return admission.Profile{}, err
	}
	ofPod, err := p.PodSelector.Selector()
	if err != nil {
		return admission.Profile{}, err
	}
	one := admission.Profile{
		Name:            p.Name,
		Namespaces:      p.Namespaces,
		NamespaceLabels: ofNamespace,
		PodLabels:       ofPod,
		ServiceAccounts: p.ServiceAccounts,
		OwnerKinds:      p.OwnerKinds,
		GPU:             p.GPU,
		MinCPU:          p.MinCPU,
		MinMemory:       p.MinMemory,
		Mode:            admission.Mode(p.Mode),
		Annotations:     p.Annotations,
	}
	for _, name := range p.Resources {
		one.Resources = append(one.Resources, corev1.ResourceName(name))
	}
	if cost := p.DeletionCost(); cost != 0 {
		one.DeletionCost = strconv.Itoa(cost)
	}
	return one, nil
}

// annotationsOf returns the annotations of a pod that is on no node of Kip's yet. Kip may list pods, and get none.
func (k *process) annotationsOf(ctx context.Context, namespace, name string) (map[string]string, error) {
	list, err := k.api.profiled.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return list.Items[0].Annotations, nil
}

const (
	// labelsAge is how old the labels of a namespace may be.
	labelsAge = 5 * time.Second
	// labelsKept bounds the memory that they take.
	labelsKept = 1024
)

// namespaceLabels reads the labels of namespaces, and keeps them for a moment: many pods are made at once.
type namespaceLabels struct {
	get   func(ctx context.Context, name string) (*corev1.Namespace, error)
	clock clock.PassiveClock

	mu   sync.Mutex
	kept map[string]labelsRead
}

type labelsRead struct {
	labels labels.Set
	at     time.Time
}

func (n *namespaceLabels) of(ctx context.Context, name string) (labels.Set, error) {
	now := n.clock.Now()
	n.mu.Lock()
	read, has := n.kept[name]
	n.mu.Unlock()
	if has && now.Sub(read.at) < labelsAge {
		return read.labels, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the API server waits for two
	defer cancel()
	is, err := n.get(ctx, name)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil || len(n.kept) >= labelsKept {
		n.kept = map[string]labelsRead{}
	}
	n.kept[name] = labelsRead{labels: is.Labels, at: now}
	return is.Labels, nil
}
