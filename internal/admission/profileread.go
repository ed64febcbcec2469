package admission

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	requests "k8s.io/component-helpers/resource"
)

// maxPreferred is how many preferences of nodes are read of a pod.
const maxPreferred = 256

// maxRequesting is of how many containers is read what they request, and maxResources how many resources of one.
const maxRequesting, maxResources = 512, 32

// said is what profiles choose a pod by, besides its owner and what it selects.
type said struct {
	labels   map[string]string
	account  string
	requests corev1.ResourceList
	shape    shape
}

// shape is what a patch of a pod's affinity depends on, besides its required terms.
type shape struct {
	affinity, nodeAffinity bool // they are there
	preferred              []preferredTerm
}

// preferredTerm is a preference of nodes.
type preferredTerm struct{ expressions expressions }

// saidBy reads of a pod what profiles choose it by. The error may be a *tooManyError.
func saidBy(object []byte) (said, error) {
	var is struct {
		Metadata struct {
			Labels texts `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			ServiceAccountName string               `json:"serviceAccountName"`
			Containers         requestingContainers `json:"containers"`
			InitContainers     requestingContainers `json:"initContainers"`
			Overhead           amountsByName        `json:"overhead"`
			Resources          *amountsByNameOf     `json:"resources"`
			Affinity           *struct {
				NodeAffinity *struct {
					Preferred preferredTerms `json:"preferredDuringSchedulingIgnoredDuringExecution"`
				} `json:"nodeAffinity"`
			} `json:"affinity"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(object, &is); err != nil {
		return said{}, err
	}
	spec := corev1.PodSpec{
		Containers:     is.Spec.Containers,
		InitContainers: is.Spec.InitContainers,
		Overhead:       corev1.ResourceList(is.Spec.Overhead),
	}
	if r := is.Spec.Resources; r != nil {
		spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList(r.Requests)}
	}
	s := said{
		labels:   is.Metadata.Labels,
		account:  is.Spec.ServiceAccountName,
		requests: requests.PodRequests(&corev1.Pod{Spec: spec}, requests.PodResourcesOptions{}),
	}
	if a := is.Spec.Affinity; a != nil {
		s.shape.affinity = true
		if a.NodeAffinity != nil {
			s.shape.nodeAffinity, s.shape.preferred = true, a.NodeAffinity.Preferred
		}
	}
	return s, nil
}

type (
	// amountsByName are amounts of resources of any name.
	amountsByName   corev1.ResourceList
	amountsByNameOf struct {
		Requests amountsByName `json:"requests"`
	}
	requestingContainers []corev1.Container
	preferredTerms       []preferredTerm
)

// UnmarshalJSON implements json.Unmarshaler.
func (l *amountsByName) UnmarshalJSON(b []byte) error {
	*l = nil
	return readEach(b, '{', func(d *json.Decoder) error {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var text string
		if err := d.Decode(&text); err != nil {
			return err
		}
		if len(*l) == maxResources {
			return &tooManyError{"resources of a container", maxResources}
		}
		if !amountForm.MatchString(text) {
			return fmt.Errorf("%.60v %.40q is not an amount that a machine has", key, text)
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return err
		}
		if *l == nil {
			*l = amountsByName{}
		}
		(*l)[corev1.ResourceName(fmt.Sprint(key))] = q
		return nil
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *requestingContainers) UnmarshalJSON(b []byte) error {
	type container struct {
		RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
		Resources     amountsByNameOf                `json:"resources"`
	}
	*l = nil
	var c container
	return readEach(b, '[', func(d *json.Decoder) error {
		if len(*l) == maxRequesting {
			return &tooManyError{"containers", maxRequesting}
		}
		c = container{}
		if err := d.Decode(&c); err != nil {
			return err
		}
		*l = append(*l, corev1.Container{
			RestartPolicy: c.RestartPolicy,
			Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList(c.Resources.Requests)},
		})
		return nil
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *preferredTerms) UnmarshalJSON(b []byte) error {
	type term struct {
		Preference struct {
			MatchExpressions requirements `json:"matchExpressions"`
		} `json:"preference"`
	}
	*l = nil
	var t term
	return readEach(b, '[', func(d *json.Decoder) error {
		if len(*l) == maxPreferred {
			return &tooManyError{"terms of preferred node affinity", maxPreferred}
		}
		t = term{}
		if err := d.Decode(&t); err != nil {
			return err
		}
		*l = append(*l, preferredTerm{t.Preference.MatchExpressions.list()})
		return nil
	})
}
