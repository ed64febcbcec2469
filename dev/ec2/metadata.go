package ec2

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// metadataOptions are those of a launch, as the EC2 API reference has them
// ("InstanceMetadataOptionsRequest").
type metadataOptions struct {
	disabled bool
	required bool // a token for each request
	hops     int
}

const (
	tokenHeader    = "X-aws-ec2-metadata-token"
	lifetimeHeader = tokenHeader + "-ttl-seconds"
	// longestToken is six hours (EC2 User Guide, "Use IMDSv2").
	longestToken = 21600
	// roleLifetime is that of the credentials of an instance's role, at most.
	roleLifetime = 6 * time.Hour
	// usualTTL is Linux' own.
	usualTTL = 64
	// metadataPatience bounds a connection that says nothing.
	metadataPatience = time.Minute
)

// connection is where a request's own is in its context.
type connection struct{}

// metadata is the metadata service.
type metadata struct {
	*base
	launched      *launched
	instances     *instances
	announcements *announcements

	composes bool // user data, with what others have
}

// Handler returns the metadata service of all instances. Who asks is known by the address
// that is asked from, as on a network of EC2's, which lets nobody take another's.
func (m *metadata) Handler() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(m.answer),
		ReadHeaderTimeout: metadataPatience,
		IdleTimeout:       metadataPatience,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
	}
}

// answer answers one request.
func (m *metadata) answer(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	instance, ok := m.having(from.Addr())
	if err != nil || !ok {
		http.Error(w, "no instance has the address that this is asked from", http.StatusNotFound)
		return
	}
	options := m.launched.launchOf(instance).metadata
	isToken := r.URL.Path == "/latest/api/token"
	// How far the answer with a token travels is what the hop limit bounds.
	ttl := usualTTL
	if isToken {
		ttl = options.hops
	}
	if c, has := r.Context().Value(connection{}).(net.Conn); has {
		if err := ipv4.NewConn(c).SetTTL(ttl); err != nil {
			http.Error(w, "cannot bound the hops of the answer", http.StatusInternalServerError)
			return
		}
	}
	switch given := r.Header.Get(tokenHeader); {
	case options.disabled:
		http.Error(w, "the service is turned off for this instance", http.StatusForbidden)
	case isToken:
		m.token(w, r, instance.ID)
	case r.Method != http.MethodGet:
		http.Error(w, "want GET", http.StatusMethodNotAllowed)
	case given == "" && options.required, given != "" && !m.valid(given, instance.ID):
		http.Error(w, "want a token", http.StatusUnauthorized)
	default:
		m.tell(w, r, instance)
	}
}

// token makes one. A request that came by a proxy is refused, as the service does.
func (m *metadata) token(w http.ResponseWriter, r *http.Request, instance string) {
	seconds, err := strconv.Atoi(r.Header.Get(lifetimeHeader))
	switch {
	case r.Method != http.MethodPut:
		http.Error(w, "want PUT", http.StatusMethodNotAllowed)
	case len(r.Header.Values("X-Forwarded-For")) > 0:
		http.Error(w, "forwarded", http.StatusForbidden)
	case err != nil || seconds < 1 || seconds > longestToken:
		http.Error(w, fmt.Sprintf("%s: want 1 to %d", lifetimeHeader, longestToken), http.StatusBadRequest)
	default:
		w.Header().Set(lifetimeHeader, strconv.Itoa(seconds))
		_, _ = io.WriteString(w, m.sign(instance, m.model.Now().Add(time.Duration(seconds)*time.Second))) // or whoever asked is gone
	}
}

// sign makes a token of an instance that ends at some time.
func (m *metadata) sign(instance string, end time.Time) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(end.UnixMilli()))
	sum := hmac.New(sha256.New, m.key[:])
	sum.Write(append(text, instance...))
	return base64.RawURLEncoding.EncodeToString(sum.Sum(text))
}

func (m *metadata) valid(token, instance string) bool {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(text) != 8+sha256.Size {
		return false
	}
	end := time.UnixMilli(int64(binary.BigEndian.Uint64(text)))
	return hmac.Equal([]byte(token), []byte(m.sign(instance, end))) && m.model.Now().Before(end)
}

