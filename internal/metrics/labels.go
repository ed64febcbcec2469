package metrics

import (
	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/stats"
)

// label is a label as the reference describes it. All values come from a set that
// is closed, or as small as the catalogue: where the set is in the code, it is in
// values.
type label struct {
	name, doc string
	values    []value
}

type value struct{ name, doc string }

// causes are all there are.
var causes = []cells.Cause{
	cells.CausePodEnded, cells.CausePodDeleted, cells.CauseNotLaunched, cells.CauseNotReady, cells.CauseUnfit, cells.CauseTooSmall,
	cells.CauseNoDisk, cells.CauseNoRoute, cells.CauseKernelRefused, cells.CauseLost, cells.CauseInterrupted, cells.CauseStandbyRetired,
	cells.CauseOther,
}

// Phases of a cell's life between its steps.
const (
	phasePlacing     = "placing"
	phaseLaunching   = "launching"
	phaseJoining     = "joining"
	phaseStarting    = "starting"
	phaseStandby     = "standby"
	phaseBinding     = "binding"
	phaseRunning     = "running"
	phaseSavingLogs  = "saving_logs"
	phaseTerminating = "terminating"
)

const (
	outcomeSuccess   = "success"
	outcomeFailed    = "failed"
	outcomeCancelled = "cancelled"

	stageBound   = "bound"
	stageRunning = "running"

	sourceLaunched = "launched"
	sourceStandby  = "standby"

	standbyBooting  = "booting"
	standbyReady    = "ready"
	standbyStopping = "stopping"
	standbyStopped  = "stopped"

	resultHit  = "hit"
	resultMiss = "miss"

	launchOnDemand  = string(cloud.OnDemand)
	launchSpot      = string(cloud.Spot)
	launchDedicated = string(cloud.Dedicated)

	errorNone         = ""
	errorCapacity     = "capacity"
	errorQuota        = "quota"
	errorThrottled    = "throttled"
	errorUnauthorised = "unauthorised"
	errorMismatch     = "mismatch"
	errorRefused      = "refused"
	errorInUse        = "in_use"
	errorNotFound     = "not_found"
	errorCancelled    = "cancelled"
	errorUnknown      = "unknown"

	resultSuccess  = "success"
	resultConflict = "conflict"
	resultError    = "error"

	codeError = "<error>"
	other     = "other"
)

// What became of a part that its instance has left.
const (
	partLeft    = "left"
	partDeleted = "deleted"
	partFailed  = "failed"
)

// SweepResult is what became of an instance that has Kip's tags and no cell.
type SweepResult string

const (
	SweepOrphan     SweepResult = "orphan"     // found for the first time
	SweepTerminated SweepResult = "terminated" // the cloud has accepted its end
	SweepFailed     SweepResult = "failed"     // the cloud has not; retrying
)

// livePhases are those in which a cell exists, in the order of its life.
var livePhases = []apiv1.Phase{apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Ready, apiv1.Bound, apiv1.Draining, apiv1.Terminating}

