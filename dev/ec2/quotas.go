package ec2

import (
	"net/http"
	"slices"
	"strings"
)

const (
	// quotasTarget begins the header that names an action of Service Quotas: JSON 1.1.
	quotasTarget = "ServiceQuotasV20190624."
	// mostQuotas bounds a page (Service Quotas API reference, "ListServiceQuotas").
	mostQuotas = 100
)

// quotas are what Service Quotas tells.
type quotas struct {
	*base
	callers *callers

	values map[string]float64
	code   string // with which calls are refused
}

// Fail has Service Quotas refuse each call with a code, such as TooManyRequestsException; "" ends that.
func (m *quotas) Fail(code string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.code = code
}

// serveQuotas answers a call of Service Quotas.
func (m *quotas) serveQuotas(w http.ResponseWriter, r *http.Request) {
	serveTarget(m.callers, w, r, jsonService{
		name:      "servicequotas",
		target:    quotasTarget,
		action:    "ListServiceQuotas",
		malformed: "IllegalArgumentException",
		message:   "Message",
	}, m.listServiceQuotas)
}

// quota is one of an answer (Service Quotas API reference, "ServiceQuota").
type quota struct {
	ServiceCode, QuotaCode string
	Value                  float64
}

// quotasCall is what a call of ListServiceQuotas may have.
type quotasCall struct {
	ServiceCode string
	asks
}

func (m *quotas) listServiceQuotas(_ *request, in quotasCall) (any, error) {
	m.mu.Lock()
	code, values := m.code, m.values
	m.mu.Unlock()
	switch {
	case code != "":
		return nil, bad(code, "The model refuses this call")
	case in.ServiceCode != "ec2":
		return nil, bad("NoSuchResourceException", "The model has quotas of ec2, not of '%s'", in.ServiceCode)
	}
	all := []quota{}
	for code, value := range values {
		all = append(all, quota{"ec2", code, value})
	}
	slices.SortFunc(all, func(a, b quota) int { return strings.Compare(a.QuotaCode, b.QuotaCode) })
	some, next, err := pageOf(m.base, all, in.asks, mostQuotas, "IllegalArgumentException", "InvalidPaginationTokenException")
	if err != nil {
		return nil, err
	}
	answer := map[string]any{"Quotas": some}
	if next != "" {
		answer["NextToken"] = next
	}
	return answer, nil
}
