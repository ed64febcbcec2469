package events

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Event is what Kip reports about a pod, a claim or a node. Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
// Message says what happened, why, and what Kip does next or what a person can do. It has a full stop at the end
// unless a value ends it.
type Event struct{ Type, Reason, Message string }

func normal(reason, format string, args ...any) Event {
	return Event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)}
}

func warn(reason, format string, args ...any) Event {
	return Event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
}

// The Events about a pod that has no cell.

// CleanedUp is why pods get no cell since kipctl cleanup was run.
const CleanedUp = "Kip is being cleaned up (kipctl cleanup), and launches no cells until it is restarted"

// NewPaused is about a pod that gets no cell, for a reason such as [CleanedUp].
func NewPaused(why string) Event { return warn(paused, "The pod waits: %s", why) }

// NewNotGranted is about a pod that asks for something that its namespace may not have.
func NewNotGranted(why error) Event {
	return warn(NotGranted, "Kip launches no cell for the pod: %v. Change the pod, or grant it in provider.yaml and restart Kip.", why)
}

// NewInvalidAnnotation is about a pod with an annotation that Kip does not know, or whose value is not valid.
func NewInvalidAnnotation(why error) Event {
	return warn(InvalidAnnotation, "Kip launches no cell until you fix the pod's annotation: %v", why)
}

// NewAnnotationUnsupported is about a pod that asks for something that cells of this cloud cannot have.
func NewAnnotationUnsupported(why error) Event {
	return warn(AnnotationUnsupported, "Kip launches no cell for the pod: %v. Change the annotation, or use a cloud of virtual machines.", why)
}

// NewUnplaceable is about a pod that fits no instance type.
func NewUnplaceable(why error) Event {
	return warn(Unplaceable, "No instance type fits the pod: %v. Change the pod's resources or annotations.", why)
}

// NewPodOutOfCapacity is about a pod that fits instance types of which the cloud has none now.
func NewPodOutOfCapacity(why error) Event {
	return warn(NoCapacity, "The pod waits for the cloud: %v; retrying.", why)
}

// NewBudgetExceeded is about a pod whose cell would exceed the budget of its namespace.
func NewBudgetExceeded(why error) Event {
	return warn(BudgetExceeded, "The pod waits for the budget of its namespace: %v. Kip checks again every 30 seconds.", why)
}

// NewCellNotRequested is about a pod for which Kip cannot choose or record a cell now.
func NewCellNotRequested(why error) Event {
	return warn(cellNotRequested, "Failed to request a cell for the pod: %v; retrying.", why)
}

// What Kip waits for while it does not know all of its instances.
const (
	// StoreIsBehind is that a person decides.
	StoreIsBehind = "the cloud has instances of this Kip that its store does not know: the store is empty or older than they are, " +
		"or another Kip has the same identity; Kip launches nothing, and ends only what somebody has asked to end, " +
		"until you decide with kipctl generation"
	// InstancesUnread is the first list of the cloud.
	InstancesUnread = "Kip has not read a complete list of its instances in the cloud yet, and one that its store does not know may run " +
		"the pod; Kip goes on when it has the list"
	// ZonesUnlisted is a list of the cloud without gaps.
	ZonesUnlisted = "the cloud has not listed the instances of every zone yet, so Kip does not know what runs in the others"
)

// StoreUnproven is what a Kip with a new store waits for: another list of the cloud, after a time.
func StoreUnproven(after time.Time) string {
	return fmt.Sprintf("Kip's store is new, and an instance from a lost store may run the pod; Kip lists its instances in the cloud "+
		"again after %s, and goes on if there is none", after.UTC().Format(time.TimeOnly+" UTC"))
}

// InstancesMayRun is what a pod waits for that instances may run of which Kip has no record: their end.
func InstancesMayRun(instances []string) string {
	return fmt.Sprintf("instances %v may run it, since a Kip whose state is lost launched them; Kip terminates them before another runs it",
		instances)
}

// NewStoreBehind is about a pod that gets no cell while the cloud has instances that Kip's store does not know: why is [StoreIsBehind].
func NewStoreBehind(why string) Event { return warn(StoreBehind, "The pod waits: %s", why) }

// NewInstancesNotListed is about a pod that an instance may run which the cloud has not listed yet: why is [InstancesUnread],
// [ZonesUnlisted] or [StoreUnproven].
func NewInstancesNotListed(why string) Event {
	return warn(InstancesNotListed, "The pod waits: %s", why)
}

// NewCellUnknown is about a pod that an instance may run of which Kip has no record: why is [InstancesMayRun] or [ZonesUnlisted].
func NewCellUnknown(why string) Event { return warn(cellUnknown, "The pod waits: %s", why) }

// NewVolumeUnsupported is about a pod with a volume that cannot work on a cell.
func NewVolumeUnsupported(why error) Event {
	return warn(VolumeUnsupported, "Kip launches no cell for the pod: %v. Use another kind of volume.", why)
}

// NewVolumeNotReady is about a pod whose claim or disk is not there yet.
func NewVolumeNotReady(why error) Event {
	return warn(VolumeNotReady, "Kip launches no cell until the pod's volume is ready: %v", why)
}

// NewVolumeOfAnotherPod is about a pod that has no cell while another pod uses its disk.
func NewVolumeOfAnotherPod(why error) Event {
	return warn(volumeInUse, "Kip launches no cell until the pod's volume is free: %v", why)
}

// NewTolerationMissing is about a pod that was made while the API server did not reach Kip's webhook.
func NewTolerationMissing(namespace, pod, taint string) Event {
	return warn(TolerationMissing, "The pod selects Kip's nodes but does not tolerate their taint %s, so no node takes it: "+
		"the API server did not reach Kip's webhook when the pod was made. Delete the pod, and its controller makes another: "+
		"kubectl delete pod %s -n %s. If it has no controller, make it again yourself.", taint, pod, namespace)
}

