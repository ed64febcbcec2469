package admission

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/hostports"
)

// SameCell is a label that no pod has. A term of pod affinity, or a constraint, that selects by
// it besides is about the pods of one cell, of which there is one.
const SameCell = "kip.elotl.co/same-cell"

// What is read of it is bounded: with a hostIP a port takes some 45 bytes in etcd, which stores
// objects of 1.5 MiB (--max-request-bytes), and no pod has as many terms.
const (
	maxHostPorts = 32_768
	maxByHost    = 4_096
)

// ofHost is what a pod asks of its host that each cell has by itself: all ports, and no other
// pod. To the scheduler all cells of a virtual node are one host.
type ofHost struct {
	ports []hostPort
	// narrowed are paths of label selectors by which the scheduler would keep pods from the
	// same host: those of terms of required anti-affinity, and of constraints.
	narrowed []selectorPath
	// together is that the pod wants to be on the host of others.
	together bool
}

// hostPort is a port with a hostPort.
type hostPort struct {
	container, port int32 // their indices
	ofInit          bool  // of initContainers
	ip              string
}

// path is that of its hostIP.
func (p hostPort) path() string {
	list := "containers"
	if p.ofInit {
		list = "initContainers"
	}
	return fmt.Sprintf("/spec/%s/%d/ports/%d/hostIP", list, p.container, p.port)
}

type selectorPath struct {
	path        string
	expressions bool // it has some
}

// patch returns what hides these from the scheduler, and keeps what they say.
func (h ofHost) patch(mark hostports.Mark) (patch []Operation, warnings []string) {
	for _, p := range h.ports {
		if ip, ok := mark.Apart(p.ip); ok {
			patch = append(patch, Operation{Op: "add", Path: p.path(), Value: ip})
		}
	}
	only := metav1.LabelSelectorRequirement{Key: SameCell, Operator: metav1.LabelSelectorOpExists}
	for _, s := range h.narrowed {
		if s.expressions {
			patch = append(patch, Operation{Op: "add", Path: s.path + "/-", Value: only})
		} else {
			patch = append(patch, Operation{Op: "add", Path: s.path, Value: []metav1.LabelSelectorRequirement{only}})
		}
	}
	if h.together {
		warnings = []string{"Kip gives each pod a machine of its own: required podAffinity by " + corev1.LabelHostname +
			" puts pods on one virtual node, and not on one machine"}
	}
	return patch, warnings
}

// What is read for ofHost of a pod's spec, and of its affinity. Only what matters of it is kept.
type (
	listsOfHost struct {
		Containers                portsOfContainers `json:"containers"`
		InitContainers            portsOfContainers `json:"initContainers"`
		TopologySpreadConstraints byHost            `json:"topologySpreadConstraints"`
	}
	termsOfHost struct {
		PodAntiAffinity struct {
			Required byHost `json:"requiredDuringSchedulingIgnoredDuringExecution"`
		} `json:"podAntiAffinity"`
		PodAffinity struct {
			Required byHost `json:"requiredDuringSchedulingIgnoredDuringExecution"`
		} `json:"podAffinity"`
	}
)

// hostOf is what a pod asks of its host.
func hostOf(lists listsOfHost, terms termsOfHost) (h ofHost) {
	for _, p := range lists.InitContainers {
		p.ofInit = true
		h.ports = append(h.ports, p)
	}
	h.ports = append(h.ports, lists.Containers...)
	narrow := func(path string, list byHost) {
		for _, term := range list {
			if s := term.selector; s.there && !s.narrow {
				h.narrowed = append(h.narrowed, selectorPath{fmt.Sprintf("%s/%d/labelSelector/matchExpressions", path, term.index), s.expressions})
			}
		}
	}
	narrow("/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution", terms.PodAntiAffinity.Required)
	narrow("/spec/topologySpreadConstraints", lists.TopologySpreadConstraints)
	h.together = len(terms.PodAffinity.Required) > 0
	return h
}

// portsOfContainers are the ports with a hostPort of a list of containers.
type portsOfContainers []hostPort

