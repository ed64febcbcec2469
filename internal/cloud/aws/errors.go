package aws

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/elotl/kip/internal/cloud"
)

// about is what of an offering an error code is about.
type about int

const (
	nothing      about = iota // the caller's own scope
	offering                  // a type in a zone, bought so
	place                     // a subnet
	family                    // what quotas count by instance, bought so
	cpus                      // what quotas count by vCPU, bought so
	capacityType              // all that is bought so
	disks                     // the account's room for disks
	account
	launched // all that a launch asked of EC2's offers; the account, where nothing was launched
)

// meaning is what a code of EC2 says.
type meaning struct {
	cause cloud.Cause
	about about
}

// meanings are the codes on which Kip decides. Source: EC2 API reference, "Error codes for
// the Amazon EC2 API". Each means that nothing was done, but for a mismatch. Some codes say too
// little: see messages.
var meanings = map[string]meaning{
	"InsufficientInstanceCapacity":         {cloud.ErrCapacity, offering},
	"InsufficientCapacity":                 {cloud.ErrCapacity, offering},
	"InsufficientHostCapacity":             {cloud.ErrCapacity, offering},
	"InsufficientReservedInstanceCapacity": {cloud.ErrCapacity, offering},
	codeReservationFull:                    {cloud.ErrCapacity, offering},
	codesNotThere[0]:                       {cloud.ErrCapacity, offering}, // it has ended
	codeHostFull:                           {cloud.ErrCapacity, offering},
	codesNotThere[1]:                       {cloud.ErrCapacity, offering}, // it was released
	codesNotThere[2]:                       {cloud.ErrCapacity, offering}, // it is under assessment, or retires
	"UnfulfillableCapacity":                {cloud.ErrCapacity, offering},
	"SpotMaxPriceTooLow":                   {cloud.ErrCapacity, offering},
	"Unsupported":                          {cloud.ErrRefused, offering}, // such as a type that a zone does not have
	"InsufficientFreeAddressesInSubnet":    {cloud.ErrCapacity, place},
	"InsufficientAddressCapacity":          {cloud.ErrCapacity, place},
	"InsufficientCidrBlocks":               {cloud.ErrCapacity, place}, // the subnet has no free /28 for a pod's address
	"VcpuLimitExceeded":                    {cloud.ErrQuota, cpus},
	"InstanceLimitExceeded":                {cloud.ErrQuota, family},
	"MaxSpotInstanceCountExceeded":         {cloud.ErrQuota, cpus},
	"InsufficientVolumeCapacity":           {cloud.ErrCapacity, offering},
	"VolumeTypeNotAvailableInZone":         {cloud.ErrRefused, offering},
	"VolumeLimitExceeded":                  {cloud.ErrQuota, disks}, // in TiB of all disks of a type, such as gp3
	"MaxIOPSLimitExceeded":                 {cloud.ErrQuota, disks}, // of all disks with IOPS of their own
	"VolumeModificationSizeLimitExceeded":  {cloud.ErrQuota, disks}, // in TiB of all disks that are being changed
	codeNoSpotRole:                         {cloud.ErrQuota, capacityType},
	"NetworkInterfaceLimitExceeded":        {cloud.ErrQuota, account},
	"RequestLimitExceeded":                 {cloud.ErrThrottled, account},
	"Throttling":                           {cloud.ErrThrottled, account},
	"ThrottlingException":                  {cloud.ErrThrottled, account},
	"RequestThrottled":                     {cloud.ErrThrottled, account},
	"EC2ThrottledException":                {cloud.ErrThrottled, account},
	unauthorized:                           {cloud.ErrUnauthorised, launched}, // IAM answers by resource
	"AuthFailure":                          {cloud.ErrUnauthorised, account},
	"AccessDenied":                         {cloud.ErrUnauthorised, launched},
	"AccessDeniedException":                {cloud.ErrUnauthorised, launched},
	"InvalidClientTokenId":                 {cloud.ErrUnauthorised, account},
	"UnrecognizedClientException":          {cloud.ErrUnauthorised, account},
	"SignatureDoesNotMatch":                {cloud.ErrUnauthorised, account},
	"MissingAuthenticationToken":           {cloud.ErrUnauthorised, account},
	"RequestExpired":                       {cloud.ErrUnauthorised, account},
	"ExpiredToken":                         {cloud.ErrUnauthorised, account},
	"ExpiredTokenException":                {cloud.ErrUnauthorised, account},
	"OptInRequired":                        {cloud.ErrUnauthorised, account},
	"PendingVerification":                  {cloud.ErrUnauthorised, account},
	"Blocked":                              {cloud.ErrUnauthorised, account},
	"InvalidInstanceID.NotFound":           {cloud.ErrNotFound, nothing},
	"InvalidVolume.NotFound":               {cloud.ErrNotFound, nothing},
	"IdempotentParameterMismatch":          {cloud.ErrMismatch, nothing},

	// What is asked for. These limits are of the one instance, interface or resource.
	"AttachmentLimitExceeded":                 {cloud.ErrRefused, nothing},
	"OperationNotPermitted":                   {cloud.ErrRefused, nothing},
	"PrivateIpAddressLimitExceeded":           {cloud.ErrRefused, nothing},
	"SecurityGroupsPerInstanceLimitExceeded":  {cloud.ErrRefused, nothing},
	"SecurityGroupsPerInterfaceLimitExceeded": {cloud.ErrRefused, nothing},
	"TagLimitExceeded":                        {cloud.ErrRefused, nothing},
	"TagPolicyViolation":                      {cloud.ErrRefused, nothing},
	"UnknownParameter":                        {cloud.ErrRefused, nothing},
	"UnknownVolumeType":                       {cloud.ErrRefused, nothing},
	"UnsupportedOperation":                    {cloud.ErrRefused, nothing},
	"ValidationError":                         {cloud.ErrRefused, nothing},
}

