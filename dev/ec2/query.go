package ec2

import (
	"encoding/xml"
	"net/http"
	"slices"
	"strings"
)

// queryService is one of the services that speak AWS' query protocol: EC2, STS and IAM. They differ in their words.
type queryService struct {
	version, namespace string
	actions            map[string]func(*request) (any, error)
	// open is the action for which nobody has to sign.
	open string
	// unknown is said of other actions; it has the action and the version as %[1]s and %[2]s.
	unknown string
	// stranger is said to callers whom the account does not know; EC2's own words when nil.
	stranger *apiError
	// wrap makes an answer of what an action returns, and failed one of an error.
	wrap   func(action string, body any) any
	failed func(*apiError) any
}

const requestID = "00000000-0000-4000-8000-000000000000"

// ec2 is EC2 itself.
func (m *Model) ec2() *queryService {
	return &queryService{
		version:   "2016-11-15",
		namespace: "http://ec2.amazonaws.com/doc/2016-11-15/",
		unknown:   "The action %[1]s is not valid for this web service.",
		wrap:      func(_ string, body any) any { return body },
		failed:    func(e *apiError) any { return failure{Code: e.code, Message: e.message, ID: requestID} },
		actions: map[string]func(*request) (any, error){
			"RunInstances":                  m.launches.runInstances,
			"DescribeInstances":             m.Instances.describeInstances,
			"TerminateInstances":            m.Instances.terminateInstances,
			"StopInstances":                 m.Instances.stopInstances,
			"StartInstances":                m.Instances.startInstances,
			"CreateTags":                    m.tagging.createTags,
			"GetConsoleOutput":              m.Instances.getConsoleOutput,
			"CreateVolume":                  m.making.createVolume,
			"DeleteVolume":                  m.making.deleteVolume,
			"DescribeVolumes":               m.Volumes.describeVolumes,
			"AttachVolume":                  m.attaching.attachVolume,
			"DetachVolume":                  m.attaching.detachVolume,
			"ModifyVolume":                  m.modifications.modifyVolume,
			"DescribeVolumesModifications":  m.modifications.describeVolumesModifications,
			"DescribeInstanceStatus":        m.Announcements.describeInstanceStatus,
			"DescribeSpotInstanceRequests":  m.Announcements.describeSpotInstanceRequests,
			"DescribeNetworkInterfaces":     m.Parts.describeNetworkInterfaces,
			"DeleteNetworkInterface":        m.Parts.deleteNetworkInterface,
			"DescribeSubnets":               m.Networks.describeSubnets,
			"DescribeRouteTables":           m.Routing.describeRouteTables,
			"GetManagedPrefixListEntries":   m.Routing.getManagedPrefixListEntries,
			"CreateRoute":                   m.Routing.createRoute,
			"DeleteRoute":                   m.Routing.deleteRoute,
			"ModifyInstanceAttribute":       m.Routing.modifyInstanceAttribute,
			"DescribeAvailabilityZones":     m.Networks.describeAvailabilityZones,
			"DescribeSecurityGroups":        m.Groups.describeSecurityGroups,
			"CreateSecurityGroup":           m.Groups.createSecurityGroup,
			"DeleteSecurityGroup":           m.Groups.deleteSecurityGroup,
			"AuthorizeSecurityGroupIngress": m.Groups.authorizeSecurityGroupIngress,
			"RevokeSecurityGroupIngress":    m.Groups.revokeSecurityGroupIngress,

			"DescribeVpcs":                  m.Networks.describeVpcs,
			"DescribeImages":                m.Images.describeImages,
			"RegisterImage":                 m.Images.registerImage,
			"DeregisterImage":               m.Images.deregisterImage,
			"DescribeSnapshots":             m.Snapshots.describeSnapshots,
			"DeleteSnapshot":                m.Images.deleteSnapshot,
			"DescribeCapacityReservations":  m.Reservations.describeCapacityReservations,
			"DescribeHosts":                 m.Hosts.describeHosts,
			"DescribeInstanceTypes":         m.types.describeInstanceTypes,
			"DescribeInstanceTypeOfferings": m.types.describeInstanceTypeOfferings,
			"DescribeSpotPriceHistory":      m.types.describeSpotPriceHistory,

			"ModifyInstanceCreditSpecification": m.Credits.modifyInstanceCreditSpecification,
		},
	}
}

