package servingcert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/events"
)

const eks = "beta.eks.amazonaws.com/app-serving"

// memory keeps what a process leaves for the next.
type memory struct {
	mu   sync.Mutex
	data []byte
	fail error // of Save
}

func (m *memory) Load(context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data, nil
}

func (m *memory) Save(_ context.Context, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail == nil {
		m.data = data
	}
	return m.fail
}

// cluster is an API server with a signer, and the processes of one Kip, of which one runs.
type cluster struct {
	*testing.T
	client *fake.Clientset
	kept   *memory
	config Config
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	own    *tls.Certificate

	mu     sync.Mutex
	log    bytes.Buffer
	events []string

	certificate *Certificate
	stop        func()
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t, client: fake.NewClientset(), kept: &memory{}, stop: func() {}}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "cluster"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(100 * 365 * 24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, c.key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	c.own = &tls.Certificate{Certificate: [][]byte{der}, Leaf: c.ca}
	c.config = Config{
		Node:       "kip-0",
		Addresses:  []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		SignerName: certificatesv1.KubeletServingSignerName,
		AsNode:     true,
		Requester:  c.client,
		Keep:       c.kept,
		Own:        func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.own, nil },
		Event: func(e events.Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.events = append(c.events, e.Type+" "+e.Reason+": "+e.Message)
		},
		Clock: clock.RealClock{},
		Log:   slog.New(slog.NewTextHandler(c, nil)),
	}
	return c
}

// Write is told of lines of the log.
func (c *cluster) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(p)
}

// said are the log and the Events until now.
func (c *cluster) said() (log string, events []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String(), slices.Clone(c.events)
}

// heard are the Events until now.
func (c *cluster) heard() []string {
	_, events := c.said()
	return events
}

// start begins a process.
func (c *cluster) start() {
	c.Helper()
	var err error
	if c.certificate, err = New(c.Context(), c.config); err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.certificate.Run(ctx); err != nil {
			c.Error(err)
		}
	})
	c.stop = func() { cancel(); running.Wait() }
}

// restart ends the process, and begins another.
func (c *cluster) restart() {
	c.Helper()
	c.stop()
	c.start()
}

// pass lets time pass, in the bubble.
func (c *cluster) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// requests are all that were made and are there.
func (c *cluster) requests() []certificatesv1.CertificateSigningRequest {
	c.Helper()
	list, err := c.client.CertificatesV1().CertificateSigningRequests().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return list.Items
}

// only is the one request that there is to be without a certificate.
func (c *cluster) only() *certificatesv1.CertificateSigningRequest {
	c.Helper()
	all := slices.DeleteFunc(c.requests(), func(r certificatesv1.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })
	if len(all) != 1 {
		c.Fatalf("%d requests are not answered, want one", len(all))
	}
	return &all[0]
}