// NewNoMachine is about a pod of a DaemonSet that asks for no machine. key is the key of provider.yaml by which its namespace
// may have one; "" if it may already.
func NewNoMachine(daemonSet, namespace, annotation, key string) Event {
	grant := ""
	if key != "" {
		grant = fmt.Sprintf(", and grant it to namespace %s (%s of provider.yaml)", namespace, key)
	}
	return normal(NoMachine, "Kip launches no machine for a pod of a DaemonSet, so its containers do not run. "+
		"To get one, set the annotation %s: %q in the pod template of DaemonSet %s%s.", annotation, "true", daemonSet, grant)
}

// NewBesidePods is about a pod of a DaemonSet whose copies run beside pods, by a key of provider.yaml or an annotation.
func NewBesidePods(daemonSet, by string) Event {
	return normal(BesidePods, "DaemonSet %s runs beside the pods of this node, a copy on the cell of each (%s). "+
		"This pod stands for its copies.", daemonSet, by)
}

// NewNotBesidePods is about a pod of a DaemonSet that does not run beside pods, although it is to.
func NewNotBesidePods(daemonSet string, why error) Event {
	return warn(daemonSetLeftOut, "DaemonSet %s does not run beside pods: %v", daemonSet, why)
}

// NewDaemonSetLeftOut is about a pod whose cell does not run a DaemonSet that is to run beside it, and about the DaemonSet's.
func NewDaemonSetLeftOut(daemonSet, pod, cell, why string) Event {
	return warn(daemonSetLeftOut, "DaemonSet %s does not run beside pod %s on cell %s: %s. The pod runs without it.", daemonSet, pod, cell, why)
}

// NewNoRoomForDaemonSet is about a pod for which Kip requests a machine that need not have room for a DaemonSet, and about the
// DaemonSet's.
func NewNoRoomForDaemonSet(daemonSet, pod string, why error) Event {
	return warn(daemonSetLeftOut, "Pod %s gets a machine without room for DaemonSet %s, which runs there if it fits all the same: %v", pod,
		daemonSet, why)
}

// NewWaitsForDaemonSets is about a pod that is not started before DaemonSets beside it are ready, for so long at most.
func NewWaitsForDaemonSets(daemonSets []string, most time.Duration) Event {
	return normal(waitsForDaemonSets, "The pod waits until DaemonSets beside it are ready, for at most %v: %s", most,
		strings.Join(daemonSets, ", "))
}

// NewDaemonSetNotReady is about a pod that is started though a DaemonSet beside it was not ready in the time that it had.
func NewDaemonSetNotReady(daemonSet string, after time.Duration, why string) Event {
	return warn(daemonSetNotReady, "DaemonSet %s was not ready beside the pod after %v: %s. The pod starts without it.", daemonSet, after, why)
}

// NewDaemonSetAbsent is about a node on which a DaemonSet, named by a key of provider.yaml, has no pod: it runs beside no pod there.
func NewDaemonSetAbsent(daemonSet, by, why string) Event {
	return warn(daemonSetAbsent, "DaemonSet %s (%s) runs beside no pod of this node, since it has no pod here: %s. `kipctl doctor` says what helps.",
		daemonSet, by, why)
}

// NewMachineNotGranted is about a pod of a DaemonSet that asks for a machine and may not have one.
func NewMachineNotGranted(why error) Event {
	return warn(NotGranted, "Kip launches no machine for the pod, so its containers do not run: %v. "+
		"Grant it and restart Kip, then delete the pod to get a machine.", why)
}

// NewNotRestarted is about a pod that has failed with its cell.
func NewNotRestarted() Event {
	return warn(CellLost, "The pod has failed: its cell was lost, and its restartPolicy is Never.")
}

// NewCellsNotReady is about a pod that has failed after so many cells.
func NewCellsNotReady(cells int) Event {
	return warn(CellsNotReady, "The pod has failed: Kip launched %d cells in a row for it, and none became ready (cells.maxAttempts).", cells)
}

// NewCellsRefused is about a pod that has failed after the cloud has refused so many cells, the last for a reason.
func NewCellsRefused(cells int, last string) Event {
	return warn(CellsNotReady, "The pod has failed: %d cells in a row did not start for it (cells.maxAttempts). The last: %s", cells, last)
}

// NewPendingTooLong is about a pod that has failed since it waited for a running cell for as long as it says at most. The reason is that
// of its wait.
func NewPendingTooLong(reason string, bound, now time.Time, why string) Event {
	return warn(reason, "The pod has failed: it had no running cell %v after it was bound (pod.elotl.co/max-pending). Why: %s",
		now.Sub(bound).Round(time.Second), why)
}

// The Events about a pod's cell, from its request to its launch.

// NewCellRequested is about a pod for which Kip has chosen an offering.
func NewCellRequested(cell, offering, why string) Event {
	return normal(cellRequested, "Requested cell %s (%s): %s", cell, offering, why)
}

// NewStandbyCellTaken is about a pod that gets a cell which was ready.
func NewStandbyCellTaken(cell, offering, why string) Event {
	return normal(standbyCellTaken, "The pod takes standby cell %s (%s): %s", cell, offering, why)
}

// NewCellLaunched is about a pod whose cell has an instance.
func NewCellLaunched(cell, instance, offering string) Event {
	return normal(cellLaunched, "Launched instance %s (%s) as cell %s.", instance, offering, cell)
}

// NewLaunchDelayed is about a pod whose cell the cloud has not launched yet.
func NewLaunchDelayed(offering string, why error) Event {
	return warn(LaunchDelayed, "Failed to launch %s: %v; retrying.", offering, why)
}

// NewLaunchPreparedAgain is about a pod whose cell was to be launched with what the cloud does not have, or refuses.
func NewLaunchPreparedAgain(offering string, why error) Event {
	return warn(LaunchDelayed, "Failed to launch %s: %v; preparing the launch again.", offering, why)
}

