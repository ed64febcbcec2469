package events

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Event is what Kip says of a pod or a node. Type is one of the API's.
type Event struct{ Type, Reason, Message string }

func warn(reason, format string, args ...any) Event {
	return Event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
}

// NewCellRefuses is of a pod whose cell has not obeyed Kip for so long.
func NewCellRefuses(cell string, lasts time.Duration, why error) Event {
	return warn(CellRefuses, "Cell %s has not obeyed Kip for %s, so what its pod does is not known: %v. Delete the pod to end the cell",
		cell, lasts.Round(time.Second), why)
}

// NewCellLaunched is of a pod whose cell has an instance.
func NewCellLaunched(cell, instance, offering string) Event {
	return Event{corev1.EventTypeNormal, CellLaunched, fmt.Sprintf("Launched instance %s (%s) as cell %s", instance, offering, cell)}
}

// NewCellLost is of a pod whose cell is there no more.
func NewCellLost(cell, why string) Event { return warn(CellLost, "Cell %s is lost: %s", cell, why) }

// NewNoMachine is of a pod of a DaemonSet that asks for no machine. key is what grants its namespace one, "" if it may.
func NewNoMachine(daemonSet, namespace, annotation, key string) Event {
	granted := ""
	if key != "" {
		granted = fmt.Sprintf(", and have namespace %s granted it (%s of provider.yaml)", namespace, key)
	}
	return Event{corev1.EventTypeNormal, NoMachine, fmt.Sprintf(
		"Kip launches no machine for a pod of a DaemonSet, so its containers do not run. To get one, set the annotation %s: %q in the pod template of DaemonSet %s%s",
		annotation, "true", daemonSet, granted)}
}

// NewMachineNotGranted is of a pod of a DaemonSet that asks for a machine and may not have one.
func NewMachineNotGranted(why error) Event {
	return warn(NotGranted, "%v. Kip launches no machine for the pod, so its containers do not run. Once it is granted, delete the pod to get one",
		why)
}

// NewTolerationMissing is of a pod that was made while the API server did not reach Kip's webhook.
func NewTolerationMissing(namespace, pod, taint string) Event {
	return warn(TolerationMissing, "The pod selects Kip's nodes and does not tolerate their taint %[1]s, so it is on no node: it was made while the "+
		"API server did not reach Kip's webhook. Delete it, and its controller makes one that does: kubectl delete pod %[3]s -n %[2]s. "+
		"A pod without a controller you make again", taint, namespace, pod)
}

// NewLaunchHeld is of a pod whose cell is not launched before whoever runs Kip has mended what why says. The reason is
// [CloudInitUnfit], [AgentNotStarted] or [LaunchDelayed].
func NewLaunchHeld(reason, why string) Event {
	return warn(reason, "%s; the pod waits until whoever runs Kip has mended it", why)
}

// NewLaunchesPaused is of a pod that waits until Kip has the right to launch instances.
func NewLaunchesPaused(why string) Event {
	return warn(LaunchesPaused, "Kip has no right to launch instances: %s; the pod waits until it has", why)
}

// NewAgentNotStarted is of the virtual node, when so many machines could not have the agent of cells.itzo.
func NewAgentNotStarted(machines int, why string) Event {
	return warn(AgentNotStarted, "%d machines could not have the agent of cells.itzo, and launches wait until that is mended: %s",
		machines, why)
}

// NewAgentPortOpen is of the virtual node, where others than Kip may reach the port of agents.
func NewAgentPortOpen(what string) Event { return warn(AgentPortOpen, "%s", what) }

// NewCellDefinitionUnfit is of the virtual node, where the cluster lacks the definition of the Cell resource, or has an older one.
func NewCellDefinitionUnfit(why error) Event {
	return warn(CellDefinitionUnfit, "Kip cannot show all of its cells to kubectl: %v. Pods run. "+
		"Run kipctl crd update, or upgrade Kip's chart", why)
}

// NewInterrupted is of a pod whose cell the cloud takes back at a time.
func NewInterrupted(cell, instance string, at time.Time, why string) Event {
	return warn(Interrupted, "Cell %s will be lost: the cloud takes instance %s back at %s: %s",
		cell, instance, at.UTC().Format(time.RFC3339), why)
}

// NewRebalanceRecommended is of a pod whose cell is at risk.
func NewRebalanceRecommended(cell string) Event {
	return Event{corev1.EventTypeNormal, RebalanceRecommended,
		"The cloud says that cell " + cell + " is more likely than usual to be taken back; the pod runs on until there is a notice"}
}
