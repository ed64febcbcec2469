//go:build e2e

package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// What a connection to an agent is for, by ALPN: see the documentation of package
// tunnel.
var allALPN = []string{alpnCellAPI, "kip-join/1", "h2", "http/1.1"}

const alpnCellAPI = "kip-cell-api/1"

// impostor is who listens in the place of an agent.
type impostor struct {
	*space
	machine namespace.Machine
	answers *counts // what it did
	canary  string  // the address of who is not to be asked
}

// dialled counts what Kip dials.
type dialled struct {
	net.Listener
	answers *counts
}

func (d dialled) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err == nil {
		d.answers.add(wasDialled)
	}
	return conn, err
}

const wasDialled = "was dialled"

// speak serves Kip through the tunnel as the cell, with a handler that lies.
func (i *impostor) speak(ctx context.Context, l net.Listener, lie http.HandlerFunc) {
	cell := newCell(i.T, i.machine, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.answers.add("was asked " + kind(r.URL.Path))
		lie(w, r)
	}))
	if err := cell.Serve(ctx, l); !errors.Is(err, context.Canceled) {
		i.Errorf("serve in the agent's place: %v", err)
	}
}

// kind is what a path of the agent is about.
func kind(path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, agentapi.PathKubelet), "/v1")
	kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return kind
}

// accept has each connection of Kip dealt with until ctx ends, and closes it then.
func (i *impostor) accept(ctx context.Context, l net.Listener, deal func(context.Context, net.Conn)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				i.Errorf("accept in the agent's place: %v", err)
			}
			return
		}
		wg.Go(func() {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			deal(ctx, conn)
		})
	}
}

// shake accepts TLS with a certificate.
func (i *impostor) shake(ctx context.Context, l net.Listener, cert tls.Certificate, deal func(context.Context, *tls.Conn)) {
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		NextProtos:   allALPN,
		ClientAuth:   tls.RequireAnyClientCert,
	}
	i.accept(ctx, l, func(ctx context.Context, conn net.Conn) {
		tc := tls.Server(conn, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			// By an alert the other end tells what it does not like.
			if alert := new(net.OpError); errors.As(err, &alert) && alert.Op == "remote error" {
				i.answers.add(wasRefused + ": " + alert.Err.Error())
			} else {
				i.answers.add("broke off")
			}
			return
		}
		i.answers.add("shook hands for " + tc.ConnectionState().NegotiatedProtocol)
		deal(ctx, tc)
	})
}

// forever writes what gives a body no end.
func forever(w io.Writer, begin, more string) {
	_, err := io.WriteString(w, begin)
	for chunk := strings.Repeat(more, 1+(32<<10)/len(more)); err == nil; {
		_, err = io.WriteString(w, chunk)
	}
}

