package ec2

import (
	"encoding/xml"

	"github.com/elotl/kip/dev/cloudmodel"
)

// listXML is the answer of most lists.
type listXML[T any] struct {
	RequestID string `xml:"requestId"`
	Set       setXML[T]
	NextToken string `xml:"nextToken,omitempty"`
}

// setXML is the element with the things, which has another name in each list.
type setXML[T any] struct {
	XMLName xml.Name
	Items   []T `xml:"item"`
}

// list answers with all things.
func list[T any](name string, all []T) listXML[T] {
	return listXML[T]{RequestID: requestID, Set: setXML[T]{xml.Name{Local: name}, all}}
}

// paged answers with the page of them that a call asks for, of at most so many.
func paged[T any](r *request, name string, most int, all []T, id func(T) string) listXML[T] {
	some, next := page(r.form, most, all, id)
	answer := list(name, some)
	answer.NextToken = next
	return answer
}

// unpaged refuses a call that names the things of a list, and wants pages of them.
func (r *request) unpaged(ids []string, set string) {
	if len(ids) > 0 && r.has("MaxResults") {
		r.bad("InvalidParameterCombination", "The parameter %s cannot be used with the parameter maxResults", set)
	}
}

// asks is which page of a list a call of JSON asks for.
type asks struct {
	MaxResults int
	NextToken  string
}

// pageOf returns the page of a list that a call asks for, of at most so many, and the token of the next. It refuses other numbers and
// tokens with these codes.
func pageOf[T any](m *base, all []T, in asks, most int, badSize, badToken string) (some []T, next string, err error) {
	size := most
	switch {
	case in.MaxResults < 0 || in.MaxResults > most:
		return nil, "", bad(badSize, "MaxResults is %d: want 1 to %d", in.MaxResults, most)
	case in.MaxResults > 0:
		size = in.MaxResults
	}
	if some, next, err = cloudmodel.PageAt(all, in.NextToken, min(size, m.cfg.PageSize)); err != nil {
		return nil, "", bad(badToken, "%v", err)
	}
	return some, next, nil
}
