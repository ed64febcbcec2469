package userdata

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agent/firewall"
	"github.com/elotl/kip/internal/backoff"
)

const (
	// serviceLimit bounds one cloud's metadata service as a whole. It is on the host, and may come up after
	// the machine: cloud-init waits as long for EC2's (url_max_wait in DataSourceEc2.py), and Azure's is
	// away for 70 seconds while it is updated ("Errors and debugging" in the page of its service).
	serviceLimit = 240 * time.Second
	// answerLimit bounds one answer. retryPause is how long the first one that failed is waited on, and
	// mostPause the longest: Azure's takes 5 questions a second.
	answerLimit = 5 * time.Second
	retryPause  = 250 * time.Millisecond
	mostPause   = 2 * time.Second
)

// Addresses of the services. All three clouds have the first; Azure tells the other
// one by DHCP as well.
const (
	Metadata = "http://169.254.169.254"
	wire     = "http://168.63.129.16"
)

// azureTag is what each machine of Azure has in its firmware.
const azureTag = "7783-7084-3265-9085-8832-2578-42"

// Sources are all places, in the order in which they win: what whoever started the machine handed
// to it by the firmware, then the cloud that the firmware names, then a disk. A pod may make a disk
// of any label, and where there is a cloud that attaches some, that is asked.
func Sources() []Source { return sources("/sys", "/dev", mountSeed, Metadata, wire) }

// EC2 is that cloud's metadata service, for a machine whose firmware is not its own.
func EC2() Source {
	all := Sources()
	return all[slices.IndexFunc(all, func(s Source) bool { return s.Name == ec2Name })]
}

// OnEC2 returns the URL of EC2's metadata service on a machine of EC2's, as the firmware says;
// "" on any other.
func OnEC2() (string, error) {
	here, err := EC2().Here()
	if err != nil || !here {
		return "", err
	}
	return Metadata, nil
}