// NewStandbyCellNotStarted is about a pod that has taken a stopped cell.
func NewStandbyCellNotStarted(cell string, why error) Event {
	return warn(LaunchDelayed, "Failed to start the stopped instance of cell %s: %v; retrying.", cell, why)
}

// NewLaunchHeld is about a pod whose cell is not launched until the Kip operator has fixed something. The reason is
// [CloudInitUnfit], [AgentNotStarted] or [LaunchDelayed].
func NewLaunchHeld(reason, why string) Event {
	return warn(reason, "Kip cannot launch the cell: %s. The pod waits for the Kip operator to fix it.", why)
}

// NewLaunchesPaused is about a pod that waits until Kip has the right to launch instances.
func NewLaunchesPaused(why string) Event {
	return warn(LaunchesPaused, "Kip has no right to launch instances: %s. The pod waits until Kip gets the right.", why)
}

// refusal is the reason that the cloud has refused a launch for: capacity, or any other.
func refusal(outOfCapacity bool) string {
	if outOfCapacity {
		return NoCapacity
	}
	return cellNotLaunched
}

// NewNextOffering is about a pod whose cell the cloud has refused, and for which another offering is left.
func NewNextOffering(outOfCapacity bool, offering string, why error, next string) Event {
	return warn(refusal(outOfCapacity), "Failed to launch %s: %v; trying %s.", offering, why, next)
}

// NewNoOtherOffering is about a pod whose cell the cloud has refused, and for which no offering is left.
func NewNoOtherOffering(outOfCapacity bool, offering string, why error) Event {
	return warn(refusal(outOfCapacity), "Failed to launch %s: %v; no other type fits now, so Kip tries again later.", offering, why)
}

// NewSameDiskElsewhere is about a pod whose cell the cloud has refused for its disk.
func NewSameDiskElsewhere(outOfCapacity bool, offering string, why error) Event {
	return warn(refusal(outOfCapacity), "Failed to launch %s: %v; other types need the same disk, so Kip tries again later.", offering, why)
}

// NewRequestAtFault is about a pod whose cell the cloud has refused for what the pod asks for.
func NewRequestAtFault(outOfCapacity bool, offering string, why error) Event {
	return warn(refusal(outOfCapacity), "Failed to launch %s: %v; other types are not tried, since the fault is in what the pod asks for.",
		offering, why)
}

// NewNextOverBudget is about a pod whose cell the cloud has refused, and whose namespace has no budget for another offering.
func NewNextOverBudget(outOfCapacity bool, offering string, why, budget error) Event {
	return warn(refusal(outOfCapacity), "Failed to launch %s: %v; other types exceed the budget: %v", offering, why, budget)
}

// NewLaunchAbandoned is about a pod whose cell may have an instance.
func NewLaunchAbandoned(offering string, why error) Event {
	return warn(cellNotLaunched, "Kip does not know whether the cloud has launched %s: %v. "+
		"Kip launches another cell once the cloud surely has no instance of this one.", offering, why)
}

// The Events about a pod whose cell boots.

// NewCellNotReady is about a pod whose cell did not do something in time, such as "join".
func NewCellNotReady(cell, instance, what, waitsFor string) Event {
	return warn(cellNotReady, "Cell %s on %s did not %s in time: %s. Kip terminates it and tries another.", cell, instance, what, waitsFor)
}

// AgentNotRestored is why a cell ends that came back with the agent of its image, and waits for something.
func AgentNotRestored(waitsFor string) string {
	return "it came back with another agent, and did not get the agent of cells.itzo in time: " + waitsFor
}

// NewAgentNotStarted is about a pod whose cell could not have the agent of cells.itzo, for a reason such as [AgentNotRestored].
func NewAgentNotStarted(cell, instance, why string) Event {
	return warn(AgentNotStarted, "Cell %s on %s: %s. Kip terminates it and tries another.", cell, instance, why)
}

// NewCloudInitNotDone is about a pod whose cell cannot carry out the cloud-init file.
func NewCloudInitNotDone(cell, instance string, why error) Event {
	return warn(CloudInitUnfit, "Cell %s on %s: %v. Kip terminates it, and launches another when the Kip operator has fixed "+
		"the file or the image.", cell, instance, why)
}

// NewCloudInitFailed is about a pod whose cell has carried out the cloud-init file in part.
func NewCloudInitFailed(cell string, failures []string) Event {
	return warn(cloudInitFailed, "Cell %s runs, but parts of its cloud-init file failed: %s", cell, strings.Join(failures, "; "))
}

// MachineTooSmall is why a cell ends whose machine has less than its pod needs, with what the cell itself takes.
func MachineTooSmall(offering, has, needs, reserved string) string {
	return fmt.Sprintf("the machine of %s has %s, and the pod needs %s (+%s for the cell)", offering, has, needs, reserved)
}

// NewCellTooSmall is about a pod whose cell has less than its type promises, or too few huge pages: why is [MachineTooSmall] or
// [HugePagesMissing].
func NewCellTooSmall(cell, why string) Event {
	return warn(cellTooSmall, "Cell %s is too small: %s. Kip terminates it, and the pod gets a larger one.", cell, why)
}

// NewCellConsole is about a pod whose cell has ended without having joined.
func NewCellConsole(instance string, lines []string) Event {
	return warn(CellConsole, "The console of %s ends with: %s", instance, strings.Join(lines, " | "))
}

// GPUsMissing is what a cell lacks whose kubelet has fewer GPUs than its pod asks for.
func GPUsMissing(cell, resource string, has, asked int64) string {
	return fmt.Sprintf("its kubelet has %d of %d %s: the driver of the cell's image provides them; to see what it says, run kipctl console %s",
		has, asked, resource, cell)
}

