package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is a client of an agent that answers so.
func agent(t *testing.T, answer http.HandlerFunc) Client {
	t.Helper()
	server := httptest.NewServer(answer)
	conn := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}
	t.Cleanup(func() {
		conn.CloseIdleConnections()
		server.Close()
	})
	return Client{Conn: conn}
}

// call is one method of a client.
type call struct {
	name string
	does func(context.Context, Client) (any, error)
	asks string // method, URL and body
	told string // the agent's answer
	want string // what the method returns, as JSON
}

func text(answer io.ReadCloser, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	b, err := io.ReadAll(answer)
	return string(b), err
}

func none(err error) (any, error) { return nil, err }

var calls = []call{
	{
		name: "PutConfig",
		does: func(ctx context.Context, c Client) (any, error) {
			return c.PutConfig(ctx, Config{NodeName: "kip-0", NodeIP: netip.MustParseAddr("10.0.0.1"), PodIP: netip.MustParseAddr("10.0.0.2")})
		},
		asks: `PUT /v1/config {"nodeName":"kip-0","nodeIP":"10.0.0.1","podIP":"10.0.0.2","clusterDomain":"","reservedMemoryBytes":0}`,
		told: `{"boot":{"kernel":1,"userSpace":2,"network":3,"joined":4},"of a newer agent":1}`,
		want: `{"boot":{"kernel":1,"userSpace":2,"network":3,"joined":4}}`,
	},
	{
		name: "PutConfig with huge pages",
		does: func(ctx context.Context, c Client) (any, error) {
			return c.PutConfig(ctx, Config{
				NodeName: "kip-0", NodeIP: netip.MustParseAddr("10.0.0.1"), PodIP: netip.MustParseAddr("10.0.0.2"),
				HugePages: []HugePages{{PageBytes: 2097152, Pages: 32}}, SwapBytes: 1 << 30,
			})
		},
		asks: `PUT /v1/config {"nodeName":"kip-0","nodeIP":"10.0.0.1","podIP":"10.0.0.2","clusterDomain":"","reservedMemoryBytes":0,` +
			`"hugePages":[{"pageBytes":2097152,"pages":32}],"swapBytes":1073741824}`,
		told: `{"hugePages":[{"pageBytes":2097152,"pages":31}],"noHugePages":"a\u001bb","swapBytes":1073741824,"noSwap":"c\u001bd"}`,
		want: `{"hugePages":[{"pageBytes":2097152,"pages":31}],"noHugePages":"a?b","swapBytes":1073741824,"noSwap":"c?d"}`,
	},
	{
		name: "PutCloudInit",
		does: func(ctx context.Context, c Client) (any, error) { return c.PutCloudInit(ctx, []byte("#!")) },
		asks: `PUT /v1/cloud-init {"document":"IyE="}`,
		told: `{"failures":["a\u001bb"],"of a newer agent":1}`,
		want: `["a?b"]`,
	},
	{
		name: "CloudInitDone",
		does: func(ctx context.Context, c Client) (any, error) { return c.CloudInitDone(ctx, "ab12") },
		asks: "GET /v1/cloud-init?digest=ab12 ",
		told: `{"failures":["a"]}`,
		want: `["a"]`,
	},
	{
		name: "PutDisks",
		does: func(ctx context.Context, c Client) (any, error) { return none(c.PutDisks(ctx, []string{"a", "b"})) },
		asks: `PUT /v1/disks {"disks":["a","b"]}`,
		want: "null",
	},
	{
		name: "PutPlugins",
		does: func(ctx context.Context, c Client) (any, error) {
			return none(c.PutPlugins(ctx, []Plugin{{Driver: "x.csi", Pod: json.RawMessage(`{"kind":"Pod"}`)}}))
		},
		asks: `PUT /v1/plugins {"plugins":[{"driver":"x.csi","pod":{"kind":"Pod"}}]}`,
		want: "null",
	},
	{
		name: "PutPlugins of none",
		does: func(ctx context.Context, c Client) (any, error) { return none(c.PutPlugins(ctx, nil)) },
		asks: `PUT /v1/plugins {"plugins":[]}`,
		want: "null",
	},
	{
		name: "PutFirewall",
		// As it is: the agent's digest is of these bytes.
		does: func(ctx context.Context, c Client) (any, error) {
			return none(c.PutFirewall(ctx, []byte(`{ "pod":"<p>" }`)))
		},
		asks: `PUT /v1/firewall { "pod":"<p>" }`,
		want: "null",
	},
	{
		name: "Firewall",
		does: func(ctx context.Context, c Client) (any, error) { return c.Firewall(ctx) },
		asks: "GET /v1/firewall ",
		told: `{"digest":"d"}`,
		want: `{"digest":"d"}`,
	},
	{
		name: "Status",
		does: func(ctx context.Context, c Client) (any, error) { return c.Status(ctx) },
		asks: "GET /v1/status ",
		told: `{"cellID":"c","version":"v","components":[{"name":"kubelet","pid":7,"restarts":0}],"of a newer agent":1}`,
		want: `{"cellID":"c","version":"v","components":[{"name":"kubelet","pid":7,"restarts":0}]}`,
	},
	{
		name: "Logs",
		does: func(ctx context.Context, c Client) (any, error) { return text(c.Logs(ctx, "ns", "p", "main", false)) },
		asks: "GET /kubelet/containerLogs/ns/p/main?timestamps=true ",
		told: "a line",
		want: `"a line"`,
	},
	{
		name: "Logs of the run before",
		does: func(ctx context.Context, c Client) (any, error) { return text(c.Logs(ctx, "ns", "p", "main", true)) },
		asks: "GET /kubelet/containerLogs/ns/p/main?previous=true&timestamps=true ",
		want: `""`,
	},
	{
		name: "Kubelet",
		does: func(ctx context.Context, c Client) (any, error) {
			return text(c.Kubelet(ctx, "/stats/summary?only=cpu"))
		},
		asks: "GET /kubelet/stats/summary?only=cpu ",
		told: strings.Repeat("x", maxAnswer+1),
		want: `"` + strings.Repeat("x", maxAnswer+1) + `"`,
	},
}

