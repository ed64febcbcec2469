package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	requests "k8s.io/component-helpers/resource"
)

// Machine is what a pod can have of its cell's machine.
type Machine struct {
	Type        string
	MilliCPU    int64
	MemoryBytes int64
}

// Machines returns the machine of the cell of a pod; false where it has none that is known.
type Machines func(ctx context.Context, pod types.UID) (Machine, bool, error)

// nodeCapacity is the cause that the API server names for a resize that no node can have: it
// compares with the virtual node (plugin/pkg/admission/podresize, ReasonNodeCapacity).
const nodeCapacity metav1.CauseType = "NodeCapacity"

// machineTimeout bounds the question for the machine of a pod. It is half of what the API server waits (timeoutSeconds
// in deploy/manifests/rights/webhook.yaml): a resize is answered in time, and so is the creation of a pod that waits for its turn
// meanwhile. A read of the store takes a few milliseconds, and longer on a slow machine.
const machineTimeout = time.Second

// resizeOf answers about a resize of a pod on a node: one beyond the machine of its cell is
// refused. The cell's kubelet would hold it as Deferred for ever, as if another pod could make room.
func (rs *reviews) resizeOf(ctx context.Context, response *admissionv1.AdmissionResponse, object, before []byte) error {
	pod, err := resizedOf(object)
	if err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	old, err := resizedOf(before)
	if err != nil {
		return fmt.Errorf("read the pod as it was: %w", err)
	}
	asked, had := pod.requests(), old.requests()
	if asked == had {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, machineTimeout)
	defer cancel()
	machine, known, err := rs.machines(ctx, pod.uid)
	if err != nil {
		rs.log.Warn("failed to read the machine of the pod's cell; its kubelet decides about the resize", "pod", pod.name, "err", err)
		return nil
	}
	if !known {
		return nil
	}
	var lacks []string
	if asked.milliCPU > machine.MilliCPU {
		lacks = append(lacks, fmt.Sprintf("cpu, requested: %s, available: %s", cpu(asked.milliCPU), cpu(machine.MilliCPU)))
	}
	if asked.memory > machine.MemoryBytes {
		lacks = append(lacks, fmt.Sprintf("memory, requested: %s, available: %s", bytesOf(asked.memory), bytesOf(machine.MemoryBytes)))
	}
	if len(lacks) == 0 {
		return nil
	}
	response.Allowed = false
	response.Result = &metav1.Status{
		Status: metav1.StatusFailure,
		Code:   http.StatusForbidden,
		Reason: metav1.StatusReasonForbidden,
		Message: fmt.Sprintf("resize pod %s: its machine (%s) is too small: %s; "+
			"a machine cannot grow, so delete the pod and create it with these requests", pod.name, machine.Type, strings.Join(lacks, "; ")),
		Details: &metav1.StatusDetails{Name: pod.name, Kind: "pods", Causes: []metav1.StatusCause{{Type: nodeCapacity}}},
	}
	return nil
}

func cpu(milli int64) string { return resource.NewMilliQuantity(milli, resource.DecimalSI).String() }
func bytesOf(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// resized is what is read of a pod that is resized.
type resized struct {
	uid  types.UID
	name string
	spec corev1.PodSpec // what it requests
}

// requested is what a pod requests of what can be resized.
type requested struct{ milliCPU, memory int64 }

func (r resized) requests() requested {
	all := requests.PodRequests(&corev1.Pod{Spec: r.spec}, requests.PodResourcesOptions{})
	return requested{milliCPU: all.Cpu().MilliValue(), memory: all.Memory().Value()}
}

// resizedOf reads a pod that is resized. The error may be a *tooManyError.
func resizedOf(object []byte) (resized, error) {
	var is struct {
		Metadata struct {
			Name string    `json:"name"`
			UID  types.UID `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			Containers     resizedContainers `json:"containers"`
			InitContainers resizedContainers `json:"initContainers"`
			Overhead       amounts           `json:"overhead"`
			Resources      *amountsOf        `json:"resources"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &is); err != nil {
		return resized{}, err
	}
	spec := corev1.PodSpec{
		Containers:     is.Spec.Containers,
		InitContainers: is.Spec.InitContainers,
		Overhead:       corev1.ResourceList(is.Spec.Overhead),
	}
	if r := is.Spec.Resources; r != nil {
		spec.Resources = new(r.list())
	}
	return resized{uid: is.Metadata.UID, name: is.Metadata.Name, spec: spec}, nil
}

type (
	// amounts are those of CPU and memory.
	amounts   corev1.ResourceList
	amountsOf struct {
		Requests amounts `json:"requests"`
		Limits   amounts `json:"limits"`
	}
	resizedContainers []corev1.Container
)

func (a amountsOf) list() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList(a.Requests), Limits: corev1.ResourceList(a.Limits)}
}

// amountForm are the quantities that machines have. What a quantity costs to read is its
// exponent: no other is read.
var amountForm = regexp.MustCompile(`^[0-9]{1,20}(\.[0-9]{0,9})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

// UnmarshalJSON implements json.Unmarshaler.
func (l *amounts) UnmarshalJSON(b []byte) error {
	var is struct {
		CPU    *string `json:"cpu"`
		Memory *string `json:"memory"`
	}
	if err := json.Unmarshal(b, &is); err != nil {
		return err
	}
	*l = amounts{}
	for name, text := range map[corev1.ResourceName]*string{corev1.ResourceCPU: is.CPU, corev1.ResourceMemory: is.Memory} {
		if text == nil {
			continue
		}
		if !amountForm.MatchString(*text) {
			return fmt.Errorf("%s %.40q is not an amount that a machine has", name, *text)
		}
		q, err := resource.ParseQuantity(*text)
		if err != nil {
			return err
		}
		(*l)[name] = q
	}
	return nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *resizedContainers) UnmarshalJSON(b []byte) error {
	type container struct {
		RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
		Resources     amountsOf                      `json:"resources"`
	}
	*l = nil
	var c container
	return readEach(b, '[', func(d *json.Decoder) error {
		if len(*l) == maxKeys {
			return &tooManyError{"containers", maxKeys}
		}
		c = container{}
		if err := d.Decode(&c); err != nil {
			return err
		}
		*l = append(*l, corev1.Container{RestartPolicy: c.RestartPolicy, Resources: c.Resources.list()})
		return nil
	})
}
