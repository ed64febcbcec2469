package upgrade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/backoff"
)

const (
	// MaxBytes bounds the program: the agent has some 20 MB, and 150 with the kubelet and
	// containerd in it.
	MaxBytes = 256 << 20
	// Limit bounds the fetching as a whole, with what is tried again.
	Limit = 2 * time.Minute
	// retryPause is after the first try that failed. It is twice as long after each other, up to
	// longestPause.
	retryPause, longestPause = time.Second, 15 * time.Second
	// badAnswers is how many answers that are not the file are taken before it is given up. It may
	// be one that is just being uploaded, or one of several servers may not have it yet; a machine
	// is a high price for that. With the pauses these are 15 s.
	badAnswers = 5
)

var (
	// ErrUnderWay: that agent is being fetched. The same is to be asked again.
	ErrUnderWay = errors.New("the agent is being fetched")
	// ErrRefused: this machine cannot have that agent, and goes on with the one that it has.
	ErrRefused = errors.New("the agent is not started")

	// digest is a SHA-256, and the name of a program that was fetched.
	digest = regexp.MustCompile(`^[0-9a-f]{64}$`)
	// version is what may stand in a file's name.
	version = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
)

// partial begins the names of programs that are not whole yet.
const partial = "fetching-"

// Options of an Upgrade. All are required, unless they say otherwise.
type Options struct {
	// Dir keeps what was fetched. Nobody but root may enter it.
	Dir string
	// Self is the program that runs.
	Self string
	// Try runs a program that was verified, so that it says which it is; an error for one that
	// is no agent for this machine.
	Try func(ctx context.Context, program string) (version string, err error)
	Log *slog.Logger

	// Arch is the machine's architecture as Go names it. Optional: this program's.
	Arch string
	// MaxBytes, Limit and Pause are optional: those above.
	MaxBytes     int64
	Limit, Pause time.Duration
	// SyncFolder has the names in a folder outlive a loss of power. Optional.
	SyncFolder func(path string) error
}

// Upgrade is the agent after this one, if Kip wants any.
type Upgrade struct {
	o    Options
	jobs chan job // of which there is one
	// self is the digest of the program that runs.
	self func() (string, error)

	mu     sync.Mutex
	is     string // digest of the program that runs; "" before it was asked for
	wanted string // digest; "" before any was
	failed error
}

// job is one program to fetch.
type job struct {
	agent  agentapi.Agent
	source string
	digest string
}

// New has no effect outside.
func New(o Options) *Upgrade {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = MaxBytes
	}
	if o.Limit == 0 {
		o.Limit, o.Pause = Limit, retryPause
	}
	if o.SyncFolder == nil {
		o.SyncFolder = syncFolder
	}
	return &Upgrade{o: o, jobs: make(chan job, 1), self: sync.OnceValues(func() (string, error) { return agentapi.SHA256Of(o.Self) })}
}

// Want says that this is to be the agent. It returns nil where the one that runs is it,
// ErrUnderWay while Run fetches it, and ErrRefused where this machine cannot have it, which a
// machine with a kubelet cannot.
func (s *Upgrade) Want(a agentapi.Agent, kubelet bool) error {
	wanted, err := s.check(a)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	self, err := s.self()
	if err != nil {
		return fmt.Errorf("tell which agent this is: %w", err)
	}
	s.mu.Lock()
	s.is = self
	s.mu.Unlock()
	if wanted == self {
		return nil
	}
	if kubelet {
		return fmt.Errorf("%w: this machine has its configuration, and perhaps its pod", ErrRefused)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.wanted == "":
		s.wanted = wanted
		s.jobs <- job{agent: a, source: a.Source(s.o.Arch), digest: wanted} // it has room, and there is one
	case s.wanted != wanted:
		return fmt.Errorf("%w: this machine was told of another one before", ErrRefused)
	case s.failed != nil:
		return s.failed
	}
	return ErrUnderWay
}

// Self is the digest of the program that runs; "" where no Want has asked which it is.
func (s *Upgrade) Self() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is
}

// UnderWay says that another agent is wanted, and that it is not known yet that this machine
// cannot have it: it may take over at any time.
func (s *Upgrade) UnderWay() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted != "" && s.failed == nil
}