// agents are those that do not what an agent does.
var agents = []struct {
	name  string
	serve func(i *impostor, ctx context.Context, l net.Listener)
	// wants is what the agent must have seen for the attack to have been one.
	wants string
}{
	{"an agent that says nothing", func(i *impostor, ctx context.Context, l net.Listener) {
		i.accept(ctx, l, func(ctx context.Context, conn net.Conn) {
			if _, _ = io.Copy(io.Discard, conn); ctx.Err() == nil {
				i.answers.add("was given up")
			}
		})
	}, "was given up"},

	{"an agent that accepts Kip and then stalls", func(i *impostor, ctx context.Context, l net.Listener) {
		i.speak(ctx, l, func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-ctx.Done():
			}
		})
	}, "was asked"},

	{"an agent that lies", func(i *impostor, ctx context.Context, l net.Listener) {
		i.speak(ctx, l, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/stats/summary"):
				fmt.Fprintf(w, `{"node":{"nodeName":%[1]q,"memory":{"time":%[2]q,"workingSetBytes":%[4]d}},"pods":[{"podRef":{"name":"bystander","namespace":%[3]q,"uid":"lie"},
					"startTime":%[2]q,"memory":{"time":%[2]q,"workingSetBytes":%[4]d}}]}`, harness.Node, time.Now().Format(time.RFC3339), i.NS, uint64(lie))
			case strings.Contains(r.URL.Path, "/metrics/"):
				fmt.Fprintf(w, "pod_memory_working_set_bytes{namespace=%q,pod=\"bystander\"} %d\n", i.NS, uint64(lie))
			default:
				fmt.Fprintf(w, `{"digest":"lie","cellID":"lie","components":[{"name":"kubelet","pid":-1}],"\u001b[2J":1e1500000000}`)
			}
		})
	}, "was asked stats"},

	{"an agent whose answers do not end", func(i *impostor, ctx context.Context, l net.Listener) {
		i.speak(ctx, l, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/stats/summary"):
				forever(w, `{"node":{},"pods":[`, `{"podRef":{"name":"a"}},`)
			case strings.Contains(r.URL.Path, "/metrics/"):
				forever(w, "", "a_metric{a=\"b\"} 1\n")
			default:
				forever(w, `{"a":"`, "x")
			}
		})
	}, "was asked stats"},

	{"an agent that redirects", func(i *impostor, ctx context.Context, l net.Listener) {
		i.speak(ctx, l, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+i.canary+r.URL.Path, http.StatusTemporaryRedirect)
		})
	}, "was asked containerLogs"},

	{"an agent that says that another Kip leads", func(i *impostor, ctx context.Context, l net.Listener) {
		i.shake(ctx, l, certificate(i.T, i.machine), func(_ context.Context, tc *tls.Conn) {
			if _, err := fmt.Fprintf(tc, "KIPTERM:%016x", math.MaxInt64); err == nil { // as package tunnel refuses an older Kip
				i.answers.add("refused a Kip")
			}
		})
	}, "refused a Kip"},

	{"an agent that floods Kip with frames", func(i *impostor, ctx context.Context, l net.Listener) {
		i.shake(ctx, l, certificate(i.T, i.machine), func(_ context.Context, tc *tls.Conn) {
			_, err := io.WriteString(tc, http2.ClientPreface)
			f := http2.NewFramer(tc, nil)
			go func() { _, _ = io.Copy(io.Discard, tc) }() // ends with the connection
			for err == nil {
				err = errors.Join(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}), f.WritePing(false, [8]byte{}))
			}
			i.answers.add("was cut off")
		})
	}, "was cut off"},

	{"an agent that reads no answer", func(i *impostor, ctx context.Context, l net.Listener) {
		i.shake(ctx, l, certificate(i.T, i.machine), func(ctx context.Context, tc *tls.Conn) {
			if tc.ConnectionState().NegotiatedProtocol != alpnCellAPI {
				return
			}
			_, err := io.WriteString(tc, http2.ClientPreface)
			f := http2.NewFramer(tc, tc)
			f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			var block strings.Builder
			encoder := hpack.NewEncoder(&block)
			// No byte of a body may come.
			err = errors.Join(err, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
			for stream := uint32(1); err == nil && stream < 2000; stream += 2 {
				block.Reset()
				for _, field := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "kip"},
					{":path", "/api/v1/namespaces/" + i.NS + "/configmaps/" + large}} {
					err = errors.Join(err, encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
				}
				err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{
					StreamID: stream, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true,
				}))
			}
			if err == nil {
				i.answers.add("sent a thousand requests")
			}
			for held := 0; ; {
				frame, err := f.ReadFrame()
				if err != nil {
					return
				}
				h, ok := frame.(*http2.MetaHeadersFrame)
				if !ok {
					continue
				}
				i.answers.add("has the beginning of an answer: " + h.PseudoValue("status"))
				if h.PseudoValue("status") != "200" {
					continue
				}
				if held++; held == 3*openAtOnce {
					i.Errorf("Kip holds %d answers that nobody reads", held)
				}
			}
		})
	}, "has the beginning of an answer"},

	{"an agent with a certificate of its own CA", func(i *impostor, ctx context.Context, l net.Listener) {
		i.shake(ctx, l, foreign(i.T, i.machine.Cell.Name), i.believed)
	}, wasRefused},

	{"an agent with the certificate of another cell", func(i *impostor, ctx context.Context, l net.Listener) {
		i.shake(ctx, l, certificate(i.T, i.space.machine("bystander")), i.believed)
	}, wasRefused},
}

// openAtOnce is how many requests of a cell Kip answers at the same time. Answers that
// are not read end after 30 s, so that in a slow run there may be some more.
const openAtOnce = 32

// lie is how many bytes a lying agent says that are used.
const lie = 1 << 60

// believed notes that Kip takes the certificate for the cell's: it has ended the
// handshake, with a certificate of its own.
func (i *impostor) believed(context.Context, *tls.Conn) { i.answers.add(wasBelieved) }

const wasBelieved, wasRefused = "was believed", "was refused"

// foreign is a certificate for the cell of a CA that is not Kip's.
func foreign(t *testing.T, cell string) tls.Certificate {
	t.Helper()
	a, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.SignCell(csr, cell)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, a.Certificate().Raw}, PrivateKey: key}
}

