package placement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/offering"
)

// MaxChoices bounds an ordered list of instance-requirements: each of its entries keeps some of MaxOfferings.
const MaxChoices = 8

// Choice is one entry of an ordered list of instance-requirements.
type Choice struct {
	Requirements Requirements
	// LaunchType is how the instance is bought; "" for as the pod says otherwise.
	LaunchType LaunchType
}

// choiceTerm is a Choice as people write it.
type choiceTerm struct {
	MatchExpressions []corev1.NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	LaunchType       LaunchType                       `json:"launchType,omitempty"`
}

// IsOrdered reports whether a value of instance-requirements is an ordered list: one of its entries says how the instance is bought.
func IsOrdered(value string) bool { return strings.Contains(value, `"launchType"`) }

// parseChoices reads the value of instance-requirements, which may be an ordered list; nil if it is none.
func parseChoices(value string) (Requirements, []Choice, error) {
	if !IsOrdered(value) {
		any, err := ParseRequirements(value)
		return any, nil, err
	}
	terms, err := decodeChoices(value)
	if err != nil {
		return nil, nil, err
	}
	var any Requirements
	var all []Choice
	for n, t := range terms {
		if l := t.LaunchType; l != "" && l != OnDemand && l != Spot && l != Dedicated {
			return nil, nil, fmt.Errorf("launchType %q of entry %d: want on-demand, spot or dedicated", l, n+1)
		}
		term, err := requirementsOf(t.MatchExpressions)
		if err != nil {
			return nil, nil, err
		}
		any, all = append(any, term), append(all, Choice{Requirements: Requirements{term}, LaunchType: t.LaunchType})
	}
	return any, all, nil
}

func decodeChoices(value string) ([]choiceTerm, error) {
	if len(value) > maxRequirementsBytes {
		return nil, fmt.Errorf("%d bytes: the most is %d", len(value), maxRequirementsBytes)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(value)))
	d.DisallowUnknownFields()
	var terms []choiceTerm
	if err := d.Decode(&terms); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the list")
	}
	if len(terms) == 0 || len(terms) > MaxChoices {
		return nil, fmt.Errorf("%d entries: want 1 to %d in an ordered list", len(terms), MaxChoices)
	}
	var selecting []corev1.NodeSelectorTerm
	for _, t := range terms {
		if len(t.MatchExpressions) > 0 { // else any instance will do
			selecting = append(selecting, corev1.NodeSelectorTerm{MatchExpressions: t.MatchExpressions})
		}
	}
	if selecting == nil {
		return terms, nil
	}
	return terms, checkTerms(selecting)
}

// AndOrdered returns an ordered list of instance-requirements of which each entry has further expressions.
func AndOrdered(value string, more []corev1.NodeSelectorRequirement) (string, error) {
	terms, err := decodeChoices(value)
	if err != nil {
		return "", err
	}
	for i := range terms {
		terms[i].MatchExpressions = append(terms[i].MatchExpressions, more...)
	}
	both, err := json.Marshal(terms)
	if err != nil {
		return "", err
	}
	_, _, err = parseChoices(string(both))
	return string(both), err
}

// choices are those of a pod, the preferred first.
type choices []*choice

// of returns of which choice something is, for people; "" if there is one only.
func (all choices) of(n int) string {
	if len(all) == 1 {
		return ""
	}
	return fmt.Sprintf(" (choice %d of %d)", n+1, len(all))
}

// offerings are those of all choices, in their order. Each choice keeps a share of MaxOfferings for those after it, as launch types do.
func (all choices) offerings(unavailable func(offering.Key) bool) (list []offering.Offering, err error) {
	if len(all) == 1 {
		return all[0].offerings(unavailable)
	}
	share, has := min(fallbackCandidates, MaxOfferings/len(all)), map[offering.Key]bool{}
	var short, none error
	for n, c := range all {
		found, err := c.offerings(unavailable)
		if _, isShort := errors.AsType[*NoCapacityError](err); isShort {
			short = joined(short, err, all.of(n))
		} else if err != nil {
			none = joined(none, err, all.of(n))
		}
		for _, o := range found {
			if key := o.Key(); !has[key] && len(list) < MaxOfferings-share*(len(all)-1-n) {
				has[key] = true
				o.Reason = fmt.Sprintf("choice %d of %d: %s", n+1, len(all), o.Reason)
				list = append(list, o)
			}
		}
	}
	switch {
	case list != nil:
		return list, nil
	case short != nil: // of what fits, some may be had later
		return nil, short
	}
	return nil, none
}

// joined adds why a choice gave nothing.
func joined(before, err error, of string) error {
	if before == nil {
		return fmt.Errorf("%w%s", err, of)
	}
	return fmt.Errorf("%w; %w%s", before, err, of)
}
