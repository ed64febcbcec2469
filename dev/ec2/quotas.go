package ec2

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	// quotasTarget begins the header that names an action of Service Quotas: JSON 1.1.
	quotasTarget = "ServiceQuotasV20190624."
	// mostQuotas bounds a page (Service Quotas API reference, "ListServiceQuotas").
	mostQuotas = 100
)

// FailQuotas has Service Quotas refuse each call with a code, such as TooManyRequestsException; "" ends that.
func (m *Model) FailQuotas(code string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quotaCode = code
}

// serveQuotas answers a call of Service Quotas.
func (m *Model) serveQuotas(w http.ResponseWriter, r *http.Request) {
	m.serveJSON(w, r, quotasTarget, "Message", m.listServiceQuotas)
}

// quota is one of an answer (Service Quotas API reference, "ServiceQuota").
type quota struct {
	ServiceCode, QuotaCode string
	Value                  float64
}

func (m *Model) listServiceQuotas(r *http.Request, action string) (any, error) {
	if action != "ListServiceQuotas" {
		return nil, bad("UnknownOperationException", "%s", action)
	}
	var in struct {
		ServiceCode string
		MaxResults  int
		NextToken   string
	}
	read := json.NewDecoder(r.Body)
	read.DisallowUnknownFields()
	if err := read.Decode(&in); err != nil {
		return nil, bad("IllegalArgumentException", "%v", err)
	}
	policy, err := m.policyOf(r.Header.Get("Authorization"), r.Header.Get(sessionHeader))
	if err != nil {
		return nil, bad("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	asked := &request{ctx: r.Context(), action: action, policy: policy}
	if m.may(asked, "servicequotas:"+action, "*", nil) != nil {
		return nil, bad("AccessDeniedException", "User is not authorized to perform: servicequotas:%s", action)
	}
	m.mu.Lock()
	code, values := m.quotaCode, m.quotas
	m.mu.Unlock()
	first, size := 0, mostQuotas
	if in.NextToken != "" {
		if first, err = strconv.Atoi(in.NextToken); err != nil || first < 0 {
			return nil, bad("InvalidPaginationTokenException", "The pagination token is invalid.")
		}
	}
	switch {
	case code != "":
		return nil, bad(code, "The model refuses this call")
	case in.ServiceCode != "ec2":
		return nil, bad("NoSuchResourceException", "The model has quotas of ec2, not of '%s'", in.ServiceCode)
	case in.MaxResults < 0 || in.MaxResults > mostQuotas:
		return nil, bad("IllegalArgumentException", "MaxResults is %d: want 1 to %d", in.MaxResults, mostQuotas)
	case in.MaxResults > 0:
		size = in.MaxResults
	}
	all := []quota{}
	for code, value := range values {
		all = append(all, quota{"ec2", code, value})
	}
	slices.SortFunc(all, func(a, b quota) int { return strings.Compare(a.QuotaCode, b.QuotaCode) })
	last := min(len(all), first+min(size, m.cfg.PageSize))
	answer := map[string]any{"Quotas": all[min(first, last):last]}
	if last < len(all) {
		answer["NextToken"] = strconv.Itoa(last)
	}
	return answer, nil
}
