package logind

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// Names of the interface (org.freedesktop.login1, and the D-Bus specification).
const (
	manager     = "org.freedesktop.login1.Manager"
	path        = dbus.ObjectPath("/org/freedesktop/login1")
	bus         = "org.freedesktop.DBus"
	properties  = "org.freedesktop.DBus.Properties"
	maxDelay    = "InhibitDelayMaxUSec"
	prepare     = "PrepareForShutdown"
	unknown     = "org.freedesktop.DBus.Error.UnknownMethod"
	wrong       = "org.freedesktop.DBus.Error.InvalidArgs"
	ends        = "org.freedesktop.login1.OperationInProgress" // logind's answer to who comes then
	maxLine     = 1 << 10                                      // of the handshake, in bytes
	serialStart = 8                                            // in a message: after order, type, flags, version and the body's length
)

// acceptAgain is the pause after a connection could not be taken.
const acceptAgain = time.Second

// Server is a bus with one service on it.
type Server struct {
	listener net.Listener
	delay    time.Duration
	log      *slog.Logger

	mu      sync.Mutex
	clients map[*client]bool
	locks   map[*os.File]*client // what is held, by the end that is read, and by whom
	ending  bool
	changed chan struct{} // has room for one: a lock was let go
}

// client is one connection.
type client struct {
	conn *net.UnixConn

	mu     sync.Mutex // of what is sent
	serial uint32

	listens bool          // it has asked for signals; under the server's mu
	left    chan struct{} // closed when it has gone
}

// Listen opens the socket, of which the folder must be there. delay is the longest time for which
// somebody may delay the end; nobody is held to it here.
func Listen(socket string, delay time.Duration, log *slog.Logger) (*Server, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an earlier run's socket: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's folder: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelet's wish to delay the machine's end: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the socket to others: %w", err), l.Close())
	}
	return &Server{
		listener: l,
		delay:    delay,
		log:      log,
		clients:  map[*client]bool{},
		locks:    map[*os.File]*client{},
		changed:  make(chan struct{}, 1),
	}, nil
}

// Address is the address of the bus, as the variable DBUS_SYSTEM_BUS_ADDRESS has it.
func (s *Server) Address() string { return "unix:path=" + s.listener.Addr().String() }

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(ctx, func() {
		_ = s.listener.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.clients {
			_ = c.conn.Close()
		}
		for l := range s.locks {
			_ = l.Close()
		}
	})
	for {
		accepted, err := s.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("serve those who delay the machine's end: %w", err)
			}
			// Of descriptors or of memory there is none just now, say: no reason to end a machine.
			s.log.Warn("take one who may delay the machine's end", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptAgain):
			}
			continue
		}
		c := &client{conn: accepted.(*net.UnixConn), left: make(chan struct{})} // of a listener on a unix socket
		s.mu.Lock()
		s.clients[c] = true
		over := ctx.Err() != nil
		s.mu.Unlock()
		if over { // nobody else closes it
			_ = c.conn.Close()
		}
		all.Go(func() {
			if err := s.talk(ctx, &all, c); ctx.Err() == nil && !errors.Is(err, io.EOF) {
				s.log.Warn("talk with one who may delay the machine's end", "err", err)
			}
			s.mu.Lock()
			delete(s.clients, c)
			s.mu.Unlock()
			_ = c.conn.Close()
			close(c.left)
		})
	}
}

// End says that the machine ends, and returns when nobody who hears that delays it any longer, or with
// an error when ctx ends before. Nobody can delay it from then on. left is closed when one who delayed
// it has gone, and nil if nobody did.
func (s *Server) End(ctx context.Context) (left <-chan struct{}, err error) {
	s.mu.Lock()
	s.ending = true
	clients := make([]*client, 0, len(s.clients))
	for c := range s.clients {
		clients = append(clients, c)
	}
	// Before the signal: whoever hears it may let go at once.
	for _, by := range s.locks {
		if by.listens {
			left = by.left
		}
	}
	s.mu.Unlock()
	for _, c := range clients {
		if err := c.signal(true); err != nil {
			s.log.Warn("say that the machine ends", "err", err)
		}
	}
	for {
		held := 0
		s.mu.Lock()
		for _, by := range s.locks {
			if by.listens {
				held++
			}
		}
		s.mu.Unlock()
		if held == 0 {
			return left, nil
		}
		select {
		case <-ctx.Done():
			return left, fmt.Errorf("%d still delay the machine's end: %w", held, ctx.Err())
		case <-s.changed:
		}
	}
}