func TestEachMethodAsksForWhatItIsNamedAfter(t *testing.T) {
	for _, call := range calls {
		t.Run(call.name, func(t *testing.T) {
			asked := make(chan string, 1)
			c := agent(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if len(body) > 0 && r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("Content-Type %q", r.Header.Get("Content-Type"))
				}
				asked <- fmt.Sprintf("%s %s %s", r.Method, r.URL, body)
				_, _ = io.WriteString(w, call.told)
			})
			got, err := call.does(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if asked := <-asked; asked != call.asks {
				t.Errorf("asked %s, want %s", asked, call.asks)
			}
			if b, err := json.Marshal(got); err != nil || string(b) != call.want {
				t.Errorf("returned %.200s (%v), want %.200s", b, err, call.want)
			}
		})
	}
}

func TestARefusalSaysOfWhatAndWhy(t *testing.T) {
	for _, code := range []int{http.StatusFound, http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable, 599} {
		for _, call := range calls {
			t.Run(fmt.Sprint(code, call.name), func(t *testing.T) {
				c := agent(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Location", "/elsewhere")
					http.Error(w, "a \xff\x1b reason "+strings.Repeat("é", maxText), code)
				})
				_, err := call.does(t.Context(), c)
				var refused *StatusError
				if !errors.As(err, &refused) {
					t.Fatalf("%v, want a StatusError", err)
				}
				path, _, _ := strings.Cut(strings.Fields(call.asks)[1], "?")
				if refused.Code != code || refused.Method != call.asks[:3] || refused.Path != path {
					t.Errorf("%d to %s %s, want %d to %.3s %s", refused.Code, refused.Method, refused.Path, code, call.asks, path)
				}
				if !strings.HasPrefix(refused.Text, "a ?? reason é") || len(refused.Text) > maxText || !utf8.ValidString(refused.Text) {
					t.Errorf("text %q", refused.Text)
				}
				if !strings.Contains(err.Error(), fmt.Sprintf("%s with %d", path, code)) || !strings.Contains(err.Error(), "reason") {
					t.Errorf("error %q", err)
				}
				if errors.Is(err, ErrNotYet) != (code == http.StatusServiceUnavailable) {
					t.Errorf("ErrNotYet: %v", errors.Is(err, ErrNotYet))
				}
			})
		}
	}
}