// Client asks a metadata service: straight to the host, whatever the environment says of proxies, and
// nobody else, whatever the answer says; also where the firewall of a cell keeps others from it.
func Client(limit time.Duration) *http.Client {
	return &http.Client{
		Timeout: limit,
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 1,
			DialContext:         (&net.Dialer{Control: firewall.Exempt}).DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

const ec2Name = "EC2's metadata service"

func sources(sys, dev string, mount func(string) (string, func() error, error), metadata, wire string) []Source {
	c := &service{client: Client(answerLimit), metadata: metadata, wire: wire}
	azure := *c
	azure.notYet = azureNotYet
	dmi := func(field, value string) func() (bool, error) {
		return func() (bool, error) {
			b, err := os.ReadFile(filepath.Join(sys, "class/dmi/id", field))
			if errors.Is(err, os.ErrNotExist) {
				return false, nil
			}
			return strings.HasPrefix(strings.ToLower(strings.TrimSpace(string(b))), value), err
		}
	}
	ofEC2, xen, named := dmi("sys_vendor", "amazon ec2"), dmi("sys_vendor", "xen"), dmi("product_uuid", "ec2")
	return []Source{
		qemu(sys),
		smbios(sys),
		{
			Name:    ec2Name,
			Network: true,
			Limit:   serviceLimit,
			Clock:   netip.MustParseAddr("169.254.169.123"),
			// A subnet may give each machine a public one: docs/networking.md.
			IPv4Only: true,
			// Those on Xen have no vendor of their own, but a UUID that begins so, as by chance one of 4096
			// of any other cloud has.
			Here: func() (bool, error) {
				if is, err := ofEC2(); is || err != nil {
					return is, err
				}
				if is, err := xen(); !is || err != nil {
					return is, err
				}
				return named()
			},
			Fetch: c.ec2,
		},
		{
			Name:    "Google Cloud's metadata service",
			Network: true,
			Limit:   serviceLimit,
			Clock:   netip.MustParseAddr("169.254.169.254"),
			Here:    dmi("product_name", "google compute engine"),
			Fetch:   c.gce,
		},
		{
			Name:    "Azure's metadata service",
			Network: true,
			Limit:   serviceLimit,
			Here:    dmi("chassis_asset_tag", azureTag),
			Fetch:   azure.azure,
			Ready:   azure.ready,
		},
		noCloud(sys, dev, mount),
	}
}

// service asks the metadata services of clouds.
type service struct {
	client         *http.Client
	metadata, wire string
	// notYet are answers by which the service says that it is not ready, besides those of each.
	notYet []int
}

// azureNotYet are those that Azure gives while its services are not ready, where others mean that there is
// nothing: cloud-init and Ignition ask again (retry_codes in cloudinit/sources/azure/imds.py,
// https://github.com/coreos/ignition/pull/1807).
var azureNotYet = []int{http.StatusNotFound, http.StatusGone}

// errNone is that of what a service does not have.
var errNone = errors.New("the service has none")

// ask sends one request until it is answered or ctx ends: a service may come up after
// the machine. What the service refuses is not asked again.
func (s *service) ask(ctx context.Context, method, url string, headers map[string]string, body []byte, limit int64) ([]byte, error) {
	for tries := 1; ; tries++ {
		b, again, err := s.once(ctx, method, url, headers, body, limit)
		if err == nil || !again {
			return b, err
		}
		if backoff.Random(nil).Wait(ctx, clock.RealClock{}, tries, retryPause, mostPause) != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

func (s *service) once(ctx context.Context, method, url string, headers map[string]string, body []byte, limit int64) (
	b []byte, again bool, err error,
) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, true, err
	}
	defer resp.Body.Close()
	switch {
	case slices.Contains(s.notYet, resp.StatusCode):
		return nil, true, fmt.Errorf("%s: %s", url, resp.Status)
	case resp.StatusCode == http.StatusNotFound:
		return nil, false, fmt.Errorf("%s: %w", url, errNone)
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return nil, true, fmt.Errorf("%s: %s", url, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return nil, false, fmt.Errorf("%s: %s", url, resp.Status)
	}
	b, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, false, fmt.Errorf("%s: more than %d bytes", url, limit)
	}
	return b, true, err
}

// ec2 asks by IMDSv2: first for a token, then with it.
func (s *service) ec2(ctx context.Context) (Data, error) {
	const token = "X-aws-ec2-metadata-token"
	b, err := s.ask(ctx, http.MethodPut, s.metadata+"/latest/api/token", map[string]string{token + "-ttl-seconds": "60"}, nil, maxName)
	if err != nil {
		return Data{}, err
	}
	with := map[string]string{token: string(b)}
	return s.three(func(what string, limit int64) ([]byte, error) {
		return s.ask(ctx, http.MethodGet, s.metadata+"/latest/"+what, with, nil, limit)
	}, "user-data", "meta-data/ami-launch-index", "meta-data/local-hostname")
}

// gce asks for the attribute that cloud-init has its document in.
func (s *service) gce(ctx context.Context) (Data, error) {
	with := map[string]string{"Metadata-Flavor": "Google"}
	return s.three(func(what string, limit int64) ([]byte, error) {
		return s.ask(ctx, http.MethodGet, s.metadata+"/computeMetadata/v1/instance/"+what, with, nil, limit)
	}, "attributes/user-data", "", "hostname")
}

// azure asks for the document, which Azure keeps in base64.
func (s *service) azure(ctx context.Context) (Data, error) {
	with := map[string]string{"Metadata": "true"}
	d, err := s.three(func(what string, limit int64) ([]byte, error) {
		return s.ask(ctx, http.MethodGet, s.metadata+"/metadata/instance/compute/"+what+"?api-version=2021-01-01&format=text", with, nil, limit)
	}, "userData", "", "name")
	if err != nil {
		return Data{}, err
	}
	if d.Document, err = base64.StdEncoding.DecodeString(string(d.Document)); err != nil {
		return Data{}, errors.New("it is not base64")
	}
	return d, nil
}

// three asks for the document, the place and the name; the latter two may be missing,
// and are not asked for where a cloud has no word for them.
func (s *service) three(get func(what string, limit int64) ([]byte, error), document, place, name string) (d Data, err error) {
	// In base64 it is a third longer.
	if d.Document, err = get(document, 2*maxBytes); err != nil {
		return Data{}, err
	}
	for _, w := range []struct {
		what string
		to   *string
	}{{place, &d.Place}, {name, &d.Hostname}} {
		if w.what == "" {
			continue
		}
		b, err := get(w.what, maxName)
		if err != nil && !errors.Is(err, errNone) {
			return Data{}, err
		}
		*w.to = strings.TrimSpace(string(b))
	}
	return d, nil
}

// ready tells Azure that the machine works, for which it has no agent of Azure's: which
// state is wanted, then that it is reached.
func (s *service) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serviceLimit)
	defer cancel()
	const version = "x-ms-version"
	with := map[string]string{version: "2012-11-30"}
	b, err := s.ask(ctx, http.MethodGet, s.wire+"/machine/?comp=goalstate", with, nil, maxBytes)
	if err != nil {
		return fmt.Errorf("ask Azure for the wanted state: %w", err)
	}
	var goal struct {
		Incarnation string `xml:"Incarnation"`
		Container   string `xml:"Container>ContainerId"`
		Instance    string `xml:"Container>RoleInstanceList>RoleInstance>InstanceId"`
	}
	if err := xml.Unmarshal(b, &goal); err != nil {
		return fmt.Errorf("read what state Azure wants: %w", err)
	}
	type role struct {
		ID    string `xml:"InstanceId"`
		State string `xml:"Health>State"`
	}
	report, err := xml.Marshal(struct {
		XMLName     xml.Name `xml:"Health"`
		Incarnation string   `xml:"GoalStateIncarnation"`
		Container   string   `xml:"Container>ContainerId"`
		Roles       []role   `xml:"Container>RoleInstanceList>Role"`
	}{Incarnation: goal.Incarnation, Container: goal.Container, Roles: []role{{goal.Instance, "Ready"}}})
	if err != nil {
		return err
	}
	with["Content-Type"] = "text/xml; charset=utf-8"
	if _, err := s.ask(ctx, http.MethodPost, s.wire+"/machine/?comp=health", with, report, maxBytes); err != nil {
		return fmt.Errorf("tell Azure that the machine works: %w", err)
	}
	return nil
}