// AcceleratorsMissing is what a cell lacks whose kubelet has fewer accelerators than its pod asks for. Kip provides only gpus.
func AcceleratorsMissing(resource string, has, asked int64, gpus string) string {
	return fmt.Sprintf("its kubelet has %d of %d %s: Kip itself provides only %s, so the cell needs a device plugin in its image",
		has, asked, resource, gpus)
}

// NewCellGivenUp is about a pod whose cell had joined, but was not ready for the pod in time.
func NewCellGivenUp(cell, why string) Event {
	return warn(cellNotReady, "Cell %s was given up: %s. Kip terminates it and tries another.", cell, why)
}

// NewGPUsNotReady is about a pod whose cell lacks GPUs, or other accelerators: [GPUsMissing] or [AcceleratorsMissing].
func NewGPUsNotReady(what, cell, lacks string) Event {
	return warn(gpusNotReady, "The %s of cell %s are not ready: %s", what, cell, lacks)
}

// NewHostSettingsNotReady is about a pod whose cell is not ready for its host-sysctls and host-modules.
func NewHostSettingsNotReady(cell string, why error) Event {
	return warn(hostSettingsNotReady, "The pod waits until cell %s takes its host-sysctls and host-modules: %v", cell, why)
}

// NewHostSettingsRefused is about a pod whose cell ends, since its machine refuses the pod's host-sysctls or host-modules.
func NewHostSettingsRefused(cell, why string) Event {
	return warn(HostSettingsRefused, "Cell %s refuses the pod's host-sysctls or host-modules: %s. Kip terminates it. "+
		"Change the annotation, and Kip launches another at once; else it tries again in an hour.", cell, why)
}

// NewHugePagesNotReady is about a pod whose cell's kubelet does not count its huge pages, of a resource.
func NewHugePagesNotReady(cell, resource string) Event {
	return warn(hugePagesNotReady, "The pod waits until the kubelet of cell %s counts its %s. Kip terminates a cell that takes two minutes.",
		cell, resource)
}

// NewHugePagesRefused is about a pod whose cell ends, since its machine can have no huge pages of a size that the pod asks for.
func NewHugePagesRefused(cell, why string) Event {
	return warn(HugePagesRefused, "Cell %s cannot have the pod's huge pages: %s. Kip terminates it, and tries again in an hour.", cell, why)
}

// HugePagesMissing is why a cell ends whose kernel has fewer huge pages than its pod asks for.
func HugePagesMissing(resource string, has, asked int64) string {
	return fmt.Sprintf("its kernel found memory in one piece for %d of %d pages of %s", has, asked, resource)
}

// NewSwapRefused is about a pod whose cell ends, since its machine cannot have the swap that the pod asks for.
func NewSwapRefused(cell, why string) Event {
	return warn(SwapRefused, "Cell %s cannot have the pod's swap: %s. Kip terminates it. "+
		"Change the annotation, and Kip launches another at once; else it tries again in an hour.", cell, why)
}

// NewPluginsNotTaken is about a pod whose cell does not take the node plugins of CSI drivers.
func NewPluginsNotTaken(drivers string, why error) Event {
	return warn(csiDriverNotReady, "Failed to give the pod's cell the node plugins of %s: %v; retrying.", drivers, why)
}

// PluginsNotRegistered is why node plugins do not run of which the cell reports no fault.
const PluginsNotRegistered = "they have not registered with its kubelet"

// NewPluginsNotRunning is about a pod whose cell does not run the node plugins of CSI drivers yet: why is what the cell reports, or
// [PluginsNotRegistered].
func NewPluginsNotRunning(drivers, why string) Event {
	hint := ""
	if strings.HasPrefix(why, "BackOff: ") {
		hint = ". A plugin that asks the Kubernetes API needs beside: true in cells.csiDrivers, since its static pod has no service account"
	}
	return warn(csiDriverNotReady, "The pod waits until the node plugins of %s run on its cell: %s%s", drivers, why, hint)
}

// NewVolumesAttached is about a pod whose cell has its disks.
func NewVolumesAttached(cell, volumes string) Event {
	return normal(successfulAttachVolume, "Attached to cell %s: %s", cell, volumes)
}

// NewVolumeNotAttached is about a pod with a disk that the cloud did not attach to the cell.
func NewVolumeNotAttached(volume string, why error) Event {
	return warn(failedAttachVolume, "Failed to attach volume %s: %v; retrying.", volume, why)
}

// NewDeviceNotShown is about a pod whose cell does not show a disk that is attached.
func NewDeviceNotShown(why error) Event {
	return warn(failedAttachVolume, "The cell does not show the device of a volume yet: %v; retrying.", why)
}

// NewVolumeHeld is about a pod with a disk that an instance has. If atMost is not 0, Kip ends the pod's cell after that time.
func NewVolumeHeld(volume, user string, atMost time.Duration) Event {
	if atMost == 0 {
		return warn(volumeInUse, "The pod waits until %s no longer has volume %s.", user, volume)
	}
	return warn(volumeInUse, "The pod waits until %s no longer has volume %s. After %s Kip ends the pod's cell, and launches another later.",
		user, volume, atMost)
}

// NewVolumeGivenUp is about a pod whose cell ends, since the cloud did not attach a disk to it.
func NewVolumeGivenUp(cell, why string) Event { return givenUp(failedAttachVolume, cell, why) }

// NewRouteFailed is about a pod with networks that the cloud does not route to its cell.
func NewRouteFailed(networks string, why error) Event {
	return warn(routeFailed, "Failed to route %s to the pod's cell: %v; retrying.", networks, why)
}

// NewRouteGivenUp is about a pod whose cell ends, since the cloud did not route the pod's networks to it.
func NewRouteGivenUp(cell, why string) Event { return givenUp(routeFailed, cell, why) }

func givenUp(reason, cell, why string) Event {
	return warn(reason, "Kip ends cell %s, and launches another later: %s", cell, why)
}

// The Events about a pod whose cell runs it, or ends.

