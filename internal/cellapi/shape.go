package cellapi

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// shape rebuilds a JSON value that a cell sent: it returns what may be believed of
// the value, or an error that names the field at. Nothing that a shape does not name
// comes through, and the work is linear in the value's size.
type shape func(at *field.Path, v any) (any, error)

// wrong refuses a field of a body with 422.
func wrong(at *field.Path, want string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnprocessableEntity,
		Reason:  metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s must be %s", at, want),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: at.String(),
			Message: "must be " + want}}},
	}}
}

// text is a string of at most so many bytes.
func text(most int) shape {
	return func(at *field.Path, v any) (any, error) {
		s, ok := v.(string)
		if !ok || len(s) > most {
			return nil, wrong(at, fmt.Sprintf("a string of at most %d bytes", most))
		}
		return s, nil
	}
}

// message is a string for people: a longer one is cut.
func message(most int) shape {
	return func(at *field.Path, v any) (any, error) {
		s, ok := v.(string)
		if !ok {
			return nil, wrong(at, "a string")
		}
		return cut(s, most), nil
	}
}

// cut returns at most so many bytes of s, of whole characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// oneOf is one of a few strings.
func oneOf(words ...string) shape {
	return func(at *field.Path, v any) (any, error) {
		if s, ok := v.(string); !ok || !slices.Contains(words, s) {
			return nil, wrong(at, fmt.Sprintf("one of %q", words))
		}
		return v, nil
	}
}

func boolean(at *field.Path, v any) (any, error) {
	if _, ok := v.(bool); !ok {
		return nil, wrong(at, "true or false")
	}
	return v, nil
}

func whole(at *field.Path, v any) (any, error) {
	if _, ok := v.(int64); !ok {
		return nil, wrong(at, "a whole number")
	}
	return v, nil
}

// moment is a time as Kubernetes writes it.
func moment(at *field.Path, v any) (any, error) {
	s, ok := v.(string)
	if ok && len(s) <= len(time.RFC3339Nano)+5 {
		if _, err := time.Parse(time.RFC3339, s); err == nil {
			return v, nil
		}
	}
	return nil, wrong(at, "a time, as 2006-01-02T15:04:05Z")
}

// quantityForm are the quantities that machines have. A quantity's cost is its
// exponent: a comparison writes it out.
var quantityForm = regexp.MustCompile(`^[+-]?[0-9]{1,20}(\.[0-9]{0,9})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

func quantity(at *field.Path, v any) (any, error) {
	switch q := v.(type) {
	case int64:
		return v, nil
	case string:
		if len(q) <= 36 && quantityForm.MatchString(q) {
			return v, nil
		}
	}
	return nil, wrong(at, "a quantity of at most 20 digits and an exponent of two")
}

// errLeftOut is returned by the shape of a field that may only be null.
var errLeftOut = errors.New("the field is left out")

// orNull also takes null, which removes a field.
func orNull(s shape) shape {
	return func(at *field.Path, v any) (any, error) {
		if v == nil {
			return nil, nil
		}
		return s(at, v)
	}
}

// fieldsOf is an object of these fields. Others are left out.
func fieldsOf(of map[string]shape) shape {
	return func(at *field.Path, v any) (any, error) {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, wrong(at, "an object")
		}
		made := map[string]any{}
		for k, s := range of {
			sent, there := m[k]
			if !there {
				continue
			}
			made[k] = nil
			if sent == nil {
				continue
			}
			next, err := s(at.Child(k), sent)
			if errors.Is(err, errLeftOut) {
				delete(made, k)
				continue
			}
			if err != nil {
				return nil, err
			}
			made[k] = next
		}
		return made, nil
	}
}

// list is a list of at most so many.
func list(most int, of shape) shape {
	return func(at *field.Path, v any) (any, error) {
		l, ok := v.([]any)
		if !ok || len(l) > most {
			return nil, wrong(at, fmt.Sprintf("a list of at most %d", most))
		}
		made := make([]any, 0, len(l))
		for i, e := range l {
			next, err := of(at.Index(i), e)
			if err != nil {
				return nil, err
			}
			if next != nil {
				made = append(made, next)
			}
		}
		return made, nil
	}
}

// table is a map of at most so many keys.
func table(most int, of shape) shape {
	return func(at *field.Path, v any) (any, error) {
		m, ok := v.(map[string]any)
		if !ok || len(m) > most {
			return nil, wrong(at, fmt.Sprintf("an object of at most %d fields", most))
		}
		made := make(map[string]any, len(m))
		for k, e := range m {
			if len(k) > 317 || strings.HasPrefix(k, "$") { // prefix/name of Kubernetes' keys
				return nil, wrong(at, "an object whose keys are names of at most 317 bytes")
			}
			next, err := orNull(of)(at.Key(k), e)
			if err != nil {
				return nil, err
			}
			made[k] = next
		}
		return made, nil
	}
}
