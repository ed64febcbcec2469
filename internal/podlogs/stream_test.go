package podlogs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/agentapi"
)

// body is what a cell answers: text as it is written, until it is ended.
type body struct {
	*io.PipeReader
	says *io.PipeWriter
	told bytes.Buffer
}

func (b *body) Write(p []byte) (int, error) { return b.told.Write(p) }

// asks opens a stream of a pod.
func asks(t *testing.T, s *Saver, uid types.UID, what string) (io.ReadCloser, *body) {
	t.Helper()
	b := &body{}
	b.PipeReader, b.says = io.Pipe()
	conn := s.Track("ns", uid, tracked(func(*http.Request) (*http.Response, error) {
		code := http.StatusOK
		if what != "containerLogs" {
			code = http.StatusSwitchingProtocols
		}
		return &http.Response{StatusCode: code, Body: b}, nil
	}))
	r := &http.Request{URL: agentapi.KubeletURL(what, "ns", "p", "c")}
	resp, err := conn.RoundTrip(r.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body, b
}

// finish finishes the streams of a pod, and returns a channel that is closed when that is done.
func finish(t *testing.T, s *Saver, uid types.UID) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Finish(t.Context(), uid)
	}()
	return done
}

func TestAReaderThatLagsGetsTheWholeLog(t *testing.T) {
	log := strings.Repeat(strings.Repeat("x", 108)+"\n", 89_000)
	for _, what := range []string{"containerLogs", "attach"} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := open(t, Config{})
			stream, cell := asks(t, s, "u", what)
			if !s.HasStreams("u") || s.HasStreams("other") {
				t.Error("the stream is not known")
			}
			go func() {
				_, _ = io.WriteString(cell.says, log)
				cell.says.Close()
			}()
			first := make([]byte, 1000)
			if _, err := io.ReadFull(stream, first); err != nil {
				t.Fatal(err)
			}
			<-finish(t, s, "u") // nobody reads meanwhile
			rest, err := io.ReadAll(stream)
			if err != nil || string(first)+string(rest) != log {
				t.Errorf("%s: %d bytes of %d: %v", what, len(first)+len(rest), len(log), err)
			}
			if err := stream.Close(); err != nil {
				t.Error(err)
			}
			if s.HasStreams("u") {
				t.Error("it is open when it is closed")
			}
			accounted(t, s)
		})
	}
}

// Who waits for what comes next gets that, and the end.
func TestAReaderThatDoesNotLagIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t, Config{})
		stream, cell := asks(t, s, "u", "containerLogs")
		defer stream.Close()
		got := make(chan string)
		go func() {
			b, err := io.ReadAll(stream)
			got <- fmt.Sprint(string(b), err)
		}()
		synctest.Wait()
		done := finish(t, s, "u")
		synctest.Wait()
		late, itsCell := asks(t, s, "u", "containerLogs") // it is read as well
		defer late.Close()
		for _, c := range []*body{cell, itsCell} {
			_, _ = io.WriteString(c.says, "one\n")
			_, _ = io.WriteString(c.says, "two\n")
			c.says.Close()
		}
		<-done
		if got := <-got; got != "one\ntwo\n<nil>" {
			t.Errorf("%q", got)
		}
		if b, err := io.ReadAll(late); string(b) != "one\ntwo\n" || err != nil {
			t.Errorf("of who came later: %q %v", b, err)
		}
	})
}

func TestALogThatIsNotCompleteSaysSo(t *testing.T) {
	broken := errors.New("link down")
	for name, c := range map[string]struct {
		max    int64
		says   []string
		fails  error // the cell's end
		read   int   // before
		finish bool
		want   string
	}{
		"without room": {
			max: 8, says: []string{"one\n", "two\n", "three\n", "four\n"}, finish: true,
			want: "one\ntwo\n[kip: 2 lines, 11 bytes of the log are missing here: the cell ended before you had read them, " +
				"and Kip had no room to keep them: Kip keeps at most 8 bytes of it; Kip may have saved the end of the log: run kubectl logs again]\n",
		},
		"broken, in a line": {
			says: []string{"one\n", "tw"}, fails: broken,
			want: "one\ntw\n[kip: the rest of the log could not be read: the connection to the cell broke]\n",
		},
		"broken while it is read ahead": {
			says: []string{"one\n"}, fails: broken, finish: true,
			want: "one\n[kip: the rest of the log could not be read: the connection to the cell broke]\n",
		},
		"without an end": {
			says: []string{"one\n"}, finish: true, fails: context.Canceled,
			want: "one\n[kip: the rest of the log could not be read: the connection to the cell broke]\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := open(t, Config{MaxBytesPerContainer: c.max})
				stream, cell := asks(t, s, "u", "containerLogs")
				defer stream.Close()
				go func() {
					for _, text := range c.says {
						_, _ = io.WriteString(cell.says, text)
					}
					if c.fails != context.Canceled {
						cell.says.CloseWithError(c.fails)
					}
				}()
				if c.finish {
					<-finish(t, s, "u")
				}
				b, err := io.ReadAll(stream)
				if string(b) != c.want || err == nil {
					t.Errorf("%q %v\nwant %q", b, err, c.want)
				}
			})
		})
	}
}

// A port-forward stays open until its caller closes it, whose cell does not wait for that.
func TestAnUpgradedConnectionThatIsQuietIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t, Config{})
		stream, cell := asks(t, s, "u", "portForward")
		defer stream.Close()
		if _, err := stream.(io.Writer).Write([]byte("request")); err != nil || cell.told.String() != "request" {
			t.Errorf("the cell was told %q: %v", cell.told.String(), err)
		}
		go func() { _, _ = io.WriteString(cell.says, "answer") }()
		<-finish(t, s, "u")
		b, err := io.ReadAll(stream)
		if string(b) != "answer" {
			t.Errorf("%q %v", b, err)
		}
	})
}

// Who does not read holds the room of its own namespace, and no other's.
func TestAStreamThatIsNotReadGivesWay(t *testing.T) {
	line := at(1) + " 12345678\n" // 40 bytes
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t, Config{MaxBytesTotal: 400})
		stream, cell := asks(t, s, "u", "containerLogs")
		go func() {
			_, _ = io.WriteString(cell.says, strings.Repeat(line, 9))
			cell.says.Close()
		}()
		<-finish(t, s, "u")
		if s.room.ofNamespace["ns"] != 9*40 {
			t.Fatalf("%v is kept", s.room.ofNamespace)
		}
		if err := saveIn(t, s, "quiet", "quiet", []string{"main"}, strings.Repeat(line, 4)); err != nil {
			t.Fatal(err)
		}
		if _, got := get(s, "quiet", "main", "timestamps=true"); got != strings.Repeat(line, 4) {
			t.Errorf("another's log is %q", got)
		}
		if b, err := io.ReadAll(stream); err == nil || !strings.HasPrefix(string(b), "[kip: ") || !strings.Contains(string(b), "360 bytes") ||
			!strings.Contains(string(b), "gave the space to another namespace") || strings.Contains(string(b), "connection") {
			t.Errorf("who reads at last gets %q, %v", b, err)
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
		accounted(t, s)
	})
}
