package agentapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"sync"
)

// What an operator asks of the machine of a cell. Kip decides who may.
const (
	// PathExec runs a command on the machine as root: POST with "Upgrade: kip-exec" and the query of an Exec. itzo answers 101
	// once the command runs; both ends then send frames. It answers 400 for a command that cannot be started, and 429 while
	// too many run. The command ends with the connection.
	PathExec = "/v1/exec"
	// PathLogs is the prefix of the logs of the machine's parts: GET /v1/logs/kubelet?tail=100 returns the last 100 lines. itzo
	// answers 404 for a log that the machine does not have.
	PathLogs = "/v1/logs"
)

// ExecProtocol is what a connection of PathExec upgrades to.
const ExecProtocol = "kip-exec"

// Names of logs.
const (
	LogAgent      = "agent"
	LogKubelet    = "kubelet" // with kube-proxy
	LogContainerd = "containerd"
	LogCloudInit  = "cloud-init" // the output of the scripts of the operator's cloud-init file
)

// ParamTail is how many lines of a log are asked for.
const ParamTail = "tail"

// Exec is a command.
type Exec struct {
	// Command is empty for a shell.
	Command []string
	// TTY gives the command a terminal; what it prints then comes as stdout alone.
	TTY bool
	// Term is the kind of terminal, such as xterm.
	Term string
}

// maxCommand bounds the arguments of a command, in number.
const maxCommand = 1 << 10

var termForm = regexp.MustCompile(`^[A-Za-z0-9+._-]{0,64}$`)

// Query is the query of a request for PathExec.
func (e Exec) Query() url.Values {
	q := url.Values{"command": e.Command}
	if e.TTY {
		q.Set("tty", "true")
	}
	if e.Term != "" && termForm.MatchString(e.Term) {
		q.Set("term", e.Term)
	}
	return q
}

// ExecOf reads a query.
func ExecOf(q url.Values) (Exec, error) {
	e := Exec{Command: q["command"], TTY: q.Get("tty") == "true", Term: q.Get("term")}
	switch {
	case len(e.Command) > maxCommand:
		return Exec{}, fmt.Errorf("the command has %d words: want at most %d", len(e.Command), maxCommand)
	case len(e.Command) > 0 && e.Command[0] == "":
		return Exec{}, errors.New("the command has no name")
	case !termForm.MatchString(e.Term):
		return Exec{}, fmt.Errorf("the terminal %.64q is none: want a name such as xterm", e.Term)
	}
	return e, nil
}

// ExecURL leads to PathExec with a query, and nowhere else.
func ExecURL(query string) *url.URL {
	return &url.URL{Scheme: scheme, Host: host, Path: PathExec, RawQuery: query}
}

// LogURL leads to a log with a query, and nowhere else.
func LogURL(log, query string) *url.URL {
	return &url.URL{Scheme: scheme, Host: host, Path: PathLogs + root.JoinPath(log).Path, RawQuery: query}
}

// FrameKind says what a frame has.
type FrameKind byte

// The kinds of frames. A frame is its kind, the length of what it has in four bytes, the highest first, and that.
const (
	FrameStdin  FrameKind = iota // to the command; empty at its end
	FrameStdout                  // of the command
	FrameStderr
	FrameSize // of the terminal: rows and columns, two bytes each
	FrameExit // the exit status in decimal; the last one
)

// MaxFrame is the most that a frame has, in bytes.
const MaxFrame = 32 << 10

// ErrFrame is a frame that nobody sends.
var ErrFrame = fmt.Errorf("not a frame of a command: want one of %d bytes at most", MaxFrame)

// ReadFrame reads a frame into a buffer of MaxFrame bytes.
func ReadFrame(r io.Reader, buf []byte) (FrameKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame || FrameKind(head[0]) > FrameExit {
		return 0, nil, ErrFrame
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return 0, nil, err
	}
	return FrameKind(head[0]), buf[:n], nil
}

// Frames writes frames. It may be used by several goroutines at once.
type Frames struct {
	mu  sync.Mutex
	out io.Writer
	buf []byte
}

// NewFrames returns what writes frames to out.
func NewFrames(out io.Writer) *Frames { return &Frames{out: out} }

// Send writes one frame, of at most MaxFrame bytes.
func (f *Frames) Send(kind FrameKind, p []byte) error {
	if len(p) > MaxFrame {
		return ErrFrame
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf[:0], byte(kind))
	f.buf = binary.BigEndian.AppendUint32(f.buf, uint32(len(p)))
	f.buf = append(f.buf, p...)
	_, err := f.out.Write(f.buf)
	return err
}

// SendExit writes the last frame.
func (f *Frames) SendExit(status int) error { return f.Send(FrameExit, []byte(strconv.Itoa(status))) }

// ExitOf reads what a FrameExit has.
func ExitOf(p []byte) (int, error) {
	status, err := strconv.Atoi(string(p))
	if err != nil || status < 0 || status > 255 {
		return 0, fmt.Errorf("the exit status %.20q is none: want 0 to 255", p)
	}
	return status, nil
}

// SendSize writes the size of a terminal.
func (f *Frames) SendSize(rows, cols uint16) error {
	return f.Send(FrameSize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), cols))
}

// SizeOf reads what a FrameSize has.
func SizeOf(p []byte) (rows, cols uint16, err error) {
	if len(p) != 4 {
		return 0, 0, ErrFrame
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), nil
}

// To returns what writes frames of one kind.
func (f *Frames) To(kind FrameKind) io.Writer { return frameWriter{f, kind} }

type frameWriter struct {
	frames *Frames
	kind   FrameKind
}

func (w frameWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), MaxFrame)]
		if err := w.frames.Send(w.kind, part); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}