func (c *cluster) update(r *certificatesv1.CertificateSigningRequest) {
	c.Helper()
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(c.Context(), r, metav1.UpdateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// conclude adds a condition, as approvers and signers do.
func conclude(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) {
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
}

// issue signs a request, for so long from now on.
func (c *cluster) issue(r *certificatesv1.CertificateSigningRequest, life time.Duration, change func(*x509.Certificate)) []byte {
	c.Helper()
	block, _ := pem.Decode(r.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		c.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      asked.Subject,
		DNSNames:     asked.DNSNames,
		IPAddresses:  asked.IPAddresses,
		NotBefore:    time.Now(),
		NotAfter:     time.Now().Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(leaf)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, c.ca, asked.PublicKey, c.key)
	if err != nil {
		c.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// approveAndSign is what a person and a signer do.
func (c *cluster) approveAndSign(life time.Duration, change func(*x509.Certificate)) {
	c.Helper()
	r := c.only()
	conclude(r, certificatesv1.CertificateApproved, "KubectlApprove", "")
	r.Status.Certificate = c.issue(r, life, change)
	c.update(r)
}

// serves reports whether an API server that verifies kubelets takes the port for the node's.
func (c *cluster) serves() bool {
	c.Helper()
	pair, err := c.certificate.GetCertificate(nil)
	if err != nil {
		c.Fatal(err)
	}
	if pair == c.own {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.ca)
	for _, host := range []string{"10.0.0.1", "fd00::1", "kip-0"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			c.Errorf("%s: %v", host, err)
			return false
		}
	}
	return true
}

// told reports whether an Event has all of these words.
func (c *cluster) told(words ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.events, func(e string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
	})
}

const year = 365 * 24 * time.Hour

// in runs a test on a virtual clock.
func in(t *testing.T, test func(*cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer func() { c.stop() }()
		test(c)
	})
}

func TestThePersonWhoApprovesIsToldHow(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		c.pass(time.Minute)
		r := c.only()
		if !c.told("Warning", events.ServingCertificatePending, "kubectl certificate approve "+r.Name) {
			t.Errorf("the Events are %q", c.heard())
		}
		// What tells it from a request of somebody else.
		if !c.told("kubectl get csr "+r.Name, "requester is system:node:kip-0", r.Spec.SignerName, subject(t, r).String(),
			"kip-0, 10.0.0.1, fd00::1 and no others") {
			t.Errorf("the person is not told what to compare: %q", c.heard())
		}
		if c.serves() {
			t.Error("a certificate serves that nobody has signed")
		}
		before := len(c.heard())
		c.pass(12 * time.Hour)
		if n := len(c.heard()) - before; n < 10 || n > 14 {
			t.Errorf("in twelve hours that is told %d times more: Events last an hour", n)
		}
		// Others may write such an Event, but not the log, also that of a process that has not made the request.
		c.stop()
		c.mu.Lock()
		c.log.Reset()
		c.mu.Unlock()
		c.start()
		c.pass(3 * time.Hour)
		log, _ := c.said()
		if n := strings.Count(log, `approve_with="kubectl certificate approve `+r.Name+`"`); n < 2 || n > 4 {
			t.Errorf("in three hours the next process logs %d times how to approve it: %s", n, log)
		}
		c.approveAndSign(year, nil)
		c.pass(time.Minute)
		if !c.serves() || !c.told("Normal", events.ServingCertificateSigned) {
			t.Errorf("what was signed does not serve; the Events are %q", c.heard())
		}
		c.pass(24 * time.Hour)
		if n := len(c.requests()); n != 1 {
			t.Errorf("%d requests were made, want one", n)
		}
	})
}

// subject is the one that a request asks for.
func subject(t *testing.T, r *certificatesv1.CertificateSigningRequest) pkix.Name {
	t.Helper()
	block, _ := pem.Decode(r.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return asked.Subject
}

func TestEachSignerIsAskedForTheSubjectOfAKubelet(t *testing.T) {
	for _, signer := range []string{certificatesv1.KubeletServingSignerName, eks, "example.com/serving"} {
		in(t, func(c *cluster) {
			c.config.SignerName, c.config.AsNode = signer, false
			c.start()
			c.pass(time.Minute)
			if is := subject(t, c.only()); is.CommonName != "system:node:kip-0" || !slices.Equal(is.Organization, []string{"system:nodes"}) {
				t.Errorf("%s is asked for %s", signer, is)
			}
		})
	}
}

func TestARequestThatTheClusterHasRemovedIsMadeAgainByTheSameName(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		c.pass(24 * time.Hour)
		name := c.only().Name
		if err := c.client.CertificatesV1().CertificateSigningRequests().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.pass(time.Minute)
		if now := c.only().Name; now != name {
			t.Errorf("the request is called %s now: what a person was told to type was for %s", now, name)
		}
	})
}

func TestARestartMakesNoSecondRequest(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		for range 5 {
			c.pass(time.Minute)
			c.only()
			c.restart()
		}
		c.approveAndSign(year, nil)
		c.pass(time.Minute)
		if !c.serves() {
			t.Error("what was signed for an earlier process does not serve")
		}
		c.restart()
		if !c.serves() {
			t.Error("after a restart the certificate does not serve at once")
		}
		c.pass(time.Hour)
		if n := len(c.requests()); n != 1 {
			t.Errorf("%d requests were made, want one", n)
		}
	})
}

func TestWhatIsKeptForAnotherPurposeDoesNotServe(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"address": func(c *Config) { c.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.2")} },
		"signer":  func(c *Config) { c.SignerName = eks },
	} {
		in(t, func(c *cluster) {
			c.start()
			c.pass(time.Minute)
			c.approveAndSign(year, nil)
			c.pass(time.Minute)
			before := c.config
			c.stop()
			change(&c.config)
			c.start()
			if pair, _ := c.certificate.GetCertificate(nil); pair != c.own {
				t.Errorf("with another %s the certificate of before serves", name)
			}
			c.pass(time.Minute)
			c.only()
			// Two replicas lead by turns.
			c.stop()
			c.config = before
			c.start()
			if !c.serves() {
				t.Errorf("back with the first %s its certificate does not serve", name)
			}
		})
	}
}