// codesOfRequest begin the codes by which EC2 finds fault with what is asked for, of which there
// are hundreds, such as InvalidParameterValue and InvalidKeyPair.NotFound. Source: as above.
var codesOfRequest = []string{"Invalid", "Malformed", "Missing"}

// codesOfServer say that EC2 itself has failed, whatever it was asked. The last is what the SDK
// makes of an answer without a code, which is a proxy's. Source: as above, "Server error codes".
var codesOfServer = []string{"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "UnknownError"}

// explained says that Kip knows what a code is about.
func explained(code string) bool {
	_, known := meanings[code]
	return known || slices.Contains(codesOfServer, code) ||
		slices.ContainsFunc(codesOfRequest, func(begin string) bool { return strings.HasPrefix(code, begin) })
}

// faults are the codes by which EC2 tells why it has ended an instance whose launch it had
// accepted. Source: EC2 API reference, "StateReason". What is not here is told as it is.
var faults = map[string]meaning{
	"Server.InsufficientInstanceCapacity": {cloud.ErrCapacity, offering},
	"Server.SpotInstanceShutdown":         {cloud.ErrCapacity, offering},
	"Server.SpotInstanceTermination":      {cloud.ErrCapacity, offering},
	// Other than where a call is refused, each try costs an instance. A smaller disk may still
	// fit, so that not all wait.
	"Client.VolumeLimitExceeded":      {cloud.ErrQuota, offering},
	"Client.InvalidSnapshot.NotFound": {cloud.ErrRefused, nothing},
	codeNoDisk:                        {cloud.ErrUnfit, nothing},
}

// codeNoDisk is that of a root disk that EC2 could not make, mostly for want of its KMS key, and codesNoKey begin those of a
// key that it cannot use. The operator has configured the key: whoever asks for another instance gets the same. Sources:
// those of KeyFaults of dev/ec2.
const codeNoDisk, codesNoKey = "Client.InternalError", "Client.InvalidKMSKey."

// codeAsked is that of an end that somebody asked for.
const codeAsked = "Client.UserInitiatedShutdown"

// kms is what EC2 does not say with these (EC2 User Guide, "Instance terminates
// immediately").
const kms = "; mostly the KMS key of the root disk, which is that of cloud.aws.kmsKeyID, of the image's snapshot, or the account's default: " +
	"enable it, and let Kip's role use it (" + wantKeyRights + ")"

// wantKeyRights says how: both policies decide, that of the key and that of the role.
const wantKeyRights = "the key's policy, and the statements KipGrantsKeysOfDisks and KipUsesKeysOfDisks of docs/aws-permissions.md"

// reasonCode is a code that begins the message of an end. It says more than the code beside it, which may be
// Server.InternalError for a fault of the client. Source: EC2 User Guide, "Instance terminates immediately", whose example
// has the code Server.InternalError and the message "Client.VolumeLimitExceeded: Volume limit exceeded".
var reasonCode = regexp.MustCompile(`^(Client|Server)\.[A-Za-z.]+: `)

// endCode returns the code that says most of an end, and what else the message says. The message repeats the code, or begins with
// others.
func endCode(code, message string) (most, rest string) {
	message = strings.TrimPrefix(message, code+": ")
	most, rest = code, message
	for begin := reasonCode.FindString(message); begin != ""; begin = reasonCode.FindString(message) {
		message = message[len(begin):]
		inner := strings.TrimSuffix(begin, ": ")
		if _, known := faultMeaning(inner); known {
			most, rest = inner, message
		}
	}
	return most, rest
}

func faultMeaning(code string) (m meaning, known bool) {
	if strings.HasPrefix(code, codesNoKey) {
		return faults[codeNoDisk], true
	}
	m, known = faults[code]
	return m, known
}

// faultOf is what EC2 says of an end, of an instance of what is in the scope; nil for nothing.
func faultOf(r *types.StateReason, of cloud.Scope) error {
	if r == nil || aws.ToString(r.Code) == "" || *r.Code == codeAsked {
		return nil
	}
	code, message := endCode(*r.Code, aws.ToString(r.Message))
	said := &failed{code: code, message: message[:min(len(message), maxMessage)]}
	m, known := faultMeaning(code)
	if m.cause == cloud.ErrUnfit {
		said.message += kms
	}
	if !known {
		return said
	}
	return &cloud.Error{Cause: m.cause, Scope: scopeOf(m, of), Err: said}
}

// codesNotThere say that a reservation, or a host, takes nothing.
var codesNotThere = [...]string{"InvalidCapacityReservationId.NotFound", "InvalidHostID.NotFound", "InvalidHostState"}

// Codes that the driver itself decides on.
const (
	codeTerminated      = "IdempotentInstanceTerminated"
	codeReservationFull = "ReservationCapacityExceeded"
	codeHostFull        = "InsufficientCapacityOnHost"
	// The account has never had a spot instance, and Kip may not make the role that EC2 needs for one
	// (EC2 User Guide, "Service-linked role for EC2 Spot Instance requests").
	codeNoSpotRole = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
	codeNoGroup    = "InvalidGroup.NotFound"
	codeNoVolume   = "InvalidVolume.NotFound"
	codeNotHolding = "InvalidAttachment.NotFound" // the instance has not got the volume
	codeInUse      = "VolumeInUse"
	codeState      = "IncorrectState" // of the volume, or of the instance
)

// codesName say that a name of a device is taken, or that another parameter is wrong.
var codesName = []string{"InvalidParameterValue", "InvalidDevice.InUse"}

// codesStale say that what a launch was resolved to is not there any more, but for groups. Source:
// EC2 API reference, "Error codes for the Amazon EC2 API".
var codesStale = []string{"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidSubnetID.NotFound"}

// codesTogether say of a launch of several that the subnet has no /28, or not seventeen
// addresses, for one of them. One by itself takes two addresses.
var codesTogether = []string{"InsufficientCidrBlocks", "InsufficientFreeAddressesInSubnet"}

// failed is what EC2 said, cut to what a person reads.
type failed struct {
	code, message, request string
	err                    error // the SDK's
}

func (e *failed) Error() string {
	text := e.code + ": " + e.message
	if e.request != "" {
		text += " (request " + e.request + ")"
	}
	return text
}

func (e *failed) Unwrap() error { return e.err }

// maxMessage bounds a message of EC2 in bytes.
const maxMessage = 400

// encoded begins the part of a message that only sts:DecodeAuthorizationMessage can read.
const encoded = " Encoded authorization failure message:"

// saidOf is what EC2 said; nil where the call did not reach it, or was not answered.
func saidOf(err error) *failed {
	said, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return nil
	}
	message, _, _ := strings.Cut(said.ErrorMessage(), encoded)
	f := &failed{code: said.ErrorCode(), message: message[:min(len(message), maxMessage)], err: err}
	if r, ok := errors.AsType[*refusalError](err); ok {
		f.message += "; " + r.text
	}
	f.message += rightOf(err, f)
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		f.request = answer.ServiceRequestID()
	}
	return f
}

