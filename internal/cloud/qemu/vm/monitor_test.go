package vm

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

const greeting = `{"QMP": {"version": {}, "capabilities": ["oob"]}}` + "\n"

// monitor serves one connection: after each line that it hears, and first of all, it says
// the next of some texts, and then nothing more, or, at the end, ends.
func monitor(t *testing.T, ends bool, says ...string) (path string, heard <-chan string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "m")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	lines, done := make(chan string, 10), make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		for _, text := range says {
			if _, err := conn.Write([]byte(text)); err != nil {
				return
			}
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			lines <- strings.TrimSuffix(line, "\n")
		}
		if !ends {
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
	return path, lines
}

func TestAMonitorIsGreetedAndToldInTurn(t *testing.T) {
	const event = `{"event": "RESUME", "timestamp": {}}` + "\n"
	path, heard := monitor(t, true, greeting, `{"return": {}}`+"\n", event+event+`{"return": {"running": true}}`+"\n",
		event+`{"error": {"class": "DeviceNotFound", "desc": "no such thing"}}`+"\n", `{"return": {}}`+"\n")
	m, err := Dial(t.Context(), path, AnswerLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var status struct{ Running bool }
	if err := m.Do(t.Context(), "query-status", nil, &status); err != nil || !status.Running {
		t.Errorf("%+v, %v", status, err)
	}
	var refused *Refused
	err = m.Do(t.Context(), "device_del", map[string]any{"id": "d"}, nil)
	if !errors.As(err, &refused) || refused.Class != "DeviceNotFound" || err.Error() != "QEMU refused device_del: no such thing" {
		t.Errorf("refused with %v", err)
	}
	for _, want := range []string{`{"execute":"qmp_capabilities"}`, `{"execute":"query-status"}`,
		`{"arguments":{"id":"d"},"execute":"device_del"}`} {
		if got := <-heard; got != want {
			t.Errorf("heard %s, want %s", got, want)
		}
	}
	if err := m.Do(t.Context(), "cont", nil, nil); err != nil {
		t.Error(err)
	}
	if err := m.Do(t.Context(), "cont", nil, nil); err == nil {
		t.Error("a monitor that has ended did as it was told")
	}
}

func TestAMonitorThatLiesIsNotWaitedForWithoutEnd(t *testing.T) {
	for what, tc := range map[string]struct {
		says []string
		want string
	}{
		"is no monitor":     {[]string{"SSH-2.0\n"}, "invalid character"},
		"never ends a line": {[]string{strings.Repeat("x", maxMessage+1)}, "too long"},
	} {
		t.Run(what, func(t *testing.T) {
			path, _ := monitor(t, false, tc.says...)
			m, err := Dial(t.Context(), path, AnswerLimit)
			if err == nil {
				m.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v; want an error with %q", err, tc.want)
			}
		})
	}
	for what, says := range map[string][]string{
		"says nothing":    {""},
		"does not answer": {greeting, ""},
	} {
		t.Run(what, func(t *testing.T) {
			path, heard := monitor(t, false, says...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				// One that greets is asked; of one that does not, nothing tells when it is waited for.
				if len(says) > 1 {
					<-heard
				}
				cancel()
			}()
			m, err := Dial(ctx, path, AnswerLimit)
			if err == nil {
				m.Close()
			}
			// The dialer has words of its own for a context that ends while it connects.
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v; want one of a context that was canceled", err)
			}
		})
	}
	if m, err := Dial(t.Context(), filepath.Join(t.TempDir(), "none"), AnswerLimit); err == nil {
		m.Close()
		t.Error("a monitor that is not there was reached")
	}
}