func TestWhatIsNoAnswerIsAnError(t *testing.T) {
	for name, told := range map[string]string{"nothing": "", "half of it": `{"digest":`, "two": `{} {}`, "a list": "[]", "a page": "<html>"} {
		for _, call := range calls {
			if call.name != "Status" && call.name != "Firewall" {
				continue
			}
			t.Run(call.name+" "+name, func(t *testing.T) {
				_, err := call.does(t.Context(), agent(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, told) }))
				var bad *AnswerError
				if !errors.As(err, &bad) || "GET "+bad.Path+" " != call.asks || errors.Is(err, ErrTooLarge) {
					t.Errorf("%v, want an AnswerError of %s", err, call.asks)
				}
			})
		}
	}
}

// Nor does what an agent says of its machine's start keep the cell from its configuration.
func TestAStartThatCannotBeIsNotSaid(t *testing.T) {
	for _, told := range []string{
		"", `{"boot":`, "[]", `{}`, `{"boot":{}}`,
		`{"boot":{"kernel":1,"userSpace":2,"network":3}}`,                    // it has joined, or it would not be asked
		`{"boot":{"kernel":-1,"joined":4}}`,                                  // before the kernel
		`{"boot":{"kernel":2,"userSpace":1,"network":3,"joined":4}}`,         // out of order
		`{"boot":{"kernel":1,"joined":86400000000001}}`,                      // longer than a day
		`{"boot":{"kernel":1,"joined":9223372036854775808}}`,                 // more than there is
		`{"boot":{"joined":1},"x":"` + strings.Repeat("x", maxAnswer) + `"}`, // too long
	} {
		got, err := agent(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, told) }).PutConfig(t.Context(), Config{})
		if !reflect.DeepEqual(got, Configured{}) || err != nil {
			t.Errorf("%.80s: %+v, %v", told, got, err)
		}
	}
}

func TestAnAnswerThatCannotBeReadSaysNothingOfHugePagesAndSwap(t *testing.T) {
	config := Config{HugePages: []HugePages{{PageBytes: 2 << 20, Pages: 4}}}
	for name, answer := range map[string]http.HandlerFunc{
		"it is no JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"hugePages":`) },
		"it is too large": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"x":"`+strings.Repeat("x", maxAnswer)+`"}`)
		},
		"it breaks off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{}`)
		},
	} {
		for _, config := range []Config{config, {SwapBytes: 1 << 20}} {
			if got, err := agent(t, answer).PutConfig(t.Context(), config); !errors.As(err, new(*AnswerError)) {
				t.Errorf("%s: %+v, %v, want an AnswerError", name, got, err)
			}
		}
	}
	for _, older := range []string{"", `{"agent":{"version":"v1"}}`} {
		c := agent(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, older) })
		if got, err := c.PutConfig(t.Context(), config); err != nil || got.HugePages != nil || got.Agent.Version == "" && older != "" {
			t.Errorf("an older agent says %q: %+v, %v", older, got, err)
		}
	}
}