// rightOf names the right that a refused call needs, and the statement of Kip's policies that has it; "" if the message says both, or
// if the call may need several rights.
func rightOf(err error, said *failed) string {
	op, ok := errors.AsType[*smithy.OperationError](err)
	if said.code != unauthorized || !ok || !ofEC2(err) || strings.Contains(said.message, permissionsPage) {
		return ""
	}
	text, action := "; ", actionNamed.FindString(said.message)
	if action == "" {
		if op.OperationName == "RunInstances" {
			return ""
		}
		action = "ec2:" + op.OperationName
		text += "the call needs " + action + "; "
	}
	for _, p := range permissions {
		if slices.Contains(p.actions, action) {
			return text + "see " + p.sid + " in " + permissionsPage
		}
	}
	return strings.TrimSuffix(text, "; ")
}

// permissionsPage has all that Kip needs.
const permissionsPage = "docs/aws-permissions.md"

// actionNamed finds an action in a message.
var actionNamed = regexp.MustCompile(`\b[a-z0-9-]+:[A-Z][A-Za-z]+`)

// codeOf is the code of EC2's; "" where there is none.
func codeOf(err error) string {
	if f, ok := errors.AsType[*failed](err); ok {
		return f.code
	}
	if f := saidOf(err); f != nil {
		return f.code
	}
	return ""
}