// NewCellSilent is about a pod whose cell Kip does not hear.
func NewCellSilent() Event {
	return warn(cellSilent, "The pod is not ready, since Kip does not hear its cell. "+
		"The pod may still run; it is ready again when Kip hears the cell.")
}

// NewCellLost is about a pod whose cell is there no more.
func NewCellLost(cell, why string) Event {
	return warn(CellLost, "Cell %s is lost, and Kip terminates its instance: %s", cell, why)
}

// NewCellRefuses is about a pod whose cell has not obeyed Kip for so long.
func NewCellRefuses(cell string, lasts time.Duration, why error) Event {
	return warn(CellRefuses, "Cell %s has not obeyed Kip for %s, so Kip does not know what the pod does: %v. Delete the pod to end the cell.",
		cell, lasts.Round(time.Second), why)
}

// NewInterrupted is about a pod whose cell the cloud takes back at a time.
func NewInterrupted(cell, instance string, at time.Time, why string) Event {
	return warn(Interrupted, "Cell %s will be lost: the cloud takes instance %s back at %s: %s", cell, instance, when(at), why)
}

// NewRebalanceRecommended is about a pod whose cell is at risk.
func NewRebalanceRecommended(cell string) Event {
	return normal(RebalanceRecommended, "The cloud is more likely than usual to take cell %s back. "+
		"The pod runs on until the cloud gives notice.", cell)
}

// NewInterruptedPodStays is about a pod that runs until the cloud takes its instance back.
func NewInterruptedPodStays(at time.Time) Event {
	return warn(interruptedPodStays, "Kip does not evict the pod, since no controller would replace it. "+
		"It runs until %s, and then as its restartPolicy says.", when(at))
}

// NewInterruptedPodEvicted is about a pod that is evicted before the cloud takes its instance back.
func NewInterruptedPodEvicted(at time.Time) Event {
	return normal(Evicted, "Evicted the pod, since the cloud takes its instance back at %s. The pod's controller replaces it.", when(at))
}

// NewInterruptedPodBlocked is about a pod that cannot be evicted before the cloud takes its instance back.
func NewInterruptedPodBlocked(at time.Time, why error) Event {
	return warn(evictionBlocked, "A disruption budget forbids to evict the pod before the cloud takes its instance back at %s: %v; retrying.",
		when(at), why)
}

// NewUnservablePodStays is about a pod without a controller on a node that has no capacity for it.
func NewUnservablePodStays(node, other string) Event {
	return warn(unservablePodStays, "Node %s has no capacity for the pod, and node %s could run it. "+
		"Kip does not evict the pod, since no controller would replace it. The pod waits.", node, other)
}

// EvictedInVain is why Kip leaves a pod on a node that has no capacity for it.
func EvictedInVain(node string, times int, until time.Time) string {
	often := "once"
	if times > 1 {
		often = fmt.Sprintf("%d times", times)
	}
	return fmt.Sprintf("pods of its controller were evicted from node %s for that %s in vain, since no other node could have the pod: "+
		"it is not evicted before %s", node, often, when(until))
}

// NewUnservablePodCameBack is about a pod that replaces an evicted one on the same node, which has no capacity for it. why is
// [EvictedInVain].
func NewUnservablePodCameBack(node, other, why string) Event {
	return warn(unservablePodCameBack, "Node %s has no capacity for the pod, and node %s could run it, but %s", node, other, why)
}

// NewUnservablePodEvicted is about a pod that is evicted from a node which has had no capacity for it for so long.
func NewUnservablePodEvicted(node string, lasts time.Duration, other string) Event {
	return normal(Evicted, "Evicted the pod, since node %s has had no capacity for it for %s. "+
		"The pod's controller replaces it, and node %s can run the new pod.", node, lasts.Round(time.Second), other)
}

// NewUnservablePodBlocked is about a pod that cannot be evicted from a node which has no capacity for it.
func NewUnservablePodBlocked(node string, why error) Event {
	return warn(evictionBlocked, "A disruption budget forbids to evict the pod from node %s, which has no capacity for it: %v; retrying.",
		node, why)
}

// NewAgedPodStays is about a pod on a cell that is older than cells may be, and that Kip does not evict.
func NewAgedPodStays(most time.Duration, why string) Event {
	return normal(agedPodStays, "The pod's cell is older than %s (cells.maxAge). Kip does not evict the pod, since %s. "+
		"Make the pod anew to get a new cell.", most, why)
}

// NewAgedPodEvicted is about a pod that is evicted from a cell of an age, which is older than cells may be.
func NewAgedPodEvicted(age, most time.Duration) Event {
	return normal(Evicted, "Evicted the pod, since its cell is %s old, and cells.maxAge is %s. The pod's controller replaces it, on a new cell.",
		age.Round(time.Minute), most)
}

// NewAgedPodBlocked is about a pod that cannot be evicted from a cell which is older than cells may be.
func NewAgedPodBlocked(most time.Duration, why error) Event {
	return normal(evictionBlocked, "A disruption budget forbids to evict the pod from its cell, which is older than %s (cells.maxAge): %v; retrying.",
		most, why)
}

// NewMoveBackStays is about a pod that asks to be moved back to what it asked for first, and that Kip does not evict.
func NewMoveBackStays(why string) Event {
	return normal(moveBackStays, "Kip does not move the pod back to a better machine (pod.elotl.co/move-back), since %s.", why)
}

// NewMovedBack is about a pod that is evicted from a cell that is not what it asked for first.
func NewMovedBack(from string, rank, of int, after time.Duration) Event {
	return normal(Evicted, "Evicted the pod after %s on %s, choice %d of %d: the cloud has capacity for a better one. "+
		"The pod's controller replaces it.", after.Round(time.Minute), from, rank, of)
}

