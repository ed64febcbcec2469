package adminapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/sanitize"
	"k8s.io/apimachinery/pkg/util/validation"
)

// PathCost returns Costs; the query has what CostQuery has.
const PathCost = "/v1/cost"

// ByLabel is before the key of the label that costs are summed by.
const ByLabel = "label="

var costsBy = []string{"pod", "owner", "namespace", "day", "type"}

// CostQuery says which costs are asked for.
type CostQuery struct {
	// By is what they are summed by: pod, owner, namespace, day, type, or label=KEY.
	By string
	// Since and Until are the first day and the last, in UTC.
	Since, Until costs.Day
	// Namespace is the only one that counts; "" for all, and cells without a pod.
	Namespace string
}

// Label is the key of the label that costs are summed by, where they are.
func (q CostQuery) Label() (key string, is bool) { return strings.CutPrefix(q.By, ByLabel) }

// CheckBy says what is wrong with what costs are to be summed by.
func CheckBy(by string) error {
	if key, is := strings.CutPrefix(by, ByLabel); is {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return fmt.Errorf("%q is no name of a label: %s", sanitize.Printable(key), strings.Join(wrong, "; "))
		}
		return nil
	}
	if !slices.Contains(costsBy, by) {
		return fmt.Errorf("%q is nothing that costs are summed by: it must be %s, or %sKEY",
			sanitize.Printable(by), strings.Join(costsBy, ", "), ByLabel)
	}
	return nil
}

// Costs are what cells have cost.
type Costs struct {
	By    string `json:"by"`
	Since string `json:"since"`
	Until string `json:"until"`
	// Costs come dearest first; days in their order.
	Costs []Cost `json:"costs"`
	Total Cost   `json:"total"`
}

// Cost is what was spent by one of what costs are summed by; the other fields are empty.
// costs.Others stands for names that were summed, costs.NoPod for no pod.
type Cost struct {
	Namespace    string `json:"namespace,omitempty"`
	Owner        string `json:"owner,omitempty"`
	Pod          string `json:"pod,omitempty"`
	Day          string `json:"day,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	LaunchType   string `json:"launchType,omitempty"`
	// Label is the label's value; empty also for a pod without it.
	Label string  `json:"label,omitempty"`
	Hours float64 `json:"hours"`
	// Dollars are those of machines that are known; nil where no price is.
	Dollars *float64 `json:"dollars"`
	// UnknownPriceHours are those of Hours that are in no Dollars.
	UnknownPriceHours float64 `json:"unknownPriceHours,omitempty"`
	// MeasuredHours are those of Hours for which it is known how much of the machine was used,
	// and IdleDollars those of Dollars that were paid for what of it stood idle; nil where
	// nothing was measured.
	MeasuredHours float64  `json:"measuredHours,omitempty"`
	IdleDollars   *float64 `json:"idleDollars,omitempty"`
	// Disk and Address are what root disks and public addresses cost; nil for nothing.
	Disk    *Part `json:"disk,omitempty"`
	Address *Part `json:"address,omitempty"`
}

// Part is what is paid beside machines; its fields are as those of Cost.
type Part struct {
	Dollars           *float64 `json:"dollars"`
	UnknownPriceHours float64  `json:"unknownPriceHours,omitempty"`
}

// Known are the dollars that are known of all parts; nil where those of no machine are.
func (c Cost) Known() *float64 {
	if c.Dollars == nil {
		return nil
	}
	sum := *c.Dollars
	for _, p := range []*Part{c.Disk, c.Address} {
		if p != nil && p.Dollars != nil {
			sum += *p.Dollars
		}
	}
	return &sum
}

// ErrBadQuery says that what was asked for is none of what there is.
var ErrBadQuery = errors.New("the query is not valid")

// Costs asks what was spent.
func (c *Client) Costs(ctx context.Context, q CostQuery) (costs Costs, err error) {
	query := url.Values{"by": {q.By}, "since": {q.Since.String()}, "until": {q.Until.String()}}
	if q.Namespace != "" {
		query.Set("namespace", q.Namespace)
	}
	return costs, c.get(ctx, PathCost, query, &costs)
}

func (s *Server) costs(w http.ResponseWriter, r *http.Request) {
	q := CostQuery{By: r.FormValue("by"), Namespace: r.FormValue("namespace")}
	err := CheckBy(q.By)
	for name, day := range map[string]*costs.Day{"since": &q.Since, "until": &q.Until} {
		if err == nil {
			if *day, err = costs.ParseDay(r.FormValue(name)); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if err != nil {
		s.write(w, http.StatusBadRequest, problem{err.Error()})
		return
	}
	costs, err := s.c.Costs(r.Context(), q)
	if errors.Is(err, ErrBadQuery) {
		s.write(w, http.StatusBadRequest, problem{err.Error()})
		return
	}
	s.answer(w, costs, err)
}
