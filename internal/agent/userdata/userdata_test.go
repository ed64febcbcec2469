package userdata

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

const document = "#cloud-config\nkip: {}\n"

// machine is the files that a kernel shows of one.
type machine struct {
	t        *testing.T
	sys, dev string
}

func newMachine(t *testing.T, files map[string]string) machine {
	t.Helper()
	m := machine{t, t.TempDir(), t.TempDir()}
	for p, text := range files {
		m.put(filepath.Join(m.sys, p), text)
	}
	return m
}

func (m machine) put(p, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// seed is a NoCloud disk that is a folder.
func (m machine) seed(string) (string, func() error, error) {
	return filepath.Join(m.dev, "mounted"), func() error { return nil }, nil
}

// get chooses a source and asks it; the service is at url.
func (m machine) get(url string) (Source, Data, error) {
	s, err := look(sources(m.sys, m.dev, m.seed, url, url))
	if err != nil {
		return s, Data{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := s.Get(ctx)
	return s, d, err
}

// isoOf is a disk with an ISO 9660 file system of that label.
func isoOf(label string) string {
	b := make([]byte, 17*2048)
	copy(b[16*2048:], "\x01CD001")
	copy(b[16*2048+40:], label+strings.Repeat(" ", 32-len(label)))
	return string(b)
}

const fwCfg = "firmware/qemu_fw_cfg/by_name/opt/com.elotl.kip/user-data/raw"

// Who answers once for the service would else be asked for all, and be told the token.
func TestAnAnswerLeadsToNobodyElse(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("another was asked")
		_, _ = io.WriteString(w, "by another")
	}))
	defer other.Close()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer service.Close()
	m := newMachine(t, map[string]string{"class/dmi/id/sys_vendor": "Amazon EC2\n"})
	if _, d, err := m.get(service.URL); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("%q, %v", d.Document, err)
	}
}

func TestOneSourceWinsByTheStatedOrder(t *testing.T) {
	oem := "\x0b\x05\x00\x01\x02first string\x00kip.user-data=" + base64.StdEncoding.EncodeToString([]byte("by smbios")) + "\x00\x00"
	all := map[string]string{
		fwCfg: "by fw_cfg", "firmware/dmi/entries/11-0/raw": oem, "class/block/sr0/size": "1", "class/dmi/id/sys_vendor": "Amazon EC2\n",
	}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "by service") }))
	defer service.Close()
	for _, step := range []struct{ gone, want string }{
		{"", "by fw_cfg"}, {fwCfg, "by smbios"}, {"firmware/dmi/entries/11-0/raw", "by service"}, {"class/dmi/id/sys_vendor", "by disk"},
	} {
		delete(all, step.gone)
		m := newMachine(t, all)
		if all["class/block/sr0/size"] != "" {
			m.put(filepath.Join(m.dev, "sr0"), isoOf("cidata"))
		}
		m.put(filepath.Join(m.dev, "mounted/user-data"), "by disk")
		s, d, err := m.get(service.URL)
		if err != nil || string(d.Document) != step.want {
			t.Errorf("without %s: %q of %s (%v), want %q", step.gone, d.Document, s.Name, err, step.want)
		}
	}
	_, _, err := newMachine(t, nil).get(service.URL)
	const want = "no user data: this machine has none of QEMU's"
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Azure's") {
		t.Errorf("a machine with none: %v", err)
	}
}

// Nobody knows what is on it: where no other has user data, that is why. It may be a pod's, so another is taken.
func TestADriveThatCannotBeReadIsToldWhereThereIsNoUserData(t *testing.T) {
	m := newMachine(t, map[string]string{"class/block/sda/size": "1", "class/block/sr0/size": "0", "class/block/gone/size": "1"})
	bad := filepath.Join(m.dev, "sda")
	if err := os.Mkdir(bad, 0o755); err != nil { // a folder can be opened, and not be read
		t.Fatal(err)
	}
	m.put(filepath.Join(m.dev, "sr0"), "") // no medium
	_, _, err := m.get("http://127.0.0.1:1")
	want := "a NoCloud disk; a drive that may have user data cannot be read: read " + bad + ": is a directory"
	if err == nil || !errors.Is(err, errNowhere) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("with a drive that cannot be read: %v, want %q at its end", err, want)
	}
	m.put(filepath.Join(m.sys, "class/block/sr1/size"), "1")
	m.put(filepath.Join(m.dev, "sr1"), isoOf("cidata"))
	m.put(filepath.Join(m.dev, "mounted/user-data"), "by disk")
	if s, d, err := m.get("http://127.0.0.1:1"); err != nil || string(d.Document) != "by disk" {
		t.Errorf("with another drive: %q of %s, %v", d.Document, s.Name, err)
	}
}

