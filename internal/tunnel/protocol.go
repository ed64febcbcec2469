package tunnel

import (
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
)

// What a connection is for, by ALPN.
const (
	protoJoin    = "kip-join/1"
	protoCellAPI = "kip-cell-api/1"
	protoHTTP2   = "h2"
	protoHTTP1   = "http/1.1"
)

// authority is the host of every request in a tunnel; the connection, not a
// name, says who is asked.
const authority = "kip"

// Errors that a caller decides on.
var (
	// ErrNotConnected is for requests while there is no connection. The
	// request was not sent.
	ErrNotConnected = errors.New("no connection to the other end of the tunnel")
	// ErrClosed is what a session ended with that was closed.
	ErrClosed = errors.New("the session was closed")
	// ErrKeyChanged is when the machine that answers has another key than the
	// one that the token was spent on: it is not the machine that joined.
	ErrKeyChanged = errors.New("the cell shows another key than the one that joined")
)

// limits are the times and numbers that bound a connection.
type limits struct {
	// pingAfter without a frame read, an end pings; pingTimeout later
	// without an answer Kip's end closes. Their sum is when a cut network is
	// noticed.
	pingAfter, pingTimeout time.Duration
	// patience is what a cell's end waits for an answer to its ping, and both for
	// a write that gets nowhere. A Kip that is late or stopped must not lose its
	// connections by that; one that is gone is replaced by another, which dials.
	patience time.Duration
	// connect bounds TCP's part of dialling. A booting machine drops what
	// comes too early, and TCP itself asks again only after 1 s, 3 s, 7 s.
	connect time.Duration
	// handshake bounds TLS, and what must follow at once.
	handshake time.Duration
	// header is how long the header of a request to a cell may take, which can have a MiB.
	header time.Duration
	// join bounds the messages of a join, with the store's write in it.
	join time.Duration
	// wait is how long a request waits for a connection.
	wait time.Duration
	// idle is how long the h2 connection stays without a request.
	idle time.Duration
	// turn is how long a connection that is there may wait for its handshake.
	// The cell does not wait for longer than handshake.
	turn time.Duration
	// hold is how long the answer to a request is held back that a cell had better
	// not asked, and calm how long a cell is not dialled that has too many of them.
	hold, calm time.Duration
	// pending is how many connections a cell has at most that did not prove
	// yet to be Kip's.
	pending int
	// arrivalBurst connections of a source are taken at once, and one more each
	// arrivalEvery: a Kip that may not know yet whether a cell has joined dials
	// some fifty times in its first seconds.
	arrivalEvery time.Duration
	arrivalBurst int
}

// silence is after how long without a byte a connection is given up by Kip's end.
func (l limits) silence() time.Duration { return l.pingAfter + l.pingTimeout }

func defaultLimits() limits {
	return limits{
		pingAfter:   10 * time.Second,
		pingTimeout: 5 * time.Second,
		connect:     2 * time.Second,
		patience:    3 * time.Minute,
		handshake:   5 * time.Second,
		header:      30 * time.Second,
		turn:        2 * time.Second,
		join:        30 * time.Second,
		wait:        10 * time.Second,
		idle:        90 * time.Second,
		hold:        time.Second,
		calm:        5 * time.Second,
		pending:     16,

		arrivalEvery: time.Second / 10,
		arrivalBurst: 256,
	}
}

// unjudged is how long a ping of Kip's end may go unanswered as HTTP/2 sees it: it
// does not know whether this process is late. See conn.judge.
const unjudged = 365 * 24 * time.Hour

const (
	// maxStreams is how many requests one end has in flight to the other, as of a client of an API server
	// (HTTP2MaxStreamsPerConnection in k8s.io/apiserver/pkg/server/options/recommended.go). A
	// kubelet holds a watch open for every object that its pod names.
	maxStreams = 1000
	// maxHeader bounds the header of a request to a cell, which has the command of an exec in its path: what a
	// kubelet takes (MaxHeaderBytes in pkg/kubelet/server/server.go), and the API server. Only Kip asks.
	maxHeader = http.DefaultMaxHeaderBytes
	// maxAnswerHeader bounds that of an answer, with those that come before it: a kubelet's has some hundred bytes,
	// whatever it was asked.
	maxAnswerHeader = 64 << 10
	// maxAskedHeader bounds that of a request of a cell, with its path and options. A
	// kubelet's is of some 500 bytes: it shows a certificate, no token.
	maxAskedHeader = 8 << 10
	// streamWindow is how much of one body a receiver buffers, connWindow of
	// all together. The second is much the larger, or one reader that stalls
	// (kubectl logs in a stopped terminal) would stall all others.
	streamWindow = 512 << 10
	connWindow   = 16 << 20
	// requestWindow and requestConnWindow are the same for what a cell sends
	// to Kip: status patches and events, from thousands of cells.
	requestWindow     = 64 << 10
	requestConnWindow = 1 << 20
)

// keepAlive is TCP's own, for connections without HTTP/2's pings. It never
// sends on the others, since those are never silent for so long.
var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     15 * time.Second,
	Interval: 5 * time.Second,
	Count:    3,
}

// newTransport is the client half of both directions; it opens no connection
// by itself, its NewClientConn is used on those that exist. unanswered is how long
// a ping of it may go unanswered.
func newTransport(l limits, idle, unanswered time.Duration) (*http2.Transport, error) {
	t, err := http2.ConfigureTransports(&http.Transport{
		// The bodies go through as they are.
		DisableCompression:     true,
		IdleConnTimeout:        idle,
		MaxResponseHeaderBytes: maxAnswerHeader,
		HTTP2: &http.HTTP2Config{
			// Beyond the other end's maximum, requests wait for their turn.
			StrictMaxConcurrentRequests:   true,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
			SendPingTimeout:               l.pingAfter,
			PingTimeout:                   unanswered,
			WriteByteTimeout:              l.patience,
		},
	})
	return t, err
}
