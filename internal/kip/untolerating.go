package kip

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/events"
)

// untoleratingEvery is how often Kip looks for pods that were made without its webhook.
const untoleratingEvery = time.Minute

// onNoNode selects the pods that wait for a node, which are few.
var onNoNode = fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}.String()

// reportUntolerating reports once of each pod that no node takes, since it was made while the API server did not reach Kip's webhook, until
// ctx ends. It changes no pod: that would need the right to change all pods of the cluster, which no node has.
func (l *term) reportUntolerating(ctx context.Context) error {
	taint, err := l.Taint()
	if err != nil {
		return err
	}
	ticker := l.clock.NewTicker(untoleratingEvery)
	defer ticker.Stop()
	told := map[types.UID]bool{}
	for said := ""; ; {
		cfg := l.configNow()
		rules := admissionRules(cfg, l.controllerID, namesOf(cfg, l.NodeName), taint)
		now, err := l.untolerating(ctx, rules, told)
		switch {
		case err == nil:
			said, told = "", now
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			l.Log.Warn("Kip does not know which pods lack the toleration of its nodes", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// untolerating returns the pods that are as they should not be, and reports those that are not told of.
func (l *term) untolerating(ctx context.Context, rules admission.Rules, told map[types.UID]bool) (now map[types.UID]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// Of a moment ago will do: no read of the API server's own store.
	list, err := l.api.asKip.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: onNoNode, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	now = map[types.UID]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		if !rules.Untolerating(pod) {
			continue
		}
		now[pod.UID] = true
		if !told[pod.UID] {
			l.events.Event(apiv1.Ref(pod), events.NewTolerationMissing(pod.Namespace, pod.Name, rules.Taint.Key))
		}
	}
	return now, nil
}
