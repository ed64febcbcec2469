package podlogs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/agentapi"
)

// streams are what people read of cells now: logs, and what exec, attach and port-forward carry. On a node they outlive
// the containers, since the machine stays. A cell ends, so what it has yet to say is read before.
type streams struct {
	mu        sync.Mutex
	ended     sync.Cond // of reads
	open      map[types.UID]map[*stream]bool
	finishing map[types.UID]*finishing
}

// finishing is a Finish that goes on.
type finishing struct {
	patience *patience
	stop     <-chan struct{}
	reads    int // streams that are being read; under streams.mu
}

// Track returns conn, whose answers to people are known until they are closed.
func (s *Saver) Track(namespace string, uid types.UID, conn agentapi.Conn) agentapi.Conn {
	return tracked(func(r *http.Request) (*http.Response, error) {
		resp, err := conn.RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusSwitchingProtocols {
			return resp, err
		}
		st := &stream{
			s: s, namespace: namespace, uid: uid,
			body:    resp.Body,
			log:     strings.Contains(r.URL.Path, "/containerLogs/"), // no name in it has a slash
			last:    '\n',
			reading: make(chan struct{}, 1),
		}
		st.changed.L = &st.mu
		resp.Body = st
		if out, ok := st.body.(io.Writer); ok && resp.StatusCode == http.StatusSwitchingProtocols {
			resp.Body = &upgraded{stream: st, out: out}
			st.quiet = quietAfter
		}
		s.streams.add(st)
		return resp, nil
	})
}

type tracked func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t tracked) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func (a *streams) add(st *stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[st.uid] == nil {
		a.open[st.uid] = map[*stream]bool{}
	}
	a.open[st.uid][st] = true
	if f := a.finishing[st.uid]; f != nil {
		st.finish(f)
	}
}

func (a *streams) remove(st *stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open[st.uid], st)
	if len(a.open[st.uid]) == 0 {
		delete(a.open, st.uid)
	}
}

// HasStreams reports whether somebody reads of the cell of a pod.
func (s *Saver) HasStreams(uid types.UID) bool {
	s.streams.mu.Lock()
	defer s.streams.mu.Unlock()
	return len(s.streams.open[uid]) > 0
}

// Finish reads what the cell of a pod that has ended has yet to say to those who read of it, so that it may end while
// they lag. It returns when all is read, or when that takes too long.
func (s *Saver) Finish(ctx context.Context, uid types.UID) {
	ctx, patience, cancel := withPatience(ctx, SaveTimeout, s.c.MaxBytesPerPod)
	defer cancel()
	f := &finishing{patience: patience, stop: ctx.Done()}
	s.streams.mu.Lock()
	s.streams.finishing[uid] = f
	for st := range s.streams.open[uid] {
		st.finish(f)
	}
	for f.reads > 0 {
		s.streams.ended.Wait()
	}
	delete(s.streams.finishing, uid)
	s.streams.mu.Unlock()
}

// quietAfter is when nothing more is expected of an upgraded connection to a pod that has ended: that of a port-forward
// stays open until its caller closes it.
const quietAfter = 2 * time.Second

// stream is what a cell answers, and somebody reads.
type stream struct {
	s         *Saver
	namespace string
	uid       types.UID
	body      io.ReadCloser // the cell's
	log       bool
	quiet     time.Duration // 0 where the cell ends it

	reading chan struct{} // filled by who reads body

	mu        sync.Mutex
	changed   sync.Cond
	finishes  bool
	file      *claim // of what was read ahead; nil before there is something
	size, at  int64  // of the file, and what was read of that
	lostBytes int64  // that had no room
	lostLines int64
	bound     string // why it had none
	unread    error  // why what was read ahead is lost, of which nobody counted the lines
	ended     error  // why nothing more comes; nil before
	closed    bool
	last      byte   // that was read
	note      []byte // that is to be read
	noted     bool
}

// errIncomplete ends a log of which something is missing, after a note that says so: the API server hands no error on.
var errIncomplete = errors.New("the log is not complete")

// Read implements io.Reader.
func (st *stream) Read(p []byte) (int, error) {
	n, err := st.read(p)
	if n > 0 {
		st.last = p[n-1]
	}
	return n, err
}

func (st *stream) read(p []byte) (int, error) {
	st.reading <- struct{}{}
	st.mu.Lock()
	ahead := st.finishes
	st.mu.Unlock()
	if !ahead {
		n, err := st.body.Read(p)
		<-st.reading
		if err == nil || n > 0 {
			return n, nil // the error comes again
		}
		st.mu.Lock()
		defer st.mu.Unlock()
		return st.end(p, err)
	}
	<-st.reading
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.at == st.size && st.ended == nil && !st.closed {
		st.changed.Wait()
	}
	switch {
	case st.closed:
		return 0, net.ErrClosed
	case st.at == st.size:
		return st.end(p, st.ended)
	}
	n, err := st.file.ReadAt(p[:min(int64(len(p)), st.size-st.at)], st.at)
	st.at += int64(n)
	if n > 0 {
		return n, nil
	}
	st.lostBytes += st.size - st.at
	st.at = st.size
	st.unread = err // its room was given to others, or the disk fails
	return st.end(p, cmp.Or(st.ended, err))
}