func TestAnAgentThatIsNotItzoHarmsNobody(t *testing.T) {
	tier.All(t)
	s, b := begin(t, "")
	createLarge(t, s)
	s.Apply(namesLarge("a"))
	before := s.WaitReady("a")
	var asked sync.Map
	canary, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer canary.Close()
	go func() { // until the canary is closed
		for {
			conn, err := canary.Accept()
			if err != nil {
				return
			}
			asked.Store(conn.RemoteAddr().String(), true)
			_ = conn.Close()
		}
	}()
	for _, agent := range agents {
		t.Run(agent.name, func(t *testing.T) {
			s := &space{s.For(t)}
			l, end := usurp(t, s, "a")
			var said *counts
			b.while(t, agent.name, func(ctx context.Context, answers *counts) {
				said = answers
				i := &impostor{space: s, machine: s.machine("a"), answers: answers, canary: canary.Addr().String()}
				serving, stop := context.WithTimeout(t.Context(), namespace.Patience)
				var wg sync.WaitGroup
				wg.Go(func() { agent.serve(i, serving, dialled{l, answers}) })
				// Until what makes it an attack has been seen, whatever the bystander does.
				for seen := false; ctx.Err() == nil || !seen && serving.Err() == nil; seen = answers.has(agent.wants) {
					i.provoke(serving, b)
				}
				if !answers.has(agent.wants) {
					t.Errorf("the attack was none: want that the agent %s, and it %s", agent.wants, answers)
				}
				stop()
				wg.Wait()
			})
			end()
			if said.has(wasBelieved) {
				t.Errorf("Kip took the agent for the cell's: %s", said)
			}
			s.Eventually("Kip comes back to the cell", s.ExecTrue("a"))
		})
	}
	asked.Range(func(from, _ any) bool {
		t.Errorf("%v followed a redirection of an agent", from)
		return true
	})
	after, err := s.Pod(t.Context(), "a")
	if err != nil || after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod of the agents was %v and is %v (%v)", before, after, err)
	}
}

// has says whether an answer that begins so was counted.
func (c *counts) has(begin string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for answer := range c.of {
		if strings.HasPrefix(answer, begin) {
			return true
		}
	}
	return false
}

// provoke has Kip ask the agent: for the numbers of all pods, and for the log and an exec
// of the agent's own pod. None of that may be as the agent would have it.
func (i *impostor) provoke(ctx context.Context, b *bystander) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		raw, err := world.Admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + harness.Node + "/proxy/stats/summary").DoRaw(ctx)
		var summary stats.Summary
		if err == nil {
			err = json.Unmarshal(raw, &summary)
		}
		if err != nil {
			if ctx.Err() == nil {
				i.Errorf("the numbers of all pods: %v", err)
			}
			return
		}
		seen := false
		for _, p := range summary.Pods {
			if p.PodRef.Namespace != i.NS || p.PodRef.Name != b.pod.Name {
				continue
			}
			seen = true
			if p.PodRef.UID != string(b.pod.UID) || p.Memory != nil && p.Memory.WorkingSetBytes != nil && *p.Memory.WorkingSetBytes >= lie {
				i.Errorf("the bystander's numbers are those of a lie: %+v", p)
			}
		}
		if !seen {
			i.Errorf("the bystander is not in the numbers of all pods: %.300s", raw)
		}
	})
	// These wait for as long as an agent stalls, and the lease of its cell runs out meanwhile.
	within, end := context.WithTimeout(ctx, 5*time.Second)
	defer end()
	wg.Go(func() {
		// By the node's proxy, which hands on what else a kubelet would not answer.
		log, err := world.Admin.CoreV1().RESTClient().Get().
			AbsPath("/api/v1/nodes/" + harness.Node + "/proxy/containerLogs/" + i.NS + "/a/main").Stream(within)
		if err != nil {
			return // what an agent refuses is refused
		}
		defer log.Close()
		n, _ := io.CopyN(io.Discard, log, 8<<20) // an agent may end it when it likes
		if n >= 8<<20 {
			i.answers.add("the log has " + strconv.Itoa(int(n)) + " bytes")
		}
	})
	taken := i.answers.has(wasDialled) // else Kip still has the connection of before
	wg.Go(func() {
		if err := b.exec(within, "a"); err == nil && taken {
			i.Errorf("exec in the pod of an agent that is none has worked")
		}
	})
	wg.Wait()
}
