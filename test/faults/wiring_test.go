package faults

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// twoNodes are the virtual nodes: the second is that of zone b.
type twoNodes struct {
	k     *kip
	short shortages
}

func (twoNodes) StandbyNode(o offering.Offering) string {
	if o.Zone == "b" {
		return secondNode
	}
	return firstNode
}

func (twoNodes) Listed(string) bool                              { return true }
func (n twoNodes) Client(string) kubernetes.Interface            { return asNode{k: n.k} }
func (twoNodes) Elsewhere(context.Context, *corev1.Pod) []string { return nil }
func (twoNodes) TurnsAway(context.Context, *corev1.Pod) bool     { return false }

// Rank is that of how an offering is bought, spot first, of pods that take both.
func (n twoNodes) Rank(_ context.Context, pod *corev1.Pod, _ string, keys []offering.Key) (placement.Ranks, error) {
	if pod.Labels["size"] != "spot" {
		return placement.Ranks{Of: make([]int, len(keys)), WhyNot: []error{nil}}, nil
	}
	r := placement.Ranks{WhyNot: make([]error, 2)}
	for _, key := range keys {
		r.Of = append(r.Of, map[bool]int{true: 1, false: 2}[key.Spot])
	}
	for i, spot := range []bool{true, false} {
		if len(n.short.available(offeringsOf("small", spot))) == 0 {
			r.WhyNot[i] = &placement.NoCapacityError{Need: "cpu 1", Types: []string{"small"}}
		}
	}
	return r, nil
}

// asNode is a node's client, of pods alone.
type asNode struct {
	kubernetes.Interface
	corev1client.CoreV1Interface
	k *kip
}

func (n asNode) CoreV1() corev1client.CoreV1Interface { return n }

func (n asNode) Pods(string) corev1client.PodInterface { return client{s: n.k.w.api, k: n.k} }

// Choose goes by the size that a pod asks for.
func (n twoNodes) Choose(_ context.Context, pod *corev1.Pod, zone string) (placement.Chosen, error) {
	var list []offering.Offering
	switch pod.Labels["size"] {
	case "spot":
		list = append(offeringsOf("small", true), offeringsOf("small", false)...)
	case "small":
		list = append(offeringsOf("small", false), offeringsOf("large", false)...)
	case "reserved":
		inside := offeringsOf("small", false)[0]
		onHost := inside
		inside.Reservation, onHost.Reservation, onHost.Dedicated = oneReserved, oneHost, true
		list = append([]offering.Offering{inside, onHost}, offeringsOf("small", false)...)
	case "large":
		list = offeringsOf("large", false)
	default:
		return placement.Chosen{}, &placement.UnplaceableError{Need: "cpu 1000"}
	}
	list = slices.DeleteFunc(list, func(o offering.Offering) bool { return zone != "" && o.Zone != zone })
	if list = n.short.available(list); len(list) == 0 {
		return placement.Chosen{}, &placement.NoCapacityError{Need: "cpu 1", Types: []string{"small", "large"}}
	}
	return placement.Chosen{Offerings: list}, nil
}

// reporter notes the Events of pods, and looks whether some are due.
type reporter struct{ k *kip }

func (r reporter) Event(pod apiv1.PodReference, e events.Event) {
	if r.k.alive() != nil {
		return
	}
	w := r.k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports[pod.UID] = append(w.reports[pod.UID], report{time.Now(), e.Type, e.Reason, e.Message})
	w.said = append(w.said, fmt.Sprintf("%v %s %s: %s", time.Since(w.began), pod.Name, e.Reason, e.Message))
	w.plays["Event "+e.Reason]++
	switch e.Reason {
	case events.CellLost:
		w.checkLostLocked(r.k, pod.UID, e.Message)
	case events.CellNotTerminated:
		w.attemptLocked(e.Message)
	}
	w.log.Debug("event", "pod", pod.Name, "reason", e.Reason, "message", e.Message)
}

// unobserved is told of pods, and does nothing.
type unobserved struct{}

func (unobserved) PodRunning(cells.Cell, time.Time) {}
func (unobserved) PodGone(types.UID)                {}

// askedFor are logs that agents are asked for, and that nobody keeps.
type askedFor struct{}

func (askedFor) SaveLogs(ctx context.Context, _ cells.Cell, agent agentapi.Conn) error {
	log, err := agentapi.Client{Conn: agent}.Logs(ctx, "default", "pod", "main", false)
	if err != nil {
		return err
	}
	return log.Close()
}

func (askedFor) HasStreams(types.UID) bool { return false }

func (askedFor) Finish(context.Context, types.UID) {}