// UnmarshalJSON implements json.Unmarshaler.
func (l *portsOfContainers) UnmarshalJSON(b []byte) error {
	*l = nil
	var c struct {
		Ports portsOfOne `json:"ports"`
	}
	container := int32(-1)
	return readEach(b, '[', func(d *json.Decoder) error {
		container++
		c.Ports = nil
		if err := d.Decode(&c); err != nil {
			return err
		}
		if len(*l)+len(c.Ports) > maxHostPorts {
			return &tooManyError{"host ports", maxHostPorts}
		}
		for _, p := range c.Ports {
			p.container = container
			*l = append(*l, p)
		}
		return nil
	})
}

// portsOfOne are those of one container.
type portsOfOne []hostPort

type portRead struct {
	HostPort int32  `json:"hostPort"`
	HostIP   string `json:"hostIP"`
}

// fewPorts is how long a list of ports is, in bytes, that is read at once: most are, and to read one
// by one takes more memory for each list.
const fewPorts = 1 << 10

// UnmarshalJSON implements json.Unmarshaler.
func (l *portsOfOne) UnmarshalJSON(b []byte) error {
	*l = nil
	port := int32(-1)
	add := func(p portRead) error {
		if port++; p.HostPort <= 0 {
			return nil
		}
		if len(*l) == maxHostPorts {
			return &tooManyError{"host ports", maxHostPorts}
		}
		*l = append(*l, hostPort{port: port, ip: p.HostIP})
		return nil
	}
	if len(b) <= fewPorts {
		var all []portRead
		err := json.Unmarshal(b, &all)
		for _, p := range all {
			err = errors.Join(err, add(p))
		}
		return err
	}
	var p portRead
	return readEach(b, '[', func(d *json.Decoder) error {
		p = portRead{}
		if err := d.Decode(&p); err != nil {
			return err
		}
		return add(p)
	})
}

// byHost are those of a list of terms, or of constraints, that the scheduler has to meet on each
// host.
type byHost []ofOneHost

type ofOneHost struct {
	index    int
	selector selectorForm
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *byHost) UnmarshalJSON(b []byte) error {
	*l = nil
	type term struct {
		TopologyKey       string                               `json:"topologyKey"`
		WhenUnsatisfiable corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable"` // "" of a term
		LabelSelector     selectorForm                         `json:"labelSelector"`
	}
	var t term
	index := -1
	return readEach(b, '[', func(d *json.Decoder) error {
		index++
		t = term{}
		if err := d.Decode(&t); err != nil || t.TopologyKey != corev1.LabelHostname || t.WhenUnsatisfiable == corev1.ScheduleAnyway {
			return err
		}
		if len(*l) == maxByHost {
			return &tooManyError{"terms by " + corev1.LabelHostname, maxByHost}
		}
		*l = append(*l, ofOneHost{index, t.LabelSelector})
		return nil
	})
}

// selectorForm is what a patch depends on of a label selector. Without one, no pod is selected.
type selectorForm struct {
	there, expressions bool
	narrow             bool // it is about the pods of one cell
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *selectorForm) UnmarshalJSON(b []byte) error {
	*s = selectorForm{}
	var is *struct {
		MatchExpressions *sameCell `json:"matchExpressions"`
	}
	if err := json.Unmarshal(b, &is); err != nil || is == nil {
		return err
	}
	s.there = true
	if is.MatchExpressions != nil {
		s.expressions, s.narrow = true, bool(*is.MatchExpressions)
	}
	return nil
}

// sameCell reports whether one of a list of expressions is about SameCell.
type sameCell bool

// UnmarshalJSON implements json.Unmarshaler.
func (is *sameCell) UnmarshalJSON(b []byte) error {
	*is = false
	var e struct {
		Key string `json:"key"`
	}
	return readEach(b, '[', func(d *json.Decoder) error {
		e.Key = ""
		err := d.Decode(&e)
		*is = *is || e.Key == SameCell
		return err
	})
}