// tell answers what is known of an instance. What is not is not found.
func (m *metadata) tell(w http.ResponseWriter, r *http.Request, i sim.Instance) {
	l := m.launched.launchOf(i)
	path := strings.TrimPrefix(r.URL.Path, "/latest/")
	if path == "user-data" && len(l.userData) > 0 {
		data := l.userData
		if m.isComposed() {
			data = compose(data)
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(data)
		return
	}
	x := m.instances.instance(i)
	said := map[string]string{
		"ami-id":                      x.ImageID,
		"ami-launch-index":            strconv.Itoa(x.LaunchIndex),
		"instance-id":                 x.ID,
		"instance-type":               x.Type,
		"instance-life-cycle":         "on-demand",
		"local-hostname":              "ip-" + strings.ReplaceAll(x.PrivateIP, ".", "-"),
		"local-ipv4":                  x.PrivateIP,
		"placement/availability-zone": x.Zone,
		"placement/region":            m.cfg.Region,
		"reservation-id":              reservation(i.Token),
	}
	if x.PublicIP != "" {
		said["public-ipv4"] = x.PublicIP
	}
	if i.Spot {
		said["instance-life-cycle"] = "spot"
	}
	if role := roleOf(l.profile); role != "" {
		said["iam/info"] = fmt.Sprintf(`{"Code": "Success", "InstanceProfileArn": %q}`, x.Profile.ARN)
		said["iam/security-credentials/"] = role
		said["iam/security-credentials/"+role] = fmt.Sprintf(`{"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "ASIA%s",`+
			` "SecretAccessKey": "any", "Token": "any", "Expiration": %q}`, strings.ToUpper(sum(i.ID)[:16]),
			m.model.Now().Add(roleLifetime).UTC().Format(time.RFC3339))
	}
	announced := m.model.Announced(WayMetadata)
	if n := slices.IndexFunc(announced, func(a cloud.Interruption) bool { return a.InstanceID == i.ID }); n >= 0 {
		at := announced[n].At.UTC().Format(time.RFC3339)
		said["spot/instance-action"] = fmt.Sprintf(`{"action": "terminate", "time": %q}`, at)
		said["spot/termination-time"] = at
	}
	if at, is := m.announcements.atRisk(i.ID); is {
		said["events/recommendations/rebalance"] = fmt.Sprintf(`{"noticeTime": %q}`, at.UTC().Format(time.RFC3339))
	}
	name, is := strings.CutPrefix(path, "meta-data/")
	if value, has := said[name]; is && has {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, value)
		return
	}
	http.NotFound(w, r)
}

// Compose says whether instances find user data as others put it together: a part of a multi-part
// document beside a script of theirs, compressed. Source: cloud-init's documentation, "User-data
// formats".
type Compose struct{ On bool }

// Compose has it so for whoever asks from now on.
func (m *metadata) Compose(c Compose) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.composes = c.On
	return nil
}

func (m *metadata) isComposed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.composes
}

// compose puts user data together with a script.
func compose(data []byte) []byte {
	var whole bytes.Buffer
	packed := gzip.NewWriter(&whole)
	parts := multipart.NewWriter(packed)
	_, err := fmt.Fprintf(packed, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", parts.Boundary())
	for _, p := range []struct {
		kind    string
		content []byte
	}{
		{"text/x-shellscript", []byte("#!/bin/sh\nexit 0\n")},
		{"text/cloud-config", data},
	} {
		part, partErr := parts.CreatePart(textproto.MIMEHeader{"Content-Type": {p.kind}})
		if partErr == nil {
			_, partErr = part.Write(p.content)
		}
		err = errors.Join(err, partErr)
	}
	if err := errors.Join(err, parts.Close(), packed.Close()); err != nil {
		panic(err) // a buffer takes all
	}
	return whole.Bytes()
}

// at is the instance that has an address, its own or one of its pod's, and is not over.
func (m *metadata) having(address netip.Addr) (sim.Instance, bool) {
	all, address := m.sim.Truth(), address.Unmap()
	n := slices.IndexFunc(all, func(i sim.Instance) bool {
		return i.ManagementIP == address || i.PodIP.IsValid() && m.prefixOf(i.PodIP).Contains(address)
	})
	if n < 0 {
		return sim.Instance{}, false
	}
	return all[n], true
}