// NewMoveBackBlocked is about a pod that cannot be evicted from a cell which is not what it asked for first.
func NewMoveBackBlocked(rank, of int, retry time.Duration, why error) Event {
	return normal(evictionBlocked, "A disruption budget forbids to evict the pod from a machine of choice %d of %d: %v; retrying in %s.",
		rank, of, why, retry)
}

// NewMovedBackInVain is about a pod whose predecessor was evicted for a better machine that the cloud did not have.
func NewMovedBackInVain(rank, of int, until time.Time) Event {
	return normal(movedBackInVain, "Kip had evicted a pod of the same controller for a better machine, and this one got choice %d of %d. "+
		"Kip evicts none of them for that before %s.", rank, of, until.UTC().Format(time.RFC3339))
}

// NewDeletionOverdue is about a deleted pod that is still there so long after its grace period.
func NewDeletionOverdue(after time.Duration) Event {
	return warn(deletionOverdue, "The deleted pod was still there %s after its grace period, so Kip terminates its cell.", after)
}

// NewCellKept is about a failed pod whose cell stays until a time.
func NewCellKept(cell string, until time.Time) Event {
	return normal(cellKept, "The pod has failed, and Kip keeps its cell %s until %s, which costs money. Look inside with kipctl exec %s. "+
		"To end the cell sooner, remove the annotation pod.elotl.co/keep-failed from the pod.", cell, when(until), cell)
}

// NewCellNotKept is about a failed pod whose cell was to stay for a time.
func NewCellNotKept(cell string, why error) Event {
	return warn(cellNotKept, "Kip does not keep cell %s of the failed pod: %v. Other pods may wait for them.", cell, why)
}

// NewTooManyKept is about a failed pod whose cell was to stay for a time, in a namespace that keeps as many as it may.
func NewTooManyKept(cell, namespace string, most int) Event {
	return warn(cellNotKept, "Kip does not keep cell %s of the failed pod: namespace %s keeps %d cells of failed pods already, and "+
		"cells.grants.maxKeptCells allows no more. To end one of these, remove the annotation pod.elotl.co/keep-failed from its pod.",
		cell, namespace, most)
}

// NewLogsNotSaved is about a pod that has ended.
func NewLogsNotSaved(cell string, why error) Event {
	return warn(logsNotSaved, "Failed to save the pod's logs before cell %s was terminated, so they are lost: %v", cell, why)
}

// NewVolumeNotUnmounted is about a pod whose cell is terminated with volumes of CSI drivers that its kubelet has not unmounted.
func NewVolumeNotUnmounted(cell, drivers string, why error) Event {
	return warn(volumeNotUnmounted, "Kip terminates cell %s, although its kubelet has not unmounted the volumes of %s: %v", cell, drivers, why)
}

// NewCellNotTerminated is about a pod whose instance the cloud did not terminate.
func NewCellNotTerminated(instance string, why error) Event {
	return warn(CellNotTerminated, "Failed to terminate instance %s: %v; retrying.", instance, why)
}

// NewEndHeldBack is about a pod whose instance was to end, for some reason, and which Kip does not terminate. allowable says
// that kipctl allow changes that.
func NewEndHeldBack(instance, why, heldBack string, allowable bool) Event {
	e := warn(endHeldBack, "Kip does not terminate instance %s (%s): %s", instance, why, heldBack)
	if allowable {
		e.Message += ". If the instance is to end, run kipctl allow."
	}
	return e
}

// The Events about a pod's network and images.

// Unlisted is a list of the cluster that Kip lacks. Refusal is why Kip may not read it; nil if Kip has not read it yet.
type Unlisted struct {
	What    string // the plural of a resource
	Refusal error
}

func (u Unlisted) String() string {
	if u.Refusal != nil {
		return fmt.Sprintf("Kip may not list %s of the cluster: %v", u.What, u.Refusal)
	}
	return fmt.Sprintf("Kip has not listed the %s of the cluster yet", u.What)
}

// NewNetworkPolicyUnknown is about a new pod that has no network until Kip knows the NetworkPolicies.
func NewNetworkPolicyUnknown(missing Unlisted) Event {
	return warn(networkPolicyUnknown, "The pod's network waits until Kip knows the NetworkPolicies: %s", missing)
}

// NewNetworkPolicyOutdated is about a pod that runs while Kip does not know the NetworkPolicies.
func NewNetworkPolicyOutdated(missing Unlisted) Event {
	return warn(networkPolicyUnknown, "Kip cannot apply NetworkPolicies to the pod: %s", missing)
}

// NewFirewallFailed is about a pod whose cell could not set its firewall.
func NewFirewallFailed(cell string, why error) Event {
	return warn(firewallFailed, "Failed to set the firewall of cell %s, which the pod's network waits for: %v; retrying.", cell, why)
}

// NewCredentialProviderMissing is about a pod whose cell has no credential providers of these names: each with why.
func NewCredentialProviderMissing(cell string, lacks []string) Event {
	return warn(credentialsMissing, "Cell %s lacks programs of cells.credentialProviders, so its kubelet pulls images without them: %s",
		cell, strings.Join(lacks, "; "))
}

// NewNoImageCredentials is about a pod with an image in a registry of the cloud.
func NewNoImageCredentials(image string, why error) Event {
	return warn(NoImageCredentials, "No credentials for images of %s, so the kubelet pulls without them: %v", image, why)
}

// The Events about claims.

// NewExpansionFailed is about a claim whose disk is not as large as the claim asks.
func NewExpansionFailed(wants string, why error) Event {
	return warn(volumeResizeFailed, "Failed to expand the disk to %s: %v", wants, why)
}

// NewExpansionNotRecorded is about a claim whose disk is larger than its volume says.
func NewExpansionNotRecorded(has string, why error) Event {
	return warn(volumeResizeFailed, "The disk has %s, but Kip failed to update its volume: %v; retrying.", has, why)
}

// NewNotShrunk is about a claim that asks for less than its disk has.
func NewNotShrunk(wants, has string) Event {
	return warn(volumeResizeFailed, "The claim asks for %s, but its disk has %s already. Kip makes no disk smaller.", wants, has)
}