// failure is how EC2 says no.
type failure struct {
	XMLName xml.Name `xml:"Response"`
	Code    string   `xml:"Errors>Error>Code"`
	Message string   `xml:"Errors>Error>Message"`
	ID      string   `xml:"RequestID"`
}

// younger returns a service that answers as STS and IAM do, which came after EC2.
func younger(service, version string, open string, actions map[string]func(*request) (any, error)) *queryService {
	namespace := "https://" + service + ".amazonaws.com/doc/" + version + "/"
	return &queryService{
		version:   version,
		namespace: namespace,
		unknown:   "Could not find operation %[1]s for version %[2]s",
		stranger: &apiError{
			http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid.",
		},
		open:    open,
		actions: actions,
		wrap: func(action string, body any) any {
			return youngerAnswer{namedXML{xml.Name{Local: action + "Result"}, body}, requestID}
		},
		failed: func(e *apiError) any {
			return youngerFailure{
				XMLName: xml.Name{Space: namespace, Local: "ErrorResponse"},
				Type:    "Sender",
				Code:    e.code,
				Message: e.message,
				ID:      requestID,
			}
		},
	}
}

type youngerAnswer struct {
	Result    namedXML
	RequestID string `xml:"ResponseMetadata>RequestId"`
}

// namedXML is encoded under a name of its own.
type namedXML struct {
	name xml.Name
	body any
}

func (r namedXML) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	return e.EncodeElement(r.body, xml.StartElement{Name: r.name})
}

type youngerFailure struct {
	XMLName xml.Name
	Type    string `xml:"Error>Type"`
	Code    string `xml:"Error>Code"`
	Message string `xml:"Error>Message"`
	ID      string `xml:"RequestId"`
}

// queries answers the query protocol.
type queries struct {
	*base
	callers      *callers
	reservations *reservations

	services []*queryService // EC2 is the first
}

// knows reports whether an action is one of a service of the query protocol.
func (m *queries) knows(action string) bool {
	return slices.ContainsFunc(m.services, func(s *queryService) bool { return s.actions[action] != nil })
}

// serveQuery answers a call of the service that it names by its version.
func (m *queries) serveQuery(w http.ResponseWriter, r *http.Request) {
	s, err := m.services[0], r.ParseForm()
	if err != nil {
		s.answer(w, "", nil, bad("MalformedQueryString", "%v", err))
		return
	}
	m.reservations.endBlocks()
	call := &request{ctx: r.Context(), form: newForm(r.PostForm), action: r.PostForm.Get("Action")}
	if n := slices.IndexFunc(m.services, func(s *queryService) bool { return s.version == r.PostForm.Get("Version") }); n >= 0 {
		s = m.services[n]
	}
	answer, err := m.model.Call(call.ctx, call.action, func() (any, error) { return m.query(s, call, r) })
	s.answer(w, call.action, answer, err)
}

// query does what a call of a service asks for.
func (m *queries) query(s *queryService, call *request, r *http.Request) (answer any, err error) {
	do := s.actions[call.action]
	if do == nil {
		return nil, bad("InvalidAction", s.unknown, call.action, s.version)
	}
	if call.action != s.open {
		if call.caller, err = m.callers.callerOf(r); err != nil && s.stranger != nil {
			return nil, s.stranger
		}
		if err != nil {
			return nil, err
		}
	}
	// A call that changes something reads this itself. Source: EC2 API reference, "DescribeSubnets", DryRun.
	dry := strings.HasPrefix(call.action, "Describe") && call.flag("DryRun")
	if answer, err = do(call); err == nil && dry {
		return nil, dryRun
	}
	return answer, err
}

// answer writes one. An answer that the machines say is lost is none: the connection ends.
func (s *queryService) answer(w http.ResponseWriter, action string, body any, err error) {
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	out := xml.NewEncoder(w)
	if err != nil {
		e := apiErrorOf(err)
		if e == nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(e.status)
		_ = out.Encode(s.failed(e)) // or whoever asked is gone
		return
	}
	start := xml.StartElement{Name: xml.Name{Space: s.namespace, Local: action + "Response"}}
	_ = out.EncodeElement(s.wrap(action, body), start) // likewise
}
