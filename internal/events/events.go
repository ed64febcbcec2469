// Package events holds the reasons of the Kubernetes Events that Kip reports, and makes Events. It
// reports none: who knows of something does. Scripts and alarms match reasons, so one
// that is released keeps its name; docs/troubleshooting.md explains each.
package events

// Of a pod's cell, from its request to its launch.
const (
	CellRequested    = "CellRequested"
	StandbyCellTaken = "StandbyCellTaken"
	CellLaunched     = "CellLaunched"
	LaunchDelayed    = "LaunchDelayed"
	CellNotRequested = "CellNotRequested"
	CellNotLaunched  = "CellNotLaunched"
	LaunchesPaused   = "LaunchesPaused"
	CloudInitUnfit   = "CloudInitUnfit" // of the virtual node, too
	CellUnknown      = "CellUnknown"
	CellRefuses      = "CellRefuses"
	StoreBehind      = "StoreBehind"
	// InstancesNotListed: whether an instance that Kip does not know of runs the pod is not known yet.
	InstancesNotListed = "InstancesNotListed"
)

// Of a pod that gets no cell now.
const (
	NoCapacity        = "NoCapacity"
	Unplaceable       = "Unplaceable"
	InvalidAnnotation = "InvalidAnnotation"
	NotGranted        = "NotGranted"
	BudgetExceeded    = "BudgetExceeded"
	Paused            = "Paused"
	// TolerationMissing: no node of Kip's takes the pod.
	TolerationMissing = "TolerationMissing"
)

// NoMachine is of a DaemonSet's pod that gets no cell, and of its conditions, too.
const NoMachine = "NoMachine"

// Of virtual nodes.
const (
	NodeOutOfCapacity   = "NodeOutOfCapacity"
	NodeHasCapacity     = "NodeHasCapacity"
	CARotated           = "CARotated"
	NodeHeldByAnother   = "NodeHeldByAnother"
	AgentPortOpen       = "AgentPortOpen"
	CellDefinitionUnfit = "CellDefinitionUnfit"
	CloudInitChanged    = "CloudInitChanged"
	CloudInitInvalid    = "CloudInitInvalid"

	// Of the certificate that the kubelet port of a virtual node serves.
	ServingCertificatePending = "ServingCertificatePending"
	ServingCertificateRefused = "ServingCertificateRefused"
	ServingCertificateSigned  = "ServingCertificateSigned"
)

// Of cells that do not live as they should.
const (
	CellNotReady        = "CellNotReady"
	CellsNotReady       = "CellsNotReady"
	CellTooSmall        = "CellTooSmall"
	AgentNotStarted     = "AgentNotStarted"
	AgentVersionDiffers = "AgentVersionDiffers" // of the virtual node
	CloudInitFailed     = "CloudInitFailed"
	GPUsNotReady        = "GPUsNotReady"
	CellSilent          = "CellSilent" // of the pod's Ready condition, too
	CellLost            = "CellLost"   // of the pod's status, too
	CellConsole         = "CellConsole"
	CellNotTerminated   = "CellNotTerminated"
	EndHeldBack         = "EndHeldBack"
	DeletionOverdue     = "DeletionOverdue"
	LogsNotSaved        = "LogsNotSaved"
)

// Of instances that the cloud takes back, and of nodes that it has nothing for.
const (
	Interrupted           = "Interrupted"
	RebalanceRecommended  = "RebalanceRecommended"
	InterruptedPodStays   = "InterruptedPodStays"
	UnservablePodStays    = "UnservablePodStays"
	UnservablePodCameBack = "UnservablePodCameBack"
	Evicted               = "Evicted"
	EvictionBlocked       = "EvictionBlocked"
)

// Of the network of pods.
const (
	RouteFailed          = "RouteFailed"
	NetworkPolicyUnknown = "NetworkPolicyUnknown"
	FirewallFailed       = "FirewallFailed"
)

// NoImageCredentials is of the images of pods.
const NoImageCredentials = "NoImageCredentials"

// Of volumes. Those of an attachment and of an expansion are named as Kubernetes names them.
const (
	VolumeUnsupported      = "VolumeUnsupported"
	VolumeNotReady         = "VolumeNotReady"
	VolumeInUse            = "VolumeInUse"
	VolumeNotUnmounted     = "VolumeNotUnmounted"
	CSIDriverNotReady      = "CSIDriverNotReady"
	FailedAttachVolume     = "FailedAttachVolume"
	SuccessfulAttachVolume = "SuccessfulAttachVolume"

	// Of a claim that asks for more.
	VolumeResizeFailed       = "VolumeResizeFailed"
	VolumeResizeSuccessful   = "VolumeResizeSuccessful"
	FileSystemResizeRequired = "FileSystemResizeRequired"
)