func TestACertificateIsRenewedInTime(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		c.pass(time.Minute)
		c.approveAndSign(24*time.Hour, nil)
		c.pass(15 * time.Hour)
		if n := len(c.requests()); n != 1 {
			t.Fatalf("after 15 of 24 hours there are %d requests", n)
		}
		c.pass(7 * time.Hour)
		r := c.only()
		if !c.serves() {
			t.Error("while it is renewed the certificate does not serve")
		}
		if !c.told("kubectl certificate approve "+r.Name, "until ") {
			t.Errorf("the Events are %q", c.heard())
		}
		c.approveAndSign(year, nil)
		c.pass(time.Minute)
		pair, _ := c.certificate.GetCertificate(nil)
		if !c.serves() || pair.Leaf.NotAfter.Before(time.Now().Add(300*24*time.Hour)) {
			t.Error("the renewed certificate does not serve")
		}
	})
}

func TestACertificateThatHasEndedDoesNotServe(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		c.pass(time.Minute)
		c.approveAndSign(time.Hour, nil)
		c.pass(2 * time.Hour)
		if c.serves() {
			t.Error("it serves")
		}
		c.restart()
		if c.serves() {
			t.Error("after a restart it serves")
		}
		c.pass(time.Minute)
		c.approveAndSign(time.Hour, nil)
		c.pass(time.Minute)
		if !c.serves() {
			t.Error("the next one does not serve")
		}
	})
}

// Signers backdate what they sign, and end it where their own certificate ends.
func TestASignerOfShortLivesIsNotAskedAllTheTime(t *testing.T) {
	in(t, func(c *cluster) {
		signed := 0
		c.client.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if signed++; signed > 100 {
				return true, nil, errors.New("that is enough")
			}
			r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
			conclude(r, certificatesv1.CertificateApproved, "", "")
			r.Status.Certificate = c.issue(r, 10*time.Minute, func(leaf *x509.Certificate) { leaf.NotBefore = time.Now().Add(-24 * time.Hour) })
			return false, nil, nil
		})
		c.start()
		c.pass(time.Hour)
		if signed > 20 {
			t.Errorf("it has signed %d times in an hour, for ten minutes each", signed)
		}
		if !c.serves() {
			t.Error("what it has signed does not serve")
		}
	})
}

// deny has an approver deny each request at once.
func (c *cluster) deny() {
	made := 0
	c.client.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if made++; made > 100 {
			return true, nil, errors.New("that is enough")
		}
		r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		conclude(r, certificatesv1.CertificateDenied, "AutoDenied", "") // GKE's says no more
		return false, nil, nil
	})
}

func TestADeniedRequestIsToldAndFollowedSlowly(t *testing.T) {
	in(t, func(c *cluster) {
		c.deny()
		c.start()
		c.pass(time.Minute)
		if !c.told("Warning", events.ServingCertificateRefused, "denied (AutoDenied)", "servingCertificate.requester to kip") {
			t.Errorf("the Events are %q", c.heard())
		}
		c.pass(24 * time.Hour)
		made := len(c.requests())
		if made < 10 || made > 40 {
			t.Errorf("in a day %d requests were made", made)
		}
		// Kip that is started again and again asks no sooner.
		for range 20 {
			c.restart()
			c.pass(5 * time.Second)
		}
		if n := len(c.requests()) - made; n > 1 {
			t.Errorf("twenty restarts in %s made %d requests", 100*time.Second, n)
		}
	})
}

func TestWithAnotherRequesterKipAsksAtOnce(t *testing.T) {
	in(t, func(c *cluster) {
		c.deny()
		c.start()
		c.pass(3 * time.Hour)
		c.stop()
		c.client.ReactionChain = c.client.ReactionChain[1:]
		made := len(c.requests())
		c.config.AsNode = false
		c.start()
		c.pass(time.Second)
		if n := len(c.requests()) - made; n != 1 {
			t.Errorf("%d requests were made, want one", n)
		}
	})
}