// classify says what an error of the SDK means for what was asked, which is asked; its scope
// is that of an offering, or empty.
func classify(err error, asked cloud.Scope) error {
	said := saidOf(err)
	if said == nil {
		if ctx := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded); ctx {
			return err
		}
		return fmt.Errorf("ask EC2: %w", err)
	}
	m, known := meanings[said.code]
	switch {
	case !ofEC2(err) && m.cause != cloud.ErrThrottled:
		if refusal(err) { // the call of EC2 was not sent
			return cloud.No(cloud.ErrUnauthorised, cloud.Scope{Account: true}, said)
		}
		return said
	case m.cause == cloud.ErrUnauthorised && strings.Contains(said.message, passRole) && asked != (cloud.Scope{}):
		// The right to a pod's own instance profile: others may be launched as the same.
		return cloud.No(cloud.ErrRefused, cloud.Scope{}, said)
	case known && m.cause == cloud.ErrMismatch:
		return &cloud.Error{Cause: m.cause, Err: said}
	case known:
		return cloud.No(m.cause, scopeOf(m, asked), said)
	case asked != (cloud.Scope{}) && !explained(said.code):
		asked.Family = "" // the one offering, and no more
		return &cloud.Error{
			Cause:       cloud.ErrUnexplained,
			Scope:       asked,
			NothingDone: refusal(err),
			Err:         said,
		}
	case refusal(err):
		// EC2 understood, and will say so again: of what was asked, not of what it sells.
		return cloud.No(cloud.ErrRefused, cloud.Scope{}, said)
	}
	return said // InternalError, Unavailable: it may have been done
}

// classifyNamed says what an error means of a call that names instances. A right may be missing to
// one of them, such as one without its tags: that says nothing of the account.
func classifyNamed(err error) error {
	if err == nil {
		return nil
	}
	err = classify(err, cloud.Scope{})
	if e, ok := errors.AsType[*cloud.Error](err); ok && meanings[codeOf(e.Err)].about == launched {
		return cloud.No(e.Cause, cloud.Scope{}, e.Err)
	}
	return err
}

// classifyBeside says what an error means of a service that is asked beside EC2.
func classifyBeside(err error) error {
	said := saidOf(err)
	if said == nil {
		return err
	}
	switch m := meanings[said.code]; {
	case m.cause == cloud.ErrThrottled, m.cause == cloud.ErrUnauthorised:
		return cloud.No(m.cause, cloud.Scope{}, said)
	case refusal(err):
		return cloud.No(cloud.ErrRefused, cloud.Scope{}, said)
	}
	return said
}

// unauthorized is EC2's code for a right that is missing. Others that mean "not authorised" are of the caller's credentials.
const unauthorized = "UnauthorizedOperation"

// passRole is the action that the use of an instance profile asks a right to. EC2 has no code
// of its own for it.
const passRole = "iam:PassRole"

// ofEC2 says that EC2 said it, and not a service that was asked for credentials before.
func ofEC2(err error) bool {
	service := ""
	for op, ok := errors.AsType[*smithy.OperationError](err); ok; op, ok = errors.AsType[*smithy.OperationError](op.Err) {
		service = op.ServiceID
	}
	_, generic := errors.AsType[*smithy.GenericAPIError](err) // EC2 has no other
	return service == ec2.ServiceID && generic
}

// refusal says that fault was found with the request itself.
func refusal(err error) bool {
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && answer.HTTPStatusCode() >= http.StatusBadRequest && answer.HTTPStatusCode() < http.StatusInternalServerError
}

func scopeOf(m meaning, asked cloud.Scope) cloud.Scope {
	switch m.about {
	case account:
		return cloud.Scope{Account: true}
	case launched:
		if asked == (cloud.Scope{}) {
			return cloud.Scope{Account: true}
		}
		asked.Family = "" // IAM knows none
		return asked
	case offering:
		return cloud.Scope{
			InstanceType: asked.InstanceType,
			Zone:         asked.Zone,
			Spot:         asked.Spot,
			Pool:         asked.Pool,
		}
	case capacityType:
		return cloud.Scope{Spot: asked.Spot}
	case disks:
		return cloud.Scope{Disks: true}
	case place:
		return cloud.Scope{Zone: asked.Zone, Subnet: asked.Subnet}
	case family, cpus:
		if asked.Family == "" {
			return cloud.Scope{}
		}
		return cloud.Scope{Family: asked.Family, ByCPU: m.about == cpus, Spot: asked.Spot}
	}
	return cloud.Scope{}
}

// askedFor is the scope of a launch.
func askedFor(s cloud.LaunchSpec) cloud.Scope {
	spot := s.Spot()
	return cloud.Scope{
		InstanceType: s.InstanceType,
		Family:       familyOf(s.InstanceType),
		Zone:         s.Zone,
		Subnet:       s.Subnet,
		Spot:         &spot,
		Pool:         s.Pool(),
	}
}
