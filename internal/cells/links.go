package cells

import (
	"context"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/tunnel"
	"github.com/elotl/kip/internal/watchdog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Tunnels connects to cells.
type Tunnels interface {
	// Keep is tunnel.Dialer's.
	Keep(ctx context.Context, t tunnel.Target, cellAPI http.Handler, onSpend tunnel.OnSpend) (Session, error)
}

// Session is a tunnel to one cell; *tunnel.Session says what its methods do.
type Session interface {
	Ready() <-chan struct{}
	Connected() bool
	LastHeard() time.Time
	LastError() error
	HeldBack() time.Time
	Trust(ctx context.Context) error
	CA() string
	Conn() agentapi.Conn
	Streams() agentapi.Conn
	Close()
}

var _ Session = (*tunnel.Session)(nil)

// APIs serves cells the Kubernetes API that they see.
type APIs interface {
	AddCell(id string, info cellapi.CellInfo) API
	RemoveCell(id string)
}

// API is what one cell sees of Kubernetes; *cellapi.Cell says what its methods
// do.
type API interface {
	http.Handler
	Bind(namespace, name string, uid types.UID) error
	Reserve(requests corev1.ResourceList, drivers []string)
	KeepPod()
	NodeReady() <-chan struct{}
	LastHeartbeat() time.Time
	Node() *corev1.Node
	CSIDrivers() (registered []string, known bool)
	PluginTrouble() string
	StatusTrouble() string
}

var _ API = (*cellapi.Cell)(nil)

// OverTunnels returns the tunnels of a dialer.
func OverTunnels(d *tunnel.Dialer) Tunnels { return dialer{d} }

type dialer struct{ *tunnel.Dialer }

func (d dialer) Keep(ctx context.Context, t tunnel.Target, cellAPI http.Handler, onSpend tunnel.OnSpend) (Session, error) {
	s, err := d.Dialer.Keep(watchdog.Alone(ctx), t, cellAPI, onSpend) // it outlives the task
	if err != nil {
		return nil, err // not s: an interface around nil is not nil
	}
	return session{s}, nil
}

// session declares that those who ask its agent wait for a cell.
type session struct{ *tunnel.Session }

func (s session) Conn() agentapi.Conn { return watchdog.Transport(s.Session.Conn(), watchdog.Cell) }

func (s session) Streams() agentapi.Conn {
	return watchdog.Transport(s.Session.Streams(), watchdog.Cell)
}

func (s session) Trust(ctx context.Context) error {
	defer watchdog.Wait(ctx, watchdog.Cell)()
	return s.Session.Trust(ctx)
}

// ServedBy returns the APIs of a cell API server.
func ServedBy(s *cellapi.Server) APIs { return server{s} }

type server struct{ *cellapi.Server }

func (s server) AddCell(id string, info cellapi.CellInfo) API { return s.Server.AddCell(id, info) }