// NewFileSystemResizeRequired is about a claim whose disk is larger than its file system.
func NewFileSystemResizeRequired(has string) Event {
	return normal(fileSystemResizeRequired, "The disk has %s. Its file system grows where a pod mounts it.", has)
}

// NewExpanded is about the claim of a block volume whose disk is as large as the claim asks.
func NewExpanded(has string) Event { return normal(volumeResizeSuccessful, "The disk has %s.", has) }

// The Events about virtual nodes.

// HeldByAnother is why a Kip waits whose node another Kip holds, which counts as gone after lapse.
func HeldByAnother(node, who string, lapse time.Duration) string {
	return fmt.Sprintf("another Kip, with another store, holds node %s: %q; this one does nothing until the other has not renewed its hold"+
		" for %s; stop one of the two, or give its node another name", node, who, lapse)
}

// MarkNotTaken is why a Kip waits whose node another Kip has held, and may hold yet.
func MarkNotTaken(node string) string {
	return fmt.Sprintf("another Kip, with another store, held node %s; this one does nothing until the API server takes its mark", node)
}

// NewNodeHeldByAnother is about a node that another Kip holds, for a reason such as [HeldByAnother].
func NewNodeHeldByAnother(why string) Event {
	return warn(NodeHeldByAnother, "This Kip waits: %s", why)
}

// NewProfilesIgnored is about the node, when the API server does not ask Kip about the pods of profiles.
func NewProfilesIgnored(why string) Event {
	return warn(profilesIgnored, "Pods are made without their profiles: %s", why)
}

// NothingSold is why a node takes no pods whose instance types the cloud has sold once.
const NothingSold = "the cloud no longer offers anything that the node has"

// NothingAvailable is why a node takes no pods of whose offerings the cloud has none now. limit is what the node offers.
func NothingAvailable(offerings int, limit string) string {
	if limit == "" {
		return fmt.Sprintf("the cloud has no capacity now for any of its %d offerings", offerings)
	}
	return fmt.Sprintf("the cloud has no capacity now for any of the %d offerings of the node (%s)", offerings, limit)
}

// The reasons of the condition by which a node says what the cloud has no capacity for, and the message of one that lacks nothing.
const (
	CapacityAvailable = "CapacityAvailable"
	KindsLack         = "SomeUnavailable"
	NothingLaunchable = "NothingAvailable"
	NothingLacks      = "as far as Kip knows, the cloud has capacity for each kind of what the node offers"
)

// LacksKinds says of which kinds of what a node offers the cloud has none now.
func LacksKinds(kinds []string) string {
	return "the cloud has no capacity now for any offering of the node of these kinds: " + strings.Join(kinds, ", ")
}

// KeptAway is why a pod waits for a node, which takes no pods for a reason such as [NothingAvailable].
func KeptAway(node, why string) string {
	return fmt.Sprintf("node %s takes no new pods for now: %s", node, why)
}

// NewPodKeptAway is about a pod that is on no node for a reason such as [KeptAway].
func NewPodKeptAway(why string) Event {
	return warn(NoCapacity, "No node that the pod may be on has capacity for it: %s. The scheduler places the pod when that is over.", why)
}

// TurnsAway is why a node takes no pods that could serve some of them.
func TurnsAway(lacks string) string {
	return "the cloud has no capacity for " + lacks + "; pods that need it leave the node, and their replacements would come back"
}

// NewNodeOutOfCapacity is about a node that takes no pods for now, for a reason such as [NothingAvailable].
func NewNodeOutOfCapacity(why string) Event {
	return warn(nodeOutOfCapacity, "The node takes no new pods for now: %s", why)
}

// NewNodeHasCapacity is about a node that takes pods again.
func NewNodeHasCapacity() Event {
	return normal(nodeHasCapacity, "The cloud has capacity again, and the node takes new pods.")
}

// NewNodeTakesPods is about a node that takes pods again, though the cloud may still lack what others have left it for.
func NewNodeTakesPods(lacks string) Event {
	return normal(nodeHasCapacity, "The node takes new pods again. There may still be no capacity for %s", lacks)
}

// NewCARotating is about the node when Kip begins to rotate the CA of the cells. The CAs are named by their hashes.
func NewCARotating(next, before string) Event {
	return normal(caRotated, "Kip rotates the CA of the cells: %.12s signs from now on, and the cells move to it from %.12s.", next, before)
}

// NewCARotated is about the node when no cell needs the CA of before.
func NewCARotated(signs, before string) Event {
	return normal(caRotated, "Kip has rotated the CA of the cells: %.12s signs, and Kip has dropped %.12s. Take a backup.", signs, before)
}

// NewAgentsNotStarted is about the node, when so many machines could not have the agent of cells.itzo.
func NewAgentsNotStarted(machines int, why string) Event {
	return warn(AgentNotStarted, "%d machines could not have the agent of cells.itzo, and launches wait until you fix it: %s", machines, why)
}

// NewAgentVersionDiffers is about the node, when the agent of a cell has another version than Kip.
func NewAgentVersionDiffers(cell, agent, kip string) Event {
	return warn(agentVersionDiffers, "The agent of cell %s is %s, and Kip is %s: what one of them does not know is not done. "+
		"Use an image of Kip's version, or set cells.itzo.", cell, agent, kip)
}

// NewAgentPortOpen is about the node, when rules of a security group let others than Kip reach the agents.
func NewAgentPortOpen(group string, port int, rules string) Event {
	return warn(agentPortOpen, "Rules of security group %s let others than Kip reach port %d, on which the agents of cells listen. "+
		"Kip leaves them alone. Narrow or remove these rules: %s", group, port, rules)
}