// talk answers one client until it leaves, which is io.EOF, or what else ends it. What is to be waited
// for after that is left to all.
func (s *Server) talk(ctx context.Context, all *sync.WaitGroup, c *client) error {
	in := bufio.NewReaderSize(c.conn, maxLine)
	if err := greet(in, c.conn); err != nil {
		return fmt.Errorf("agree on who talks: %w", err)
	}
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return err
		}
		if call.Type != dbus.TypeMethodCall {
			continue
		}
		if err := s.answer(ctx, all, c, call); err != nil {
			return err
		}
	}
}

// greet is the server's part of the handshake (D-Bus specification, "Authentication Protocol"): the
// socket's mode has said who may come.
func greet(in *bufio.Reader, out io.Writer) error {
	if _, err := in.ReadByte(); err != nil { // the one that may carry credentials
		return err
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		said := strings.Fields(string(line))
		answer := "ERROR"
		switch {
		case len(said) == 1 && said[0] == "BEGIN":
			return nil
		case len(said) >= 2 && said[0] == "AUTH" && said[1] == "EXTERNAL":
			answer = "OK 6b6970206974736f206c6f67696e6400"
		case len(said) >= 1 && said[0] == "AUTH":
			answer = "REJECTED EXTERNAL"
		case len(said) == 1 && said[0] == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		}
		if _, err := io.WriteString(out, answer+"\r\n"); err != nil {
			return err
		}
	}
}

// answer answers a call.
func (s *Server) answer(ctx context.Context, all *sync.WaitGroup, c *client, call *dbus.Message) error {
	of, _ := call.Headers[dbus.FieldInterface].Value().(string)
	member, _ := call.Headers[dbus.FieldMember].Value().(string)
	switch of + "." + member {
	case bus + ".Hello":
		return c.reply(call, ":1.1")
	case bus + ".AddMatch": // there is one signal
		s.mu.Lock()
		c.listens = true
		s.mu.Unlock()
		return c.reply(call)
	case properties + ".Get":
		if slices.Equal(call.Body, []any{manager, maxDelay}) {
			return c.reply(call, dbus.MakeVariant(uint64(s.delay.Microseconds())))
		}
		return c.refuse(call, wrong, fmt.Sprintf("there is %s of %s alone", maxDelay, manager))
	case manager + ".Inhibit":
		if len(call.Body) != 4 || call.Body[0] != "shutdown" || call.Body[3] != "delay" {
			return c.refuse(call, wrong, `want what "shutdown" and mode "delay"`)
		}
		return s.inhibit(ctx, all, c, call)
	}
	return c.refuse(call, unknown, of+"."+member+" is not known here")
}

// inhibit gives a lock: one end of a pipe, which is held until its last copy is closed.
func (s *Server) inhibit(ctx context.Context, all *sync.WaitGroup, c *client, call *dbus.Message) error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a lock: %w", err)
	}
	defer write.Close()
	s.mu.Lock()
	ending, over := s.ending, ctx.Err() != nil
	if !ending {
		s.locks[read] = c
	}
	s.mu.Unlock()
	if ending {
		return errors.Join(read.Close(), c.refuse(call, ends, "the machine ends already"))
	}
	if over { // nobody else closes it
		_ = read.Close()
	}
	all.Go(func() {
		_, _ = io.Copy(io.Discard, read)
		s.mu.Lock()
		delete(s.locks, read)
		s.mu.Unlock()
		_ = read.Close()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	})
	return c.reply(call, dbus.UnixFD(write.Fd()))
}

func (c *client) reply(call *dbus.Message, body ...any) error {
	return c.send(&dbus.Message{
		Type:    dbus.TypeMethodReply,
		Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(call.Serial())},
		Body:    body,
	})
}

func (c *client) refuse(call *dbus.Message, name, why string) error {
	return c.send(&dbus.Message{
		Type: dbus.TypeError,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
			dbus.FieldErrorName:   dbus.MakeVariant(name),
		},
		Body: []any{why},
	})
}

// signal says whether the machine is about to end.
func (c *client) signal(ends bool) error {
	return c.send(&dbus.Message{
		Type: dbus.TypeSignal,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath:      dbus.MakeVariant(path),
			dbus.FieldInterface: dbus.MakeVariant(manager),
			dbus.FieldMember:    dbus.MakeVariant(prepare),
		},
		Body: []any{ends},
	})
}

// send sends a message with the files that it has.
func (c *client) send(m *dbus.Message) error {
	m.Headers[dbus.FieldSender] = dbus.MakeVariant(bus)
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	files, err := m.CountFds()
	if err != nil {
		return err
	}
	if files > 0 {
		m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(files))
	}
	var text bytes.Buffer
	fds, err := m.EncodeToWithFDs(&text, binary.LittleEndian)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	binary.LittleEndian.PutUint32(text.Bytes()[serialStart:], c.serial)
	_, _, err = c.conn.WriteMsgUnix(text.Bytes(), unix.UnixRights(fds...), nil)
	return err
}