// check returns the digest of the program for this machine.
func (s *Upgrade) check(a agentapi.Agent) (string, error) {
	u, err := url.Parse(a.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("its url %.200q is not valid: want one of http or https", a.URL)
	}
	if !version.MatchString(a.Version) {
		return "", fmt.Errorf("its version %.80q is not valid: want letters, digits and . _ + -", a.Version)
	}
	is, has := a.SHA256[s.o.Arch]
	if !has {
		return "", fmt.Errorf("it has no sha256 for %s, which this machine is", s.o.Arch)
	}
	if !digest.MatchString(is) {
		return "", fmt.Errorf("its sha256 for %s, %.80q, is not valid: want 64 lower-case hex digits", s.o.Arch, is)
	}
	return is, nil
}

// Run fetches the agent that is wanted and returns the program that is to take over; "" when
// ctx ends, also where the agent cannot be had.
func (s *Upgrade) Run(ctx context.Context) (program string) {
	select {
	case <-ctx.Done():
		return ""
	case j := <-s.jobs:
		s.o.Log.Info("fetching another agent", "version", j.agent.Version, "from", j.source)
		program, err := s.obtain(ctx, j)
		if err == nil {
			return program
		}
		if ctx.Err() == nil {
			s.o.Log.Error("another agent is not started, and this one goes on", "version", j.agent.Version, "err", err)
			s.mu.Lock()
			s.failed = fmt.Errorf("%w: %w", ErrRefused, err)
			s.mu.Unlock()
		}
	}
	<-ctx.Done()
	return ""
}

// obtain has the program on the disk, verified and tried.
func (s *Upgrade) obtain(ctx context.Context, j job) (string, error) {
	program := filepath.Join(s.o.Dir, j.digest)
	if err := s.clear(); err != nil {
		return "", err
	}
	fetch, cancel := context.WithTimeout(ctx, s.o.Limit)
	defer cancel()
	if err := s.fetchAgain(fetch, j, program); err != nil {
		return "", err
	}
	says, err := s.o.Try(ctx, program)
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s has the right digest and is no agent for this machine: %w", j.source, err), os.Remove(program))
	}
	s.o.Log.Info("another agent takes over", "version", j.agent.Version, "says", says)
	return program, nil
}

// fetchAgain fetches the program, and asks again as long as that may help.
func (s *Upgrade) fetchAgain(ctx context.Context, j job, program string) error {
	bad := 0
	for tries := 1; ; tries++ {
		err := s.fetch(ctx, j, program)
		if err == nil || errors.As(err, new(*finalError)) {
			return err
		}
		if errors.As(err, new(*badAnswerError)) {
			if bad++; bad == badAnswers {
				return fmt.Errorf("%w; such were the answers to %d requests", err, bad)
			}
		}
		pause := backoff.Random(nil).After(tries, s.o.Pause, longestPause)
		s.o.Log.Warn("fetching another agent again", "after", pause, "err", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was not fetched within %v: %w", s.o.Limit, err)
		case <-time.After(pause):
		}
	}
}

// clear makes the folder, and removes what earlier tries have left in it.
func (s *Upgrade) clear() error {
	err := os.MkdirAll(s.o.Dir, 0o700)
	if err == nil {
		err = s.o.SyncFolder(filepath.Dir(s.o.Dir)) // else what is synced in it may be lost with it
	}
	if err != nil {
		return fmt.Errorf("make the folder of agents: %w", err)
	}
	left, err := os.ReadDir(s.o.Dir)
	for _, e := range left {
		if p := filepath.Join(s.o.Dir, e.Name()); p != s.o.Self {
			err = errors.Join(err, os.RemoveAll(p))
		}
	}
	if err != nil {
		return fmt.Errorf("remove what is left of agents: %w", err)
	}
	return nil
}

// finalError is one that another try does not mend.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func final(format string, args ...any) error { return &finalError{fmt.Errorf(format, args...)} }

// badAnswerError is an answer that is not the file that is wanted.
type badAnswerError struct{ error }

func (e *badAnswerError) Unwrap() error { return e.error }

func badAnswer(format string, args ...any) error {
	return &badAnswerError{fmt.Errorf(format, args...)}
}

// mostRedirects is how many are followed.
const mostRedirects = 5

// mayRedirect follows no redirect from TLS to plain text.
func mayRedirect(next *http.Request, via []*http.Request) error {
	switch {
	case len(via) > mostRedirects:
		return fmt.Errorf("more than %d redirects", mostRedirects)
	case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
		return errors.New("a redirect from https to " + next.URL.Scheme)
	}
	return nil
}

// services are those of clouds for their machines that are not on the machine's link: EC2's and GCE's over IPv6
// ("Instance metadata" in the EC2 User Guide, "About VM metadata" of Compute Engine), and Azure's wire server.
var services = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("fd20:ce::/32"), netip.MustParsePrefix("168.63.129.16/32"),
}

