package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/suggest"
)

// InvalidAnnotationError is an annotation with Prefix that Kip does not know, or
// whose value it cannot use. Only a change of the pod can mend it.
type InvalidAnnotationError struct {
	Annotation, Value string
	// Allowed is what would be right; "" when the annotation is unknown.
	Allowed string
	// Why is what is wrong with a value of many parts. Optional.
	Why error
	// Nearest is the known word that was probably meant, "" when none is near:
	// an annotation when this one is unknown, else a value.
	Nearest string
}

func unknownAnnotation(name, value string) *InvalidAnnotationError {
	return &InvalidAnnotationError{Annotation: name, Value: value, Nearest: suggest.Nearest(name[len(Prefix):], shortNames())}
}

func (e *InvalidAnnotationError) Error() string {
	meant := ""
	if e.Nearest != "" {
		meant = fmt.Sprintf("; did you mean %s?", e.Nearest)
	}
	if e.Allowed == "" {
		return fmt.Sprintf("annotation %s is unknown: %s* may be %s%s", e.Annotation, Prefix, strings.Join(shortNames(), ", "), meant)
	}
	why := ""
	if e.Why != nil {
		why = shortened(e.Why.Error()) + ": "
	}
	return fmt.Sprintf("annotation %s: %q is not valid: %swant %s%s", e.Annotation, shortened(e.Value), why, e.Allowed, meant)
}

// shortened keeps of a value what people need to recognize it: an Event has 1024 bytes.
func shortened(value string) string {
	const most = 200
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}

// shortNames are the known annotations without Prefix.
func shortNames() []string {
	var names []string
	for _, name := range knownAnnotations {
		names = append(names, name[len(Prefix):])
	}
	return names
}

// UnplaceableError reports why no instance type fits a pod, by counts. Only a change
// of the pod, the configuration or the catalogue can mend it.
type UnplaceableError struct {
	// Need is what the pod needs, for people: "cpu 64, memory 1Gi".
	Need string
	// Considered is how many types were looked at: those that the
	// instance-type annotation or the default leaves.
	Considered int
	// Rejections add up to Considered.
	Rejections []Rejection
}

// Rejection counts the types that failed the same check, each type at the first
// check that it failed.
type Rejection struct {
	Types int
	// Why begins with a verb: "have too little cpu (largest: 2xlarge with 8)".
	Why string
}

func (e *UnplaceableError) Error() string {
	var why []string
	for _, r := range e.Rejections {
		why = append(why, fmt.Sprintf("%d %s", r.Types, r.Why))
	}
	if len(why) == 0 {
		why = append(why, "the cloud offers none")
	}
	return fmt.Sprintf("needs %s: %s considered: %s", e.Need, types(e.Considered), strings.Join(why, ", "))
}

// NoCapacityError reports that types fit a pod, but all of them are out of capacity
// now. Waiting mends it.
type NoCapacityError struct {
	// Need is what the pod needs, for people.
	Need string
	// Types are the names of the types that fit, cheapest first; with several
	// LaunchTypes, those of the first of them first.
	Types []string
	// LaunchTypes are how the pod may be launched, as it prefers it.
	LaunchTypes []LaunchType
}

func (e *NoCapacityError) Error() string {
	const most = 5
	names := strings.Join(e.Types[:min(most, len(e.Types))], ", ")
	if len(e.Types) > most {
		names += fmt.Sprintf(" and %d more", len(e.Types)-most)
	}
	how := ""
	if len(e.LaunchTypes) > 0 && !slices.Equal(e.LaunchTypes, []LaunchType{OnDemand}) { // on demand goes without saying
		how = " " + either(e.LaunchTypes, words)
	}
	if len(e.Types) == 1 {
		return fmt.Sprintf("no capacity now%s for %s, the only type that may be chosen for %s", how, names, e.Need)
	}
	return fmt.Sprintf("no capacity now%s for any of the %s that fit %s: %s", how, types(len(e.Types)), e.Need, names)
}

func types(n int) string {
	if n == 1 {
		return "1 type"
	}
	return fmt.Sprintf("%d types", n)
}