// A document that is there and bad is no reason to look elsewhere.
func TestASourceThatFailsIsNotPassedOver(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"empty":      {map[string]string{fwCfg: ""}, "not launched by Kip"},
		"too long":   {map[string]string{fwCfg: strings.Repeat("x", 70000)}, "more than 65536 bytes"},
		"not base64": {map[string]string{"firmware/dmi/entries/11-0/raw": "\x0b\x02kip.user-data=%%secret\x00\x00"}, "not base64"},
	} {
		tc.files["class/dmi/id/sys_vendor"] = "Amazon EC2\n"
		_, d, err := newMachine(t, tc.files).get("http://127.0.0.1:1")
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") || len(d.Document) != 0 {
			t.Errorf("%s: %q (%v), want %q", name, d.Document, err, tc.want)
		}
	}
}

func TestEC2IsAskedByIMDSv2(t *testing.T) {
	failed := false
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "" {
			_, _ = io.WriteString(w, "secret-token")
			return
		}
		if r.Header.Get("X-aws-ec2-metadata-token") != "secret-token" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if !failed { // it has just begun
			failed = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		switch r.URL.Path {
		case "/latest/user-data":
			_, _ = io.WriteString(w, document)
		case "/latest/meta-data/ami-launch-index":
			_, _ = io.WriteString(w, "7\n")
		case "/latest/meta-data/local-hostname":
			_, _ = io.WriteString(w, "ip-10-0-0-1")
		}
	}))
	defer service.Close()
	for _, files := range []map[string]string{
		{"class/dmi/id/sys_vendor": "Amazon EC2\n"}, {"class/dmi/id/sys_vendor": "Xen\n", "class/dmi/id/product_uuid": "EC2A1B2C-0000\n"},
	} {
		s, d, err := newMachine(t, files).get(service.URL)
		if err != nil || string(d.Document) != document || d.Place != "7" || d.Hostname != "ip-10-0-0-1" || !s.Network || !s.Clock.IsValid() {
			t.Errorf("%v: %+v of %+v (%v)", files, d, s, err)
		}
	}
}

func TestGoogleCloudAndAzureAreAskedAsTheyWish(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Metadata-Flavor") == "Google" && r.URL.Path == "/computeMetadata/v1/instance/attributes/user-data":
			_, _ = io.WriteString(w, document)
		case r.Header.Get("Metadata") == "true" && r.URL.Path == "/metadata/instance/compute/userData" &&
			r.URL.Query().Get("format") == "text" && r.URL.Query().Get("api-version") != "":
			_, _ = io.WriteString(w, base64.StdEncoding.EncodeToString([]byte(document)))
		case r.Header.Get("Metadata") == "true" && r.URL.Path == "/metadata/instance/compute/name":
			_, _ = io.WriteString(w, "cell-1")
		default:
			http.NotFound(w, r)
		}
	}))
	defer service.Close()
	for field, tc := range map[string][3]string{
		"class/dmi/id/product_name":      {"Google Compute Engine\n", "Google Cloud's metadata service", ""},
		"class/dmi/id/chassis_asset_tag": {azureTag + "\n", "Azure's metadata service", "cell-1"},
	} {
		// One of 4096 machines of any cloud has such a UUID.
		s, d, err := newMachine(t, map[string]string{field: tc[0], "class/dmi/id/product_uuid": "ec2a1b2c-0000\n"}).get(service.URL)
		if err != nil || s.Name != tc[1] || string(d.Document) != document || d.Place != "" || d.Hostname != tc[2] {
			t.Errorf("%s: %+v of %s (%v)", field, d, s.Name, err)
		}
	}
}