// NewCellDefinitionUnfit is about the node, where the cluster lacks the definition of the Cell resource, or has an older one.
func NewCellDefinitionUnfit(why error) Event {
	return warn(CellDefinitionUnfit, "Kip cannot show all of its cells to kubectl: %v. Pods run. "+
		"Run kipctl crd update, or upgrade Kip's chart.", why)
}

// NewCloudInitUnfit is about the node, when no cell can carry out the cloud-init file.
func NewCloudInitUnfit(digest, why string) Event {
	return warn(CloudInitUnfit, "The cloud-init file (%.12s) does not fit the image of cells, and launches wait until you fix one of them: %s",
		digest, why)
}

// NewCloudInitChanged is about the node, when there is another cloud-init file.
func NewCloudInitChanged(digest string) Event {
	return normal(cloudInitChanged, "The cloud-init file has changed: new cells use %.12s.", digest)
}

// NewCloudInitWrong is about the node, when the cloud-init file is not valid.
func NewCloudInitWrong(good string, why error) Event {
	return warn(CloudInitInvalid, "The cloud-init file is wrong, so new cells use the last good one (%.12s): %v", good, why)
}

// NewCloudInitGone is about the node, when the cloud-init file is not there.
func NewCloudInitGone(good string, why error) Event {
	return warn(CloudInitInvalid, "The cloud-init file is gone, so new cells use the last good one (%.12s): %v", good, why)
}

// CertificateRequest is a request for the certificate of a kubelet port. Others may make one that looks like it, so
// a person compares all of this.
type CertificateRequest struct {
	Name, Requester, Signer, Subject string
	Names                            []string // DNS names and addresses
}

// ApproveCommand is what a person types to approve a request.
func ApproveCommand(request string) string { return "kubectl certificate approve " + request }

func (r CertificateRequest) compare() string {
	if r.Subject == "" { // it cannot be read
		return ""
	}
	return fmt.Sprintf("Compare it first: kubectl get csr %[1]s && kubectl get csr %[1]s -o jsonpath={.spec.request} | base64 -d | "+
		"openssl req -noout -text. Approve it only if the requester is %[2]s, the signer %[3]s, the subject %[4]s, "+
		"and the alternative names are %[5]s and no others.",
		r.Name, r.Requester, r.Signer, r.Subject, strings.Join(r.Names, ", "))
}

// Serving is the certificate that the kubelet port serves now: one of Signer until Until, or, as the zero value, Kip's own.
type Serving struct {
	Signer string
	Until  time.Time
}

func (s Serving) String() string {
	if s.Signer == "" {
		return "The kubelet port serves Kip's own certificate, which an API server that verifies kubelets refuses."
	}
	return fmt.Sprintf("The kubelet port serves a certificate of %s until %s.", s.Signer, when(s.Until))
}

// NewCertificateUnapproved is about the node, when its request waits for a person.
func NewCertificateUnapproved(r CertificateRequest, now Serving) Event {
	return warn(ServingCertificatePending, "Approve the request for the certificate of the kubelet port: %s. %s %s",
		ApproveCommand(r.Name), r.compare(), now)
}

// NewApprovalForbidden is about the node, when Kip may not approve its request.
func NewApprovalForbidden(r CertificateRequest, now Serving) Event {
	return warn(ServingCertificatePending, "Kip has no right to approve its request for the certificate of the kubelet port. "+
		"Set servingCertificate.approve of the Helm chart, or apply deploy/manifests/rights/csr-approve.yaml with the signer %s in it, "+
		"or type: %s. %s %s", r.Signer, ApproveCommand(r.Name), r.compare(), now)
}

// NewCertificateUnsigned is about the node, when the signer does not sign the request. ofKubelets says that it is the
// signer of the control plane.
func NewCertificateUnsigned(request, signer string, ofKubelets bool, now Serving) Event {
	hint := "Is there such a signer in the cluster?"
	if ofKubelets {
		hint = "EKS signs it for its own instances only: there, set servingCertificate.signerName to beta.eks.amazonaws.com/app-serving."
	}
	return warn(ServingCertificatePending, "The request %s is approved, but %s has not signed it. %s %s", request, signer, hint, now)
}

// NewCertificateDenied is about the node, when its request was denied. asNode says that the node made it, and not Kip.
func NewCertificateDenied(request, because string, asNode bool, again time.Time, now Serving) Event {
	hint := "See who denied it: kubectl describe csr " + request + "."
	if asNode {
		hint = "An approver of the cluster may know only nodes that are instances, as GKE's does: then set servingCertificate.requester to kip."
	}
	return certificateRefused(request, fmt.Sprintf("it was denied (%s). %s", because, hint), again, now)
}

// NewCertificateFailed is about the node, when the signer cannot sign its request.
func NewCertificateFailed(request, signer, because string, again time.Time, now Serving) Event {
	return certificateRefused(request, fmt.Sprintf("%s cannot sign it (%s).", signer, because), again, now)
}

// NewCertificateUnfit is about the node, when the certificate that the signer has signed is of no use.
func NewCertificateUnfit(request, signer string, why error, again time.Time, now Serving) Event {
	return certificateRefused(request, fmt.Sprintf("the certificate that %s has signed does not fit (%v).", signer, why), again, now)
}

// NewCertificateForeign is about the node, when somebody else has made a request of the name, with another key, say.
func NewCertificateForeign(request, what string, again time.Time, now Serving) Event {
	return certificateRefused(request, fmt.Sprintf("somebody has made one of that name, with another %s.", what), again, now)
}

func certificateRefused(request, why string, again time.Time, now Serving) Event {
	return warn(ServingCertificateRefused, "The request %s for the certificate of the kubelet port has failed: %s Kip makes another at %s. %s",
		request, why, when(again), now)
}

// NewCertificateSigned is about the node, when its kubelet port serves a new certificate.
func NewCertificateSigned(signer string, until time.Time) Event {
	return normal(ServingCertificateSigned, "%s has signed the certificate of the kubelet port, which is valid until %s", signer, when(until))
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }
