package ec2

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud/sim"
)

// Sizes and bounds of snapshots that are written block by block. Source: EBS direct APIs
// reference (2019-11-02), StartSnapshot, PutSnapshotBlock, CompleteSnapshot.
const (
	// BlockSize is that of a block, in bytes.
	BlockSize      = 512 << 10
	blocksPerGiB   = 1 << 30 / BlockSize
	maxVolumeGiB   = 65536
	minTimeout     = 10   // minutes
	maxTimeout     = 4320 // minutes
	defaultTimeout = 60   // minutes
)

// snapshotsPath is that of EBS direct APIs, which have another protocol than EC2.
const snapshotsPath = "/snapshots"

// ebsError is a failure of EBS direct APIs.
type ebsError struct {
	status                int
	kind, message, reason string
}

func (e *ebsError) Error() string { return e.kind + ": " + e.message }

func invalid(reason, format string, args ...any) error {
	return &ebsError{http.StatusBadRequest, "ValidationException", fmt.Sprintf(format, args...), reason}
}

// ebsCall is one of them, by method and path.
type ebsCall struct {
	action string
	do     func(*snapshots, *request, *http.Request) (status int, header map[string]string, body any, err error)
}

func ebsCallOf(r *http.Request) (ebsCall, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.Method == http.MethodPost && len(parts) == 1:
		return ebsCall{"StartSnapshot", (*snapshots).startSnapshot}, true
	case r.Method == http.MethodPost && len(parts) == 3 && parts[1] == "completion":
		return ebsCall{"CompleteSnapshot", (*snapshots).completeSnapshot}, true
	case r.Method == http.MethodPut && len(parts) == 4 && parts[2] == "blocks":
		return ebsCall{"PutSnapshotBlock", (*snapshots).putSnapshotBlock}, true
	}
	return ebsCall{}, false
}

// serveEBS answers one call of EBS direct APIs.
func (m *snapshots) serveEBS(w http.ResponseWriter, r *http.Request) {
	status, header, body, err := http.StatusNotFound, map[string]string(nil), any(nil), error(&ebsError{
		http.StatusNotFound, "UnknownOperationException", "", "",
	})
	if call, ok := ebsCallOf(r); ok {
		asked := &request{ctx: r.Context(), action: call.action}
		m.model.Count(call.action)
		asked.caller, err = m.callers.callerOf(r)
		// Blocks have bounds of their own, far above those of EC2's calls.
		if err == nil && call.action != "PutSnapshotBlock" {
			err = m.model.Arrive(r.Context(), sim.KindCatalogue, nil)
		}
		if err == nil {
			status, header, body, err = call.do(m, asked, r)
		}
	}
	if err != nil {
		e, ok := errors.AsType[*ebsError](err)
		if !ok {
			a := apiErrorOf(err)
			switch {
			case a == nil:
				panic(http.ErrAbortHandler)
			case a.code == "UnauthorizedOperation", a.code == "AuthFailure":
				e = &ebsError{http.StatusForbidden, "AccessDeniedException", a.message, "UNAUTHORIZED_ACCOUNT"}
			case a.code == "RequestLimitExceeded":
				e = &ebsError{http.StatusBadRequest, "RequestThrottledException", a.message, "ACCOUNT_THROTTLED"}
			default:
				e = &ebsError{http.StatusInternalServerError, "InternalServerException", a.message, ""}
			}
		}
		status, header = e.status, map[string]string{"X-Amzn-Errortype": e.kind}
		body = map[string]string{"__type": e.kind, "Message": e.message, "Reason": e.reason}
	}
	for k, v := range header {
		w.Header().Set(k, v)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // whoever asked is gone
}

type ebsTag struct{ Key, Value string }

func (m *snapshots) startSnapshot(r *request, req *http.Request) (int, map[string]string, any, error) {
	var in struct {
		VolumeSize               int
		ClientToken, Description string
		Tags                     []ebsTag
		Timeout                  *int
	}
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return 0, nil, nil, err
	}
	read := json.NewDecoder(bytes.NewReader(text))
	read.DisallowUnknownFields() // among them encryption and parents, which the model does not know
	if err := read.Decode(&in); err != nil {
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "%v", err)
	}
	minutes := defaultTimeout
	if in.Timeout != nil {
		minutes = *in.Timeout
	}
	tags := map[string]string{}
	for _, t := range in.Tags {
		if t.Key == "" || len(t.Key) > 127 || len(t.Value) > 255 || strings.HasPrefix(t.Key, "aws:") {
			return 0, nil, nil, invalid("INVALID_TAG", "The tag %q is not valid", t.Key)
		}
		tags[t.Key] = t.Value
	}
	switch {
	case in.VolumeSize < 1 || in.VolumeSize > maxVolumeGiB:
		return 0, nil, nil, invalid("INVALID_VOLUME_SIZE", "The volume size is %d GiB", in.VolumeSize)
	case minutes < minTimeout || minutes > maxTimeout:
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "The timeout is %d minutes", minutes)
	case len(in.ClientToken) > 255 || len(in.Description) > 255:
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "The client token or the description has more than 255 characters")
	case len(tags) > maxTags || len(tags) != len(in.Tags):
		return 0, nil, nil, invalid("INVALID_TAG", "%d tags, of %d keys", len(in.Tags), len(tags))
	}
	if err := m.may(r, "ebs:StartSnapshot", m.snapshotARN("*"), tagged("RequestTag", tags)); err != nil {
		return 0, nil, nil, err
	}
	// The model encrypts where the account's default says so; EBS does if it is set to encrypt by default.
	if !m.mayUseKey(r, "", "", snapshotRights) {
		return 0, nil, nil, &ebsError{http.StatusForbidden, "AccessDeniedException", "The KMS key cannot be used", "DEPENDENCY_ACCESS_DENIED"}
	}
	if len(tags) > 0 { // with no ec2:CreateAction. Source: Service Authorization Reference, Amazon EBS, StartSnapshot
		if err := m.may(r, "ec2:CreateTags", m.snapshotARN("*"), tagged("RequestTag", tags)); err != nil {
			return 0, nil, nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.byID {
		if in.ClientToken == "" || s.token != in.ClientToken {
			continue
		}
		if s.call != string(text) {
			return 0, nil, nil, &ebsError{http.StatusConflict, "ConflictException", "The client token was used for another call", ""}
		}
		return http.StatusCreated, nil, s.started(m.cfg.Account), nil
	}
	m.made++
	s := &Snapshot{
		ID:          fmt.Sprintf("snap-%017x", m.made),
		Description: in.Description,
		State:       "pending",
		GiB:         in.VolumeSize,
		Started:     m.model.Now(),
		Tags:        tags,
		Blocks:      map[int][]byte{},
		token:       in.ClientToken,
		call:        string(text),
		timeout:     time.Duration(minutes) * time.Minute,
		written:     m.model.Now(),
	}
	m.byID[s.ID] = s
	return http.StatusCreated, nil, s.started(m.cfg.Account), nil
}

// started is the answer to StartSnapshot.
func (s *Snapshot) started(account string) any {
	var tags []ebsTag
	for _, k := range sortedKeys(s.Tags) {
		tags = append(tags, ebsTag{k, s.Tags[k]})
	}
	return map[string]any{
		"SnapshotId":  s.ID,
		"OwnerId":     account,
		"Status":      s.State,
		"StartTime":   float64(s.Started.UnixMilli()) / 1000,
		"VolumeSize":  s.GiB,
		"BlockSize":   BlockSize,
		"Description": s.Description,
		"Tags":        tags,
	}
}

// number reads a header, which must be a number.
func number(r *http.Request, name string) (int, error) {
	n, err := strconv.Atoi(r.Header.Get(name))
	if err != nil || n < 0 {
		return 0, invalid("INVALID_PARAMETER_VALUE", "The header %s is %q", name, r.Header.Get(name))
	}
	return n, nil
}

func (m *snapshots) putSnapshotBlock(r *request, req *http.Request) (int, map[string]string, any, error) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	id := parts[1]
	index, err := strconv.Atoi(parts[3])
	if err != nil || index < 0 {
		return 0, nil, nil, invalid("INVALID_BLOCK", "The block index is %q", parts[3])
	}
	length, err := number(req, "X-Amz-Data-Length")
	if err != nil {
		return 0, nil, nil, err
	}
	data, err := io.ReadAll(req.Body)
	if err != nil {
		return 0, nil, nil, err
	}
	sum := sha256.Sum256(data)
	want := base64.StdEncoding.EncodeToString(sum[:])
	progress := 0
	if req.Header.Get("X-Amz-Progress") != "" {
		if progress, err = number(req, "X-Amz-Progress"); err != nil {
			return 0, nil, nil, err
		}
	}
	switch {
	case length != BlockSize || len(data) != BlockSize:
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "A block has %d bytes, not %d or %d", BlockSize, length, len(data))
	case progress > 100:
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "The progress is %d", progress)
	case req.Header.Get("X-Amz-Checksum-Algorithm") != "SHA256":
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "The checksum algorithm must be SHA256")
	case req.Header.Get("X-Amz-Checksum") != want:
		return 0, nil, nil, invalid("INVALID_BLOCK", "The checksum is not that of the block")
	}
	if err := m.may(r, "ebs:PutSnapshotBlock", m.snapshotARN(id), tagged("ResourceTag", m.snapshotTags(id))); err != nil {
		return 0, nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.writable(id)
	if err != nil {
		return 0, nil, nil, err
	}
	if index >= s.GiB*blocksPerGiB {
		return 0, nil, nil, invalid("INVALID_BLOCK", "The volume of %d GiB has no block %d", s.GiB, index)
	}
	s.Blocks[index], s.written = data, m.model.Now()
	return http.StatusCreated, map[string]string{"X-Amz-Checksum": want, "X-Amz-Checksum-Algorithm": "SHA256"}, struct{}{}, nil
}

func (m *snapshots) completeSnapshot(r *request, req *http.Request) (int, map[string]string, any, error) {
	id := strings.Split(strings.Trim(req.URL.Path, "/"), "/")[2]
	count, err := number(req, "X-Amz-Changedblockscount")
	if err != nil {
		return 0, nil, nil, err
	}
	sum, algorithm, method := req.Header.Get("X-Amz-Checksum"), req.Header.Get("X-Amz-Checksum-Algorithm"),
		req.Header.Get("X-Amz-Checksum-Aggregation-Method")
	if all := sum != "" && algorithm == "SHA256" && method == "LINEAR"; !all && sum+algorithm+method != "" {
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "A checksum needs SHA256 and LINEAR")
	}
	if err := m.may(r, "ebs:CompleteSnapshot", m.snapshotARN(id), tagged("ResourceTag", m.snapshotTags(id))); err != nil {
		return 0, nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.writable(id)
	switch {
	case err != nil:
		return 0, nil, nil, err
	case count != len(s.Blocks):
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "%d blocks were written, not %d", len(s.Blocks), count)
	case sum != "" && sum != linear(s.Blocks):
		return 0, nil, nil, invalid("INVALID_PARAMETER_VALUE", "The checksum is not that of the blocks")
	}
	s.sealed = true
	return http.StatusAccepted, nil, map[string]string{"Status": "pending"}, nil
}

// linear is the checksum of the blocks' checksums, in the order of the blocks.
func linear(blocks map[int][]byte) string {
	all := sha256.New()
	indexes := make([]int, 0, len(blocks))
	for i := range blocks {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	for _, i := range indexes {
		one := sha256.Sum256(blocks[i])
		all.Write(one[:])
	}
	return base64.StdEncoding.EncodeToString(all.Sum(nil))
}