func TestWhatASignerCannotSignIsTold(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		c.pass(time.Minute)
		r := c.only()
		conclude(r, certificatesv1.CertificateApproved, "", "")
		conclude(r, certificatesv1.CertificateFailed, "SignerValidationFailure", "subject organization is not system:nodes")
		c.update(r)
		c.pass(time.Minute)
		if !c.told(events.ServingCertificateRefused, "cannot sign it (SignerValidationFailure: subject organization is not system:nodes)") {
			t.Errorf("the Events are %q", c.heard())
		}
	})
}

func TestASignerThatDoesNotSignIsTold(t *testing.T) {
	for signer, cure := range map[string]string{
		certificatesv1.KubeletServingSignerName: "signerName to " + eks,
		"example.com/none":                      "Is there such a signer",
	} {
		in(t, func(c *cluster) {
			c.config.SignerName = signer
			c.start()
			c.pass(time.Second)
			r := c.only()
			conclude(r, certificatesv1.CertificateApproved, "", "")
			c.update(r)
			c.pass(3 * time.Minute)
			if !c.told("Warning", events.ServingCertificatePending, r.Name+" is approved", cure) {
				t.Errorf("the Events are %q", c.heard())
			}
		})
	}
}

func TestACertificateThatDoesNotFitIsNotServed(t *testing.T) {
	for what, change := range map[string]func(*x509.Certificate){
		"without the address": func(leaf *x509.Certificate) { leaf.IPAddresses = leaf.IPAddresses[:1] },
		"of a client":         func(leaf *x509.Certificate) { leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
		"that has ended":      func(leaf *x509.Certificate) { leaf.NotAfter = leaf.NotBefore },
	} {
		in(t, func(c *cluster) {
			c.start()
			c.pass(time.Minute)
			c.approveAndSign(year, change)
			c.pass(time.Minute)
			if pair, _ := c.certificate.GetCertificate(nil); pair != c.own {
				t.Errorf("a certificate %s serves", what)
			}
			if !c.told("Warning", events.ServingCertificateRefused, "does not fit (x509: ") {
				t.Errorf("%s: the Events are %q", what, c.heard())
			}
		})
	}
}

func TestKipApprovesItsOwnRequestIfItIsToldTo(t *testing.T) {
	in(t, func(c *cluster) {
		c.config.Approver = c.client
		c.start()
		c.pass(time.Second)
		r := c.only()
		if len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Type != certificatesv1.CertificateApproved {
			t.Fatalf("the conditions are %+v", r.Status.Conditions)
		}
		r.Status.Certificate = c.issue(r, year, nil)
		c.update(r)
		c.pass(time.Minute)
		if !c.serves() {
			t.Error("what was signed does not serve")
		}
	})
}

// Somebody else's object has the name that Kip chose.
func TestKipApprovesNoRequestThatIsNotItsOwn(t *testing.T) {
	for what, change := range map[string]func(*certificatesv1.CertificateSigningRequestSpec){
		"key":    func(spec *certificatesv1.CertificateSigningRequestSpec) { spec.Request = []byte("another") },
		"signer": func(spec *certificatesv1.CertificateSigningRequestSpec) { spec.SignerName = eks },
		"usage": func(spec *certificatesv1.CertificateSigningRequestSpec) {
			spec.Usages = append(spec.Usages, certificatesv1.UsageClientAuth)
		},
	} {
		in(t, func(c *cluster) {
			c.config.Approver = c.client
			c.client.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
				change(&a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest).Spec)
				return false, nil, nil
			})
			c.start()
			c.pass(time.Minute)
			for _, r := range c.requests() {
				if len(r.Status.Conditions) > 0 {
					t.Errorf("a request with another %s was approved", what)
				}
			}
			if !c.told("Warning", events.ServingCertificateRefused, "another ") {
				t.Errorf("%s: the Events are %q", what, c.heard())
			}
		})
	}
}

func forbidden(words string) error {
	return apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), "", errors.New(words))
}