func TestAzureIsToldThatTheMachineWorks(t *testing.T) {
	var said []byte
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("x-ms-version") == "":
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.RawQuery == "comp=goalstate":
			_, _ = io.WriteString(w, `<?xml version="1.0"?><GoalState><Incarnation>3</Incarnation><Container><ContainerId>c-1</ContainerId>`+
				`<RoleInstanceList><RoleInstance><InstanceId>i-1</InstanceId></RoleInstance></RoleInstanceList></Container></GoalState>`)
		case r.URL.RawQuery == "comp=health" && r.Method == http.MethodPost:
			said, _ = io.ReadAll(r.Body)
		}
	}))
	defer service.Close()
	m := newMachine(t, map[string]string{"class/dmi/id/chassis_asset_tag": azureTag})
	s, err := look(sources(m.sys, m.dev, m.seed, service.URL, service.URL))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := "<Health><GoalStateIncarnation>3</GoalStateIncarnation><Container><ContainerId>c-1</ContainerId><RoleInstanceList>" +
		"<Role><InstanceId>i-1</InstanceId><Health><State>Ready</State></Health></Role></RoleInstanceList></Container></Health>"
	if !bytes.Equal(said, []byte(want)) {
		t.Errorf("Azure was told\n%s, want\n%s", said, want)
	}
}

// Azure says while its services begin what others say of what they do not have.
func TestAzureIsAskedUntilItsServicesAreReady(t *testing.T) {
	const documentAt, wanted, told = "/metadata/instance/compute/userData", "/machine/goalstate", "/machine/health"
	notYet := map[string][]int{
		documentAt: {http.StatusNotFound, http.StatusGone, http.StatusTooManyRequests}, wanted: {http.StatusGone}, told: {http.StatusNotFound},
	}
	reports := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.Path + r.URL.Query().Get("comp")
		if codes := notYet[at]; len(codes) > 0 {
			notYet[at] = codes[1:]
			w.WriteHeader(codes[0])
			return
		}
		switch at {
		case documentAt:
			_, _ = io.WriteString(w, base64.StdEncoding.EncodeToString([]byte(document)))
		case "/metadata/instance/compute/name":
			_, _ = io.WriteString(w, "cell-1")
		case wanted:
			_, _ = io.WriteString(w, "<GoalState><Incarnation>1</Incarnation></GoalState>")
		case told:
			reports++
		}
	}))
	defer service.Close()
	s, d, err := newMachine(t, map[string]string{"class/dmi/id/chassis_asset_tag": azureTag}).get(service.URL)
	if err != nil || string(d.Document) != document || d.Hostname != "cell-1" {
		t.Errorf("the user data is %+v (%v)", d, err)
	}
	if err := s.Ready(t.Context()); err != nil || reports != 1 {
		t.Errorf("Azure is told %d times that the machine works: %v", reports, err)
	}
}

func TestAServiceThatRefusesIsNotAskedAgain(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusNotFound: "the service has none", http.StatusUnauthorized: "401", http.StatusForbidden: "403",
	} {
		asked := 0
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.WriteHeader(status)
		}))
		_, _, err := newMachine(t, map[string]string{"class/dmi/id/product_name": "Google Compute Engine"}).get(service.URL)
		service.Close()
		if err == nil || !strings.Contains(err.Error(), want) || asked != 1 {
			t.Errorf("%d: asked %d times (%v)", status, asked, err)
		}
	}
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 3*maxBytes))
	}))
	defer endless.Close()
	_, _, err := newMachine(t, map[string]string{"class/dmi/id/product_name": "Google Compute Engine"}).get(endless.URL)
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a service without end: %v", err)
	}
}

func TestASourceHasATimeLimit(t *testing.T) {
	s := Source{Name: "x", Limit: time.Millisecond, Fetch: func(ctx context.Context) (Data, error) {
		<-ctx.Done()
		return Data{}, ctx.Err()
	}}
	if _, err := s.Get(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a source that never answers: %v", err)
	}
	hangs := make(chan struct{}) // as a read of a bad device does
	defer close(hangs)
	s.Fetch = func(context.Context) (Data, error) { <-hangs; return Data{}, nil }
	if _, err := s.Get(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a source that hears nothing: %v", err)
	}
	for _, s := range sources("/sys", "/dev", mountSeed, Metadata, wire) {
		// A machine that has not joined after 10 minutes is ended.
		if s.Limit <= 0 || s.Limit > 5*time.Minute || s.Network && s.Limit < 70*time.Second {
			t.Errorf("%s has the limit %v", s.Name, s.Limit)
		}
	}
}

func TestTheLabelOfADisk(t *testing.T) {
	fat := func(kind string, at int) string {
		b := make([]byte, 512)
		copy(b[at:], "CIDATA     "+kind)
		return string(b)
	}
	for name, tc := range map[string][2]string{
		"FAT32": {fat("FAT32   ", 71), "CIDATA"}, "FAT16": {fat("FAT16   ", 43), "CIDATA"},
		"blank": {string(make([]byte, 1<<16)), ""}, "small": {string(make([]byte, 1024)), ""},
	} {
		p := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(p, []byte(tc[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := labelOf(p); err != nil || got != tc[1] {
			t.Errorf("%s: %q (%v), want %q", name, got, err, tc[1])
		}
	}
}

// FuzzOEMStrings: whatever firmware says, what is read are the strings behind the entry's
// header, in their order, and no more.
func FuzzOEMStrings(f *testing.F) {
	f.Add([]byte("\x0b\x05\x00\x01\x02first\x00second\x00\x00"))
	f.Add([]byte("\x0b\x05\x00\x01\x02first\x00second"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all := oemStrings(b)
		if len(b) < 2 || len(b) <= int(b[1]) {
			if len(all) > 0 {
				t.Errorf("of %q, which ends in its header, %q", b, all)
			}
			return
		}
		rest := b[b[1]:]
		for _, s := range all {
			if s == "" || strings.Contains(s, "\x00") || !bytes.HasPrefix(rest, []byte(s)) {
				t.Fatalf("of %q the strings %q: %q is not what comes next", b, all, s)
			}
			rest = bytes.TrimPrefix(rest[len(s):], []byte{0})
		}
		if len(rest) > 0 && rest[0] != 0 {
			t.Errorf("of %q only the strings %q, and %q is left", b, all, rest)
		}
	})
}

// The firewall of a cell knows the agent by its mark.
func TestAClientOfMetadataServicesHasTheMarkOfTheAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a mark needs CAP_NET_ADMIN")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := Client(time.Second).Transport.(*http.Transport).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	mark := 0
	if e := raw.Control(func(fd uintptr) { mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if mark != 0x6b690001 { // as docs/networking.md says
		t.Errorf("its mark is %#x", mark)
	}
}

func TestADriveThatComesLateIsFound(t *testing.T) {
	fails := errors.New("it fails")
	for _, tc := range []struct {
		name  string
		after time.Duration // when the source is there
		err   error         // of the look at it
		want  error
		took  time.Duration
	}{
		{name: "at once"},
		{name: "late", after: 3 * time.Second, took: 3 * time.Second},
		{name: "too late", after: time.Minute, want: errNowhere, took: lookLimit},
		{name: "late, and it fails", after: time.Second, err: fails, want: fails, took: time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s, err := Choose(t.Context(), []Source{{Name: "a disk", Here: func() (bool, error) {
					if time.Since(began) < tc.after {
						return false, nil
					}
					return true, tc.err
				}}})
				if !errors.Is(err, tc.want) || (err == nil) != (s.Name == "a disk") || time.Since(began) != tc.took {
					t.Errorf("after %v: %q, %v, want %v after %v", time.Since(began), s.Name, err, tc.want, tc.took)
				}
			})
		})
	}
}

func TestADriveThatHangsHoldsUpNoLookForUserData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, hangs := time.Now(), make(chan struct{})
		defer close(hangs)
		_, err := Choose(t.Context(), []Source{{Name: "a disk", Here: func() (bool, error) { <-hangs; return false, nil }}})
		if err == nil || !strings.Contains(err.Error(), "a drive that may have user data does not answer") {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != lookLimit+lastWord {
			t.Errorf("it took %v, want %v", took, lookLimit+lastWord)
		}
	})
}

func TestAMachineThatEndsWaitsForNoUserData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := Choose(ctx, nil)
		if took := time.Since(began); !errors.Is(err, errNowhere) && !errors.Is(err, context.Canceled) || took > time.Second+lastWord {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