func TestAnAgentIsShownOnlyAsWhatAnAgentCanBe(t *testing.T) {
	digest := strings.Repeat("0af", 21) + "9"
	for told, want := range map[string]RunningAgent{
		`{"version":"v1.4.1","sha256":"` + digest + `"}`:              {"v1.4.1", digest},
		`{"version":"v1\u001b[2J"}`:                                   {Version: "v1?[2J"},
		`{"version":"v1","sha256":"` + strings.ToUpper(digest) + `"}`: {},
		`{"version":"v1","sha256":"` + digest + `0"}`:                 {},
		`{"version":"` + strings.Repeat("v", maxVersion+1) + `"}`:     {},
	} {
		body := `{"agent":` + told + `,"boot":{"kernel":-1}}`
		got, err := agent(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }).PutConfig(t.Context(), Config{})
		if !reflect.DeepEqual(got, Configured{Agent: want}) || err != nil {
			t.Errorf("%.80s: %+v, %v", told, got, err)
		}
	}
}

func TestAnAnswerWithoutAnEndEnds(t *testing.T) {
	for _, code := range []int{http.StatusOK, http.StatusBadRequest} {
		for _, call := range calls {
			t.Run(fmt.Sprint(code, call.name), func(t *testing.T) {
				hungUp := make(chan struct{})
				c := agent(t, func(w http.ResponseWriter, r *http.Request) {
					defer close(hungUp)
					_, _ = io.Copy(io.Discard, r.Body)
					w.WriteHeader(code)
					for chunk := []byte(strings.Repeat(" ", 4<<10)); ; {
						if _, err := w.Write(chunk); err != nil {
							return
						}
					}
				})
				does := call.does
				if code == http.StatusOK && strings.HasPrefix(call.asks, "GET "+PathKubelet) {
					does = func(ctx context.Context, c Client) (any, error) { // the bound is the caller's
						answer, err := c.Kubelet(ctx, "/")
						if err == nil {
							err = answer.Close()
						}
						return nil, err
					}
				}
				_, err := does(t.Context(), c)
				switch {
				case code != http.StatusOK:
					if refused := new(StatusError); !errors.As(err, &refused) || len(refused.Text) > maxText {
						t.Errorf("%v, want a StatusError", err)
					}
				case strings.HasPrefix(call.asks, "GET ") && !strings.HasPrefix(call.asks, "GET "+PathKubelet),
					strings.HasPrefix(call.asks, "PUT "+PathCloudInit), strings.Contains(call.asks, "hugePages"):
					if bad := new(AnswerError); !errors.As(err, &bad) || !errors.Is(err, ErrTooLarge) {
						t.Errorf("%v, want ErrTooLarge", err)
					}
				case err != nil:
					t.Error(err)
				}
				<-hungUp
			})
		}
	}
}

func TestAnAgentThatSaysNothingIsLeftWhenTheContextEnds(t *testing.T) {
	for _, call := range calls {
		t.Run(call.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			c := agent(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				cancel()
				<-r.Context().Done()
			})
			if _, err := call.does(ctx, c); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want the context's error", err)
			}
		})
	}
}

func TestAKubeletURLStaysInTheKubelet(t *testing.T) {
	for want, segments := range map[string][]string{
		PathKubelet + "/exec/ns/p/main": {"exec", "ns", "p", "main"},
		PathKubelet + "/v1/config":      {"..", "v1", "config"},
		PathKubelet + "/exec/v1/config": {"exec", "ns", "..", "v1", "config"},
	} {
		if u := KubeletURL(segments...); u.Path != want {
			t.Errorf("%q leads to %s, want %s", segments, u, want)
		}
	}
}

func TestHugePagesAreNamedAsPodsAskForThem(t *testing.T) {
	for bytes, want := range map[int64]string{
		64 << 10: "hugepages-64Ki", 2 << 20: "hugepages-2Mi", 512 << 20: "hugepages-512Mi", 1 << 30: "hugepages-1Gi", 16 << 30: "hugepages-16Gi",
	} {
		if got := (HugePages{PageBytes: bytes}).Resource(); got != want {
			t.Errorf("those of %d bytes are %s, want %s", bytes, got, want)
		}
	}
}
