package ec2

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/dev/cloudmodel"
)

// form is the parameters of a call, or those below one of them. The names are those of
// EC2's query protocol: Filter.1.Value.2.
type form struct {
	values url.Values
	prefix string
	read   map[string]bool // of all that share the values
	errs   *[]error
}

func newForm(values url.Values) *form {
	f := &form{values: values, read: map[string]bool{}, errs: &[]error{}}
	f.text("Action")
	f.text("Version")
	return f
}

// at is what is below a parameter.
func (f *form) at(name string) *form {
	below := *f
	below.prefix = f.prefix + name + "."
	return &below
}

func (f *form) has(name string) bool {
	for k := range f.values {
		if k == f.prefix+name || strings.HasPrefix(k, f.prefix+name+".") {
			return true
		}
	}
	return false
}

func (f *form) text(name string) string {
	f.read[f.prefix+name] = true
	return f.values.Get(f.prefix + name)
}

func (f *form) number(name string) int {
	text := f.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		f.bad("InvalidParameterValue", "Value (%s) for parameter %s is invalid", text, f.prefix+name)
	}
	return n
}

func (f *form) flag(name string) bool {
	text := f.text(name)
	if text != "" && text != "true" && text != "false" {
		f.bad("InvalidParameterValue", "Value (%s) for parameter %s is invalid", text, f.prefix+name)
	}
	return text == "true"
}

// each are the elements of a list, by their numbers.
func (f *form) each(name string) (all []*form) {
	for n := 1; f.has(fmt.Sprintf("%s.%d", name, n)); n++ {
		all = append(all, f.at(fmt.Sprintf("%s.%d", name, n)))
	}
	return all
}

// texts are a list of values.
func (f *form) texts(name string) (all []string) {
	for n := 1; f.has(fmt.Sprintf("%s.%d", name, n)); n++ {
		all = append(all, f.text(fmt.Sprintf("%s.%d", name, n)))
	}
	return all
}

func (f *form) bad(code, format string, args ...any) {
	*f.errs = append(*f.errs, &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)})
}

// done is the first thing that is wrong: nothing that was sent may be left unread.
func (f *form) done() error {
	for _, k := range sortedKeys(f.values) {
		if !f.read[k] {
			f.bad("UnknownParameter", "The parameter %s is not recognized", k)
		}
	}
	if len(*f.errs) > 0 {
		return (*f.errs)[0]
	}
	return nil
}

// filters are those of a call: all of them must match, each by one of its values.
type filters map[string][]string

// filters reads those of the names that an action knows; a name that ends in a colon
// stands for all that begin like it.
func (f *form) filters(known ...string) filters {
	all := filters{}
	for _, one := range f.each("Filter") {
		name := one.text("Name")
		if !slices.ContainsFunc(known, func(k string) bool { return k == name || strings.HasSuffix(k, ":") && strings.HasPrefix(name, k) }) {
			f.bad("InvalidParameterValue", "The filter '%s' is invalid", name)
		}
		values := one.texts("Value")
		if len(values) > maxFilterValues {
			f.bad("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues)
		}
		all[name] = values
	}
	return all
}

const maxFilterValues = 200

// match says whether something passes: valuesOf are what it has for a filter.
func (fs filters) match(valuesOf func(name string) []string) bool {
	for name, wanted := range fs {
		has := valuesOf(name)
		if !slices.ContainsFunc(wanted, func(w string) bool { return slices.ContainsFunc(has, func(h string) bool { return like(w, h) }) }) {
			return false
		}
	}
	return true
}

// tagValues is what something with tags has for a filter on tags.
func tagValues(tags map[string]string, name string) []string {
	if name == "tag-key" {
		return sortedKeys(tags)
	}
	if key, ok := strings.CutPrefix(name, "tag:"); ok {
		if v, has := tags[key]; has {
			return []string{v}
		}
	}
	return nil
}

// like says whether a text matches a pattern with * and ?.
func like(pattern, text string) bool {
	star, mark := -1, 0
	p, t := 0, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// page returns one page of a list, and the token of the next. The list is put in the order of the IDs.
func page[T any](f *form, most int, all []T, id func(T) string) (some []T, next string) {
	if n := f.number("MaxResults"); n > 0 {
		most = min(n, most)
	}
	return cloudmodel.Page(all, id, f.text("NextToken"), most)
}