var (
	labelInstanceType  = &label{name: "instance_type", doc: "A type of the cloud's catalogue."}
	labelCostNamespace = &label{
		name: "namespace",
		doc:  "A namespace; `(no pod)` for cells without a pod. The first 500 have series of their own, for good, and the others are `(others)`.",
	}
	labelZone       = &label{name: "zone", doc: "A zone of the cloud's catalogue."}
	labelLaunchType = &label{name: "launch_type", doc: "How the instance is bought.", values: []value{
		{launchOnDemand, ""}, {launchSpot, ""}, {launchDedicated, "on a host that no other account shares"},
	}}
	// A start of a stopped instance names only IDs, so the cloud's error has to
	// tell the rest.
	labelShortLaunchType = &label{name: "launch_type", doc: "How the instance would have been bought.", values: []value{
		{launchOnDemand, ""}, {launchSpot, ""}, {launchDedicated, "on a host that no other account shares"},
		{"", "the cloud did not say, as it may for the start of a stopped instance"},
	}}
	labelDurationPhase = &label{name: "phase", doc: "What was going on, between two of the steps that a Cell lists.", values: []value{
		{phasePlacing, "from seen to placed, first attempts only"},
		{phaseLaunching, "from placed to launched"},
		{phaseJoining, "from launched to joined"},
		{phaseStarting, "from joined to ready"},
		{phaseStandby, "from ready to seen: a standby cell waits for a pod"},
		{phaseBinding, "from ready, or from seen for a standby cell, to bound"},
		{phaseRunning, "from bound to ended"},
		{phaseSavingLogs, "from ended to logsSaved"},
		{phaseTerminating, "from ended, or logsSaved, to terminated"},
	}}
	labelOutcome = &label{name: "outcome", doc: "How the phase ended.", values: []value{
		{outcomeSuccess, "the next step was reached"},
		{outcomeFailed, "the cell ended instead, for a fault"},
		{outcomeCancelled, "the cell ended instead, since nobody wanted it any more"},
	}}
	labelStage = &label{name: "stage", doc: "How far the pod had come.", values: []value{
		{stageBound, "its kubelet may see it"},
		{stageRunning, "its kubelet says that it runs"},
	}}
	labelSource = &label{name: "source", doc: "Where the cell came from.", values: []value{
		{sourceLaunched, "launched for the pod"}, {sourceStandby, "taken from a standby pool"},
	}}
	labelEndReason = &label{name: "reason", doc: "Why it ended.", values: []value{
		{string(cells.CausePodEnded), "the pod ran to its end"},
		{string(cells.CausePodDeleted), "the pod was deleted"},
		{string(cells.CauseNotLaunched), "the cloud started nothing"},
		{string(cells.CauseNotReady), "it did not join, or its kubelet was not ready, in time"},
		{string(cells.CauseUnfit), "its agent refused, or could not have, what the operator has configured"},
		{string(cells.CauseTooSmall), "its machine has less than its type promises, or too few huge pages, and its pod needs more"},
		{string(cells.CauseNoDisk), "the cloud did not give it a disk of its pod"},
		{string(cells.CauseNoRoute), "the cloud did not lead its pod's networks to it"},
		{string(cells.CauseKernelRefused), "its kernel refused what its pod asks of it"},
		{string(cells.CauseLost), "its instance vanished, was stopped or fell silent"},
		{string(cells.CauseInterrupted), "the cloud took it back"},
		{string(cells.CauseStandbyRetired), "its standby pool no longer wanted it"},
		{string(cells.CauseOther), "anything else"},
	}}
	labelCellPhase = &label{name: "phase", doc: "The phase of the Cell, as `kubectl get cells` shows it.", values: phaseValues()}
	labelState     = &label{name: "state", doc: "What the standby cell does.", values: []value{
		{standbyBooting, "it is being launched, or started"},
		{standbyReady, "it can take a pod at once"},
		{standbyStopping, "it is being stopped"},
		{standbyStopped, "it costs its disk, and a start when it is taken"},
	}}
	labelRequestResult = &label{name: "result", doc: "Where the cell came from.", values: []value{
		{resultHit, "a standby pool had one"}, {resultMiss, "it had to be launched"},
	}}
	labelCall = &label{name: "call", doc: "The kind of call.", values: []value{
		{string(cloud.CallCatalogue), ""},
		{string(cloud.CallLaunch), ""},
		{string(cloud.CallList), ""},
		{string(cloud.CallDescribe), ""},
		{string(cloud.CallTerminate), ""},
		{string(cloud.CallStop), ""},
		{string(cloud.CallStart), ""},
		{string(cloud.CallCreateDisk), ""},
		{string(cloud.CallDeleteDisk), ""},
		{string(cloud.CallListDisks), ""},
		{string(cloud.CallAttachDisk), ""},
		{string(cloud.CallDetachDisk), ""},
		{string(cloud.CallCheckDisk), ""},
		{string(cloud.CallRoute), "routes networks to an instance"},
		{string(cloud.CallUnroute), "takes that back"},
		{string(cloud.CallGrowDisk), ""},
		{string(cloud.CallListOwned), ""},
		{string(cloud.CallDeleteOwned), ""},
		{string(cloud.CallTag), ""},
		{string(cloud.CallAdmit), ""},
		{string(cloud.CallResolve), ""},
		{string(cloud.CallConsole), ""},
		{string(cloud.CallInterruptions), "which instances the cloud takes back"},
		{string(cloud.CallEndBoost), "ends the credits by which burstable instances start"},
		{string(cloud.CallEgress), "the ways from subnets to the internet"},
		{string(cloud.CallBounds), "the quotas and free addresses of cells"},
		{string(cloud.CallPullCredentials), "what pulls the images of pods from the cloud's registries"},
	}}
	labelError = &label{name: "error", doc: "The class of error.", values: []value{
		{errorNone, "none; a Launch that got fewer instances than it asked for is one too"},
		{errorCapacity, "no capacity"},
		{errorQuota, "a quota is exceeded"},
		{errorThrottled, "too many calls"},
		{errorUnauthorised, "credentials or rights are missing"},
		{errorInUse, "a disk is in use"}, {errorNotFound, "there is no such disk or instance"},
		{errorMismatch, "a launch that was sent again differs from the first"},
		{errorRefused, "any other definite no"},
		{errorCancelled, "Kip gave the call up itself, as when it stops"},
		{errorUnknown, "anything else, time-outs included: the outcome is not known"},
	}}
	labelPartResult = &label{name: "result", doc: "What became of the part.", values: []value{
		{partLeft, "found for the first time"},
		{partDeleted, "the cloud has deleted it"},
		{partFailed, "the cloud has not; retrying"},
	}}
	labelSweepResult = &label{name: "result", doc: "What became of the instance.", values: []value{
		{string(SweepOrphan), "found for the first time"},
		{string(SweepTerminated), "the cloud has accepted its end"},
		{string(SweepFailed), "the cloud has not; retrying"},
	}}
	labelHeld = &label{name: "reason", doc: "What holds it back.", values: []value{
		{string(guard.ByLimit), "as many as `cells.endLimit` says have ended"},
		{string(guard.ByLease), "the cell was heard less than 40 s ago"},
		{string(guard.ByDisruption), "most cells, of all or of a zone or subnet, are silent at once"},
		{string(guard.ByStore), "the store does not know of all instances, see `kipctl generation`"},
	}}
	labelOperation = &label{name: "operation", doc: "The kind of write.", values: []value{
		{"put", "one record"}, {"delete", "one record"}, {"apply", "several records in one transaction"}, {other, ""},
	}}
	labelWriteResult = &label{name: "result", doc: "How the write ended.", values: []value{
		{resultSuccess, ""},
		{resultConflict, "nothing was written: another writer was faster, or another Kip leads"},
		{resultError, "it is not known whether it was written"},
	}}
	labelEndpoint = &label{name: "endpoint", doc: "What the kubelet port was asked for.", values: []value{
		{"summary", "`/stats/summary`"}, {"resource", "`/metrics/resource`"}, {"cadvisor", "`/metrics/cadvisor`"},
		{"probes", "`/metrics/probes`"}, {"volumes", "`/metrics`, for the volumes of claims"},
	}}
	labelRefusal = &label{name: "reason", doc: "Why it was refused.", values: []value{
		{refusedForbidden, "a cell may not have it"},
		{refusedInvalid, "a field is not what a kubelet writes"},
		{refusedMediaType, "the body is of a kind that no kubelet sends"},
		{refusedTooLarge, "a body is too large, or what Kip would hold of it"},
		{refusedTooMany, "the cell is to ask later: its budget is spent, or Kip does not know yet"},
	}}
	labelMiss = &label{name: "reason", doc: "Why the cell is not in the answer.", values: []value{
		{string(stats.NotConnected), "there was no tunnel to it"},
		{string(stats.TimedOut), "it did not answer in time"},
		{string(stats.Failed), "it answered with an error, or the tunnel broke"},
		{string(stats.Invalid), "its answer could not be parsed"},
		{string(stats.TooLarge), "its answer was too large, or all cells' together"},
	}}
	labelVersion           = &label{name: "version", doc: "Kip's version."}
	labelKubernetesVersion = &label{name: "kubernetes_version", doc: "The release whose kubelet runs on cells."}
	labelGoVersion         = &label{name: "go_version", doc: "The release of Go that built it."}
	labelQueue             = &label{name: "name", doc: "A work queue of Kip, such as cells or pods."}
	labelNode              = &label{name: "node", doc: "A virtual node; of a standby cell the one that its kubelet has the name of."}
	labelClient            = &label{name: "client", doc: "As whom, or for what Kip asks: as itself, as its virtual node, as the provisioner of disks, or who calls its ports (reviews)."}
	labelVerb              = &label{name: "verb", doc: "The HTTP method, or WATCH.", values: []value{
		{"GET", ""}, {"WATCH", "its duration is the time until it is open"}, {"POST", ""}, {"PUT", ""}, {"PATCH", ""}, {"DELETE", ""},
		{other, ""},
	}}
	labelCode = &label{name: "code", doc: "The HTTP status of the response, or `" + codeError + "` where none came."}
)

func phaseValues() (values []value) {
	for _, p := range livePhases {
		values = append(values, value{name: string(p)})
	}
	return values
}