// elsewhereNoLocal connects to a host, and to others where these are not the machine itself,
// on its link, or a service of its cloud: whoever answers for the host may redirect.
func elsewhereNoLocal(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var dialer net.Dialer
		if to, _, err := net.SplitHostPort(address); err != nil || to != host {
			dialer.Control = func(_, address string, _ syscall.RawConn) error {
				to, err := netip.ParseAddrPort(address)
				if err != nil || isLocal(to.Addr()) {
					return errors.New("a redirect leads to an address of the machine, its link, or its cloud's services")
				}
				return nil
			}
		}
		return dialer.DialContext(ctx, network, address)
	}
}

// isLocal says that an address is the machine's own, on its link, or one of services.
func isLocal(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() ||
		slices.ContainsFunc(services, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// fetch gets the program once, and gives it its name only where it is whole and has the
// digest: whatever is there by that name may be started.
func (s *Upgrade) fetch(ctx context.Context, j job, program string) (err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, j.source, nil)
	if err != nil {
		return &finalError{err}
	}
	// Nothing is kept open for a second request.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	transport.DisableCompression = true // the digest is of the file's own bytes
	transport.DialContext = elsewhereNoLocal(r.URL.Hostname())
	resp, err := (&http.Client{Transport: transport, CheckRedirect: mayRedirect}).Do(r)
	if failed, is := errors.AsType[*url.Error](err); is {
		err = failed.Err // where a redirect leads may be a secret, such as a signed address
	}
	if err != nil {
		return fmt.Errorf("fetch %s: %w", j.source, err)
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return fmt.Errorf("fetch %s: the server answered %s", j.source, resp.Status)
	default:
		return badAnswer("fetch %s: the server answered %s", j.source, resp.Status)
	}
	if resp.ContentLength > s.o.MaxBytes {
		return badAnswer("%s has %d bytes: an agent has %d at most", j.source, resp.ContentLength, s.o.MaxBytes)
	}
	f, err := os.CreateTemp(s.o.Dir, partial)
	if err != nil {
		return &finalError{err}
	}
	defer os.Remove(f.Name()) // it is gone once it has its name
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(resp.Body, s.o.MaxBytes+1))
	is := hex.EncodeToString(sum.Sum(nil))
	switch {
	case err != nil && !errors.As(err, new(*fs.PathError)):
		return errors.Join(fmt.Errorf("fetch %s: %w", j.source, err), f.Close())
	case err != nil: // of the disk
		return errors.Join(final("keep %s: %w", j.source, err), f.Close())
	case n > s.o.MaxBytes:
		return errors.Join(badAnswer("%s has more than the %d bytes that an agent may have", j.source, s.o.MaxBytes), f.Close())
	case is != j.digest:
		why := "it is another file, or was changed"
		return errors.Join(badAnswer("%s has the SHA-256 %s, and %s is wanted: %s", j.source, is, j.digest, why), f.Close())
	}
	if err := errors.Join(f.Chmod(0o500), f.Sync(), f.Close(), os.Rename(f.Name(), program)); err != nil {
		return final("keep %s: %w", j.source, err)
	}
	// Before it takes over: after a loss of power the agent of the image would come back.
	if err := s.o.SyncFolder(s.o.Dir); err != nil {
		return errors.Join(final("keep %s: %w", j.source, err), os.Remove(program))
	}
	// A process that is being started may have the file open for writing until it has begun:
	// the kernel would not start the program.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	return nil
}

// Kept returns the program that this machine has gone over to in an earlier start of the
// agent, "" for none. What is there and is not what its name says is removed: nothing is
// started that is not verified.
func Kept(dir, self string) (program string, err error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	runs, failed := os.Stat(self)
	if err := errors.Join(err, failed); err != nil {
		return "", fmt.Errorf("look for another agent: %w", err)
	}
	var errs []error
	for _, e := range names {
		path := filepath.Join(dir, e.Name())
		if !digest.MatchString(e.Name()) {
			continue
		}
		if info, err := os.Stat(path); err == nil && os.SameFile(info, runs) {
			return "", nil // else it would start itself for ever
		}
		is, err := agentapi.SHA256Of(path)
		switch {
		case err != nil:
			errs = append(errs, err)
		case is == e.Name():
			return path, nil
		default:
			errs = append(errs, fmt.Errorf("agent %s has the SHA-256 %s: it is removed", path, is), os.Remove(path))
		}
	}
	return "", errors.Join(errs...)
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