func TestMissingRightsAreNamed(t *testing.T) {
	in(t, func(c *cluster) {
		c.config.Approver = c.client
		c.client.PrependReactor("update", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetSubresource() == "approval", nil, forbidden("user not permitted to approve")
		})
		c.start()
		c.pass(time.Minute)
		if !c.told("Warning", "deploy/manifests/rights/csr-approve.yaml", c.config.SignerName, "kubectl certificate approve "+c.only().Name,
			"requester is system:node:kip-0") {
			t.Errorf("the Events are %q", c.heard())
		}
	})
	in(t, func(c *cluster) {
		c.config.AsNode = false
		var denied atomic.Bool
		denied.Store(true)
		c.client.PrependReactor("get", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			return denied.Load(), nil, forbidden("cannot get")
		})
		c.start()
		c.pass(time.Hour)
		log, _ := c.said()
		if n := strings.Count(log, "deploy/manifests/rights/csr.yaml"); n != 1 {
			t.Errorf("in an hour the file with the right is named %d times: %s", n, log)
		}
		denied.Store(false)
		c.pass(2 * time.Minute)
		c.only()
	})
}

func TestAKeyThatIsNotKeptIsNotRequested(t *testing.T) {
	in(t, func(c *cluster) {
		c.kept.fail = errors.New("no space")
		c.start()
		c.pass(10 * time.Minute)
		if n := len(c.requests()); n > 0 {
			t.Errorf("%d requests were made whose key nobody would have after a restart", n)
		}
		c.kept.mu.Lock()
		c.kept.fail = nil
		c.kept.mu.Unlock()
		c.pass(2 * time.Minute)
		c.only()
	})
}

func TestWhatHasEndedIsNotKept(t *testing.T) {
	in(t, func(c *cluster) {
		c.start()
		c.pass(time.Minute)
		c.approveAndSign(time.Hour, nil)
		c.pass(time.Minute)
		c.stop()
		c.config.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
		kept := func(when string, want int) {
			t.Helper()
			c.pass(time.Minute)
			data, _ := c.kept.Load(t.Context())
			var is kept
			if err := json.Unmarshal(data, &is); err != nil {
				t.Fatal(err)
			}
			signed := 0
			for _, e := range is.Entries {
				if len(e.Key) > 0 {
					signed++
				}
			}
			if signed != want {
				t.Errorf("%s: %d keys that were signed are kept, want %d", when, signed, want)
			}
		}
		c.start()
		kept("while the certificate of the first address is valid", 1)
		c.approveAndSign(time.Hour, nil)
		kept("with one of the second address", 2)
		c.stop()
		c.pass(2 * time.Hour)
		c.start()
		kept("when both have ended", 0)
	})
}

// The address of a pod is another pod's when Kip has a new one.
func TestKeysOfFormerAddressesEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		signed     bool
		still, end time.Duration
	}{
		"of a request that nobody has approved": {false, 23 * time.Hour, 37 * time.Hour},
		"of a certificate":                      {true, 29 * 24 * time.Hour, 31 * 24 * time.Hour},
	} {
		in(t, func(c *cluster) {
			c.start()
			c.pass(time.Minute)
			first := c.only().Name
			if tc.signed {
				c.approveAndSign(year, nil)
				c.pass(time.Minute)
			}
			c.stop()
			before := c.config
			c.config.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
			has := func() bool {
				data, _ := c.kept.Load(t.Context())
				var is kept
				if err := json.Unmarshal(data, &is); err != nil {
					t.Fatal(err)
				}
				return slices.ContainsFunc(is.Entries, func(e *entry) bool {
					return e.Purpose == before.purpose() && (len(e.Key) > 0 || e.Request != nil && e.Request.Name == first)
				})
			}
			c.start()
			c.pass(time.Minute)
			if tc.signed { // else this test takes long, since it looks every ten seconds
				c.approveAndSign(year, nil)
			}
			c.pass(tc.still)
			if !has() {
				t.Errorf("the key %s is gone after %s: another replica may need it", name, tc.still)
			}
			c.pass(tc.end - tc.still)
			if has() {
				t.Errorf("the key %s is kept after %s", name, tc.end)
			}
		})
	}
}

func TestFewPurposesAreKept(t *testing.T) {
	in(t, func(c *cluster) {
		for i := range 20 { // a pod has another address after each start
			c.config.Addresses = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i+1))}
			c.restart()
			c.pass(time.Second)
		}
		data, _ := c.kept.Load(t.Context())
		if n := bytes.Count(data, []byte(`"purpose"`)); n != mostKept {
			t.Errorf("%d purposes are kept", n)
		}
	})
}
