package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// root is the prefix of all that Kip writes, so that an external etcd can be
// shared; the version in it is that of the schema.
const root = "/kip/v1/"

// Open opens the store of a Kip: that of an existing etcd cluster if x has
// endpoints, else one of its own in dir, as OpenEmbedded and OpenExternal do.
func Open(ctx context.Context, dir, configFile string, x External) (*Store, error) {
	if len(x.Endpoints) > 0 {
		return OpenExternal(ctx, x)
	}
	return OpenEmbedded(ctx, dir, configFile)
}

// startTimeout bounds the start of an embedded etcd: replaying its log takes
// well under a second a gigabyte.
const startTimeout = time.Minute

// maxSocketPath is the size of sun_path, with its final NUL: unix(7).
const maxSocketPath = 108

// OpenEmbedded starts an etcd of its own in dir. It listens on a unix socket
// for its peers, of which there are none, and on nothing for clients: Kip talks
// to it within the process. configFile, if not empty, is an etcd configuration
// file, which may set anything but the directory and the listeners.
func OpenEmbedded(ctx context.Context, dir, configFile string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make etcd.internal.dataDir: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	s, err := openEmbedded(ctx, dir, configFile)
	if err != nil {
		return nil, errors.Join(err, unlock())
	}
	stop := s.close
	s.close = func() error {
		err := stop()
		if s.death.fatal.Load() { // what is left of etcd still has the folder
			return err
		}
		return errors.Join(err, unlock())
	}
	return s, nil
}

// lock claims the folder for this process. etcd would wait for ever for another
// that has it.
func lock(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock etcd.internal.dataDir: %w", err)
	}
	if err := tryLock(f); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		err = fmt.Errorf("etcd.internal.dataDir %s is in use by another Kip (process %s): stop it, or give this one a folder of its own: %w",
			dir, bytes.TrimSpace(holder), err)
		return nil, errors.Join(err, f.Close())
	}
	// Only for the message above; who holds the lock is for the kernel to say.
	if err := errors.Join(f.Truncate(0), func() error { _, err := fmt.Fprintln(f, os.Getpid()); return err }()); err != nil {
		return nil, errors.Join(fmt.Errorf("lock etcd.internal.dataDir: %w", err), f.Close())
	}
	return f.Close, nil
}

func openEmbedded(ctx context.Context, dir, configFile string) (*Store, error) {
	death := &death{dead: make(chan struct{})}
	cfg, err := embeddedConfig(dir, configFile, death)
	if err != nil {
		return nil, err
	}
	e, err := startEtcd(ctx, cfg, death)
	if err != nil {
		return nil, err
	}
	client := v3client.New(e.Server)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-e.Server.StopNotify():
			death.because(errors.New("etcd has stopped"))
		case err := <-e.Err():
			death.because(fmt.Errorf("etcd has stopped: %w", err))
		case <-death.dead:
		}
	}()
	return &Store{
		backend: etcd{
			client:  client,
			timeout: requestTimeout,
			death:   death,
			room:    roomIn(cfg.Dir),
		},
		prefix:   root,
		done:     death.dead,
		death:    death,
		embedded: e.Server,
		close:    func() error { return closeEmbedded(client, e, death, watched) },
	}, nil
}

// embeddedConfig is the configuration of an etcd in dir, whose fatal errors are death's.
func embeddedConfig(dir, configFile string, death *death) (*embed.Config, error) {
	cfg := embed.NewConfig()
	if configFile != "" {
		var err error
		if cfg, err = embed.ConfigFromFile(configFile); err != nil {
			return nil, fmt.Errorf("read etcd.internal.configFile %s: %w", configFile, err)
		}
	} else {
		cfg.LogLevel = "error"
		// One snapshot a thousand writes keeps the log, and so the start after
		// a crash, short; the default of 10,000 is meant for busy clusters.
		cfg.SnapshotCount = 1000
		// The only member waits for nobody's vote: a short election lets Kip
		// start a second earlier.
		cfg.TickMs, cfg.ElectionMs = 10, 100
	}
	cfg.Dir = filepath.Join(dir, "etcd")
	if r := cfg.AutoCompactionRetention; r == "" || r == "0" { // etcd's default: never
		cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "5m"
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewNopCore(), zap.WithFatalHook(death), zap.WithPanicHook(death)))
	return cfg, setListeners(cfg, dir)
}

// setListeners gives etcd the listener that it wants for peers, of which there are none: a
// socket in dir that only root may open.
func setListeners(cfg *embed.Config, dir string) error {
	socket := filepath.Join(dir, "peer.sock")
	if len(socket) >= maxSocketPath {
		return fmt.Errorf("etcd.internal.dataDir %s is too long: a socket in it would have a path of %d bytes, the most is %d", dir,
			len(socket), maxSocketPath-1)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old peer socket: %w", err)
	}
	peer := url.URL{Scheme: "unix", Host: socket} // etcd listens on the Host of a unix URL
	cfg.ListenPeerUrls = []url.URL{peer}
	cfg.ListenClientUrls = nil
	// The advertised addresses must have a host and a port; with one member
	// nobody dials them.
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:2379"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return nil
}

// startEtcd returns when etcd can be asked.
func startEtcd(ctx context.Context, cfg *embed.Config, death *death) (*embed.Etcd, error) {
	// On a goroutine of its own: if etcd dies in it, it never returns.
	type started struct {
		e   *embed.Etcd
		err error
	}
	start := make(chan started, 1)
	go func() {
		e, err := embed.StartEtcd(cfg)
		start <- started{e, err}
	}()
	var e *embed.Etcd
	select {
	case s := <-start:
		if s.err != nil {
			return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, s.err)
		}
		e = s.e
	case <-death.dead:
		return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, death.err)
	}
	ready := time.NewTimer(startTimeout)
	defer ready.Stop()
	select {
	case <-e.Server.ReadyNotify():
	case <-death.dead:
		return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, death.err)
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", cfg.Dir, err)
	case <-ready.C:
		e.Close()
		return nil, fmt.Errorf("start etcd in %s: not ready after %s", cfg.Dir, startTimeout)
	case <-ctx.Done():
		e.Close()
		return nil, ctx.Err()
	}
	return e, nil
}

// closeEmbedded ends etcd, and with it the goroutine that watches its end.
func closeEmbedded(client *clientv3.Client, e *embed.Etcd, death *death, watched <-chan struct{}) error {
	// After a death its goroutines are parked where they were, with
	// their locks: closing it would wait for ever.
	var err error
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err = client.Close(); errors.Is(err, context.Canceled) { // what closing a client within the process says
			err = nil
		}
		e.Close()
		<-watched
	}()
	select {
	case <-closed:
	case <-death.dead:
		if death.fatal.Load() {
			return death.err
		}
		<-closed
	}
	return err
}

// External says where an existing etcd cluster is.
type External struct {
	Endpoints                 []string
	CertFile, KeyFile, CAFile string
}

// openTimeout bounds the first request to an external etcd, with the
// connection: whoever has set a wrong address or certificate waits for it.
const openTimeout = 5 * time.Second

// reconnect is the pause between two attempts to reach an etcd that does not
// answer. grpc's own grows to two minutes, which Kip would be late after an
// outage. It is of grpc, and not of package backoff, since a connection of grpc takes no other.
var reconnect = backoff.Config{
	BaseDelay:  100 * time.Millisecond,
	Multiplier: 1.6,
	Jitter:     0.2,
	MaxDelay:   3 * time.Second,
}

// OpenExternal connects to an existing etcd cluster and checks that it answers.
func OpenExternal(ctx context.Context, x External) (*Store, error) {
	if len(x.Endpoints) == 0 {
		return nil, errors.New("etcd.client.endpoints is empty: give it the addresses of an etcd, as in https://10.0.0.1:2379")
	}
	if (x.CertFile == "") != (x.KeyFile == "") {
		return nil, fmt.Errorf("etcd.client.certFile is %q and keyFile is %q: set both or neither", x.CertFile, x.KeyFile)
	}
	cfg := clientv3.Config{
		Endpoints:            x.Endpoints,
		Logger:               zap.NewNop(),
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(keepLastError),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: openTimeout}),
		},
	}
	if x.CertFile != "" || x.CAFile != "" {
		t, err := transport.TLSInfo{CertFile: x.CertFile, KeyFile: x.KeyFile, TrustedCAFile: x.CAFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("read the certificates of etcd.client: %w", err)
		}
		t.MinVersion = tls.VersionTLS12
		cfg.TLS = t
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w", x.Endpoints, err)
	}
	s := &Store{
		backend: etcd{client: client, timeout: requestTimeout},
		prefix:  root,
		close:   client.Close,
		shared:  client,
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.Healthy(ctx); err != nil {
		err = fmt.Errorf("connect to etcd at %v: %w; check etcd.client.endpoints (https or http too), certFile, keyFile and caFile",
			x.Endpoints, err)
		return nil, errors.Join(err, client.Close())
	}
	return s, nil
}