// end returns what ends the stream: of a log a note before that, if something is missing. st.mu is held.
func (st *stream) end(p []byte, err error) (int, error) {
	complete := errors.Is(err, io.EOF) && st.lostBytes == 0
	if st.log && !complete && !st.noted && !st.closed {
		st.noted = true
		st.note = st.missing(err)
	}
	if len(st.note) > 0 {
		n := copy(p, st.note)
		st.note = st.note[n:]
		return n, nil
	}
	if errors.Is(err, io.EOF) && !complete {
		err = errIncomplete
	}
	return 0, err
}

func (st *stream) missing(err error) []byte {
	var b bytes.Buffer
	if st.last != '\n' {
		b.WriteByte('\n')
	}
	const again = "Kip may have saved the end of the log: run kubectl logs again"
	switch {
	case st.unread != nil:
		fmt.Fprintf(&b, "[kip: %d bytes of the log are missing here: the cell ended before you had read them, and Kip could not keep "+
			"them: %v; %s]\n", st.lostBytes, st.unread, again)
	case st.lostBytes > 0:
		fmt.Fprintf(&b, "[kip: %d lines, %d bytes of the log are missing here: the cell ended before you had read them, and Kip had no room "+
			"to keep them: %s; %s]\n", st.lostLines, st.lostBytes, st.bound, again)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, st.unread) {
		b.WriteString("[kip: the rest of the log could not be read: the connection to the cell broke]\n")
	}
	return b.Bytes()
}

// Close implements io.Closer.
func (st *stream) Close() error {
	st.s.streams.remove(st)
	err := st.body.Close()
	st.mu.Lock()
	st.closed = true
	file := st.file
	st.changed.Broadcast()
	st.mu.Unlock()
	if file != nil {
		file.release()
	}
	return err
}

// finish has what comes read ahead. The caller holds streams.mu.
func (st *stream) finish(f *finishing) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.finishes || st.closed {
		return
	}
	st.finishes = true
	f.reads++
	go func() {
		st.pump(f)
		all := &st.s.streams
		all.mu.Lock()
		defer all.mu.Unlock()
		f.reads--
		all.ended.Broadcast()
	}()
}

// pump reads what the cell says to its end.
func (st *stream) pump(f *finishing) {
	came, done := make(chan struct{}, 1), make(chan struct{})
	defer close(done)
	go st.watch(f.stop, came, done)
	buf := make([]byte, 32<<10)
	for {
		st.reading <- struct{}{}
		n, err := st.body.Read(buf)
		<-st.reading
		select {
		case came <- struct{}{}:
		default:
		}
		f.patience.came(st.keep(buf[:n]))
		if err != nil {
			st.mu.Lock()
			st.ended = err
			st.changed.Broadcast()
			st.mu.Unlock()
			return
		}
	}
}

// watch ends the reading when that takes too long, or nothing comes any more.
func (st *stream) watch(stop <-chan struct{}, came, done <-chan struct{}) {
	var silent <-chan time.Time
	if st.quiet > 0 {
		t := time.NewTicker(st.quiet)
		defer t.Stop()
		silent = t.C
	}
	for {
		select {
		case <-done:
			return
		case <-stop:
		case <-silent:
			select {
			case <-came:
				continue
			default:
			}
		}
		_ = st.body.Close()
		return
	}
}

// keep takes what was read ahead, as far as there is room. It returns how many bytes it has taken.
func (st *stream) keep(p []byte) int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(p) == 0 || st.closed {
		return 0
	}
	if st.file == nil {
		file, err := st.s.claim(st.s.c.Dir, st.namespace, st.uid, false)
		if err != nil {
			st.lose(p, err.Error())
			return 0
		}
		st.file = file
	}
	// What is lost is lost in one piece, at the end.
	var n int64
	var bound string
	if most := st.s.c.MaxBytesPerContainer; st.lostBytes == 0 {
		n, bound = st.file.grow(min(int64(len(p)), most-st.size))
		bound = cmp.Or(bound, fmt.Sprintf("Kip keeps at most %d bytes of it", most))
	}
	if _, err := st.file.WriteAt(p[:n], st.size); err != nil {
		n, bound = 0, err.Error()
	}
	st.lose(p[n:], bound)
	st.size += n
	st.changed.Broadcast()
	return n
}

// lose counts what is not kept. What is said of it is why that began.
func (st *stream) lose(p []byte, bound string) {
	if st.lostBytes == 0 {
		st.bound = bound
	}
	st.lostBytes += int64(len(p))
	st.lostLines += int64(bytes.Count(p, []byte{'\n'}))
}

// upgraded is a stream that goes both ways.
type upgraded struct {
	*stream
	out io.Writer
}

// Write implements io.Writer. What is said to a cell that has ended matters to nobody, and does not end what it said.
func (u *upgraded) Write(p []byte) (int, error) {
	n, err := u.out.Write(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil && u.finishes {
		return len(p), nil
	}
	return n, err
}

// CloseWrite says that nothing more comes, where the connection can say that.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.body.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
