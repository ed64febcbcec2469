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

// unplacedEvery is how often Kip looks for pods that none of its nodes takes.
const unplacedEvery = time.Minute

// onNoNode selects the pods that wait for a node, which are few.
var onNoNode = fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}.String()

// unplaced are pods that no node takes, and of which of the Events that say why each was told.
type unplaced map[types.UID]string

// reportUnplaced reports once of each pod that selects Kip's nodes and that none of them takes, until ctx ends: it was made while the
// API server did not reach Kip's webhook, or keptAway says what else keeps it from all nodes. Kip changes no pod: that would need the right
// to change all pods of the cluster, which no node has.
func (l *term) reportUnplaced(ctx context.Context, keptAway func(context.Context, *corev1.Pod) string) error {
	taint, err := l.Taint()
	if err != nil {
		return err
	}
	ticker := l.clock.NewTicker(unplacedEvery)
	defer ticker.Stop()
	told := unplaced{}
	for said := ""; ; {
		cfg := l.configNow()
		rules := admissionRules(cfg, l.controllerID, namesOf(cfg, l.NodeName), taint)
		now, err := l.unplaced(ctx, rules, told, keptAway)
		switch {
		case err == nil:
			said, told = "", now
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			l.Log.Warn("Kip does not know which pods none of its nodes takes", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// unplaced returns the pods that none of Kip's nodes takes, and reports those that are not told of.
func (l *term) unplaced(
	ctx context.Context, rules admission.Rules, told unplaced, keptAway func(context.Context, *corev1.Pod) string,
) (now unplaced, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// Of a moment ago will do: no read of the API server's own store.
	list, err := l.api.asKip.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: onNoNode, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	now = unplaced{}
	for i := range list.Items {
		pod := &list.Items[i]
		if !rules.Unplaced(pod) {
			continue
		}
		var said events.Event
		if rules.Untolerating(pod) {
			if l.WebhookPort == 0 {
				continue // no webhook gives it the toleration
			}
			said = events.NewTolerationMissing(pod.Namespace, pod.Name, rules.Taint.Key)
		} else if why := keptAway(ctx, pod); why != "" {
			said = events.NewPodKeptAway(why)
		} else {
			continue
		}
		now[pod.UID] = said.Reason
		if told[pod.UID] != said.Reason {
			l.events.Event(apiv1.Ref(pod), said)
		}
	}
	return now, nil
}
