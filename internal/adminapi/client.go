package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"syscall"
	"time"
)

// ErrNoServer says that no Kip serves the socket.
var ErrNoServer = errors.New("no Kip serves this socket")

// Client asks the Kip behind a socket.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient is a client of the socket at path. It connects when it is asked.
func NewClient(path string) *Client {
	return &Client{socket: path, http: &http.Client{Transport: &http.Transport{
		// A process asks a few times at most: no connection is kept.
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, path)
		},
	}}}
}

func dial(ctx context.Context, path string) (conn net.Conn, err error) {
	err = withAddress(path, func(address string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", address)
		return err
	})
	return conn, err
}

// Version asks what runs.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	return v, c.get(ctx, PathVersion, nil, &v)
}

// Why asks about a pod; ErrNotFound if it is not on that Kip's node.
func (c *Client) Why(ctx context.Context, namespace, pod string) (e Explanation, err error) {
	return e, c.get(ctx, PathWhy, url.Values{"namespace": {namespace}, "pod": {pod}}, &e)
}

// Cells asks for all cells.
func (c *Client) Cells(ctx context.Context) (list []Cell, err error) {
	return list, c.get(ctx, PathCells, nil, &list)
}

// Console asks for what the machine of a cell wrote to its console; ErrNotFound if that Kip has
// no such cell, or its cloud no console of it.
func (c *Client) Console(ctx context.Context, cell string) (t ConsoleText, err error) {
	return t, c.get(ctx, PathConsole, url.Values{"cell": {cell}}, &t)
}

// Standby asks for the standby pools.
func (c *Client) Standby(ctx context.Context) (list []Pool, err error) {
	return list, c.get(ctx, PathStandby, nil, &list)
}

// Capacity asks for what is out of capacity.
func (c *Client) Capacity(ctx context.Context) (list []Shortage, err error) {
	return list, c.get(ctx, PathCapacity, nil, &list)
}

// Usage asks for what cells have asked of their API, the worst first.
func (c *Client) Usage(ctx context.Context) (list []CellUsage, err error) {
	err = c.get(ctx, PathUsage, nil, &list)
	slices.SortFunc(list, WorstFirst)
	return list, err
}

// Backup copies a backup of the store to w. What was written is worth nothing if
// there is an error.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	resp, err := c.ask(ctx, http.MethodGet, PathBackup, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("read the backup from Kip at %s: %w", c.socket, err)
	}
	if why := resp.Trailer.Get(BackupError); why != "" {
		return fmt.Errorf("kip at %s: %s", c.socket, why)
	}
	return nil
}

// Held asks for the ends that are held back.
func (c *Client) Held(ctx context.Context) (list []HeldEnd, err error) {
	return list, c.get(ctx, PathHeld, nil, &list)
}

// Allow lets the ends pass once that are held back since then or for longer, and
// returns them.
func (c *Client) Allow(ctx context.Context, seen time.Time) (list []HeldEnd, err error) {
	return list, c.into(ctx, http.MethodPost, PathHeld, url.Values{"seen": {seen.Format(time.RFC3339Nano)}}, &list)
}

// Generation asks what the store knows of.
func (c *Client) Generation(ctx context.Context) (g Generation, err error) {
	return g, c.get(ctx, PathGeneration, nil, &g)
}

// TakeOver has the store take over what it does not know of, as Generation has shown it, and
// returns what that was.
func (c *Client) TakeOver(ctx context.Context, shown string) (g Generation, err error) {
	return g, c.into(ctx, http.MethodPost, PathGeneration, url.Values{"shown": {shown}}, &g)
}

// CA asks for the CA by which cells know Kip.
func (c *Client) CA(ctx context.Context) (ca CA, err error) { return ca, c.get(ctx, PathCA, nil, &ca) }

// RotateCA begins a rotation of the CA, and returns it as it is then.
func (c *Client) RotateCA(ctx context.Context) (ca CA, err error) {
	return ca, c.into(ctx, http.MethodPost, PathCA, nil, &ca)
}

// EndUnmoved ends the cells that CA.Shown names, and returns them.
func (c *Client) EndUnmoved(ctx context.Context, shown string) (list []UnmovedCell, err error) {
	return list, c.into(ctx, http.MethodPost, PathUnmoved, url.Values{"shown": {shown}}, &list)
}

// Holdings asks for what Cleanup would end.
func (c *Client) Holdings(ctx context.Context) (h Holdings, err error) {
	return h, c.get(ctx, PathCleanup, nil, &h)
}

// Cleanup ends all that this Kip has made, within timeout, and calls each for
// every message as it comes. It returns what is left. The error is not nil if
// that is anything, or if it is not known. When ctx ends, Kip stops where it is.
func (c *Client) Cleanup(ctx context.Context, timeout time.Duration, each func(Progress)) (Holdings, error) {
	resp, err := c.ask(ctx, http.MethodPost, PathCleanup, url.Values{"timeout": {timeout.String()}})
	if err != nil {
		return Holdings{}, err
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for {
		var p Progress
		err := lines.Decode(&p)
		switch {
		case err != nil:
			return Holdings{}, fmt.Errorf("kip at %s has not said how the cleanup ended: %w", c.socket, err)
		case p.Error != "":
			if p.Holdings == nil {
				p.Holdings = &Holdings{}
			}
			return *p.Holdings, errors.New(p.Error)
		case p.Holdings != nil:
			return *p.Holdings, nil
		}
		each(p)
	}
}

func (c *Client) get(ctx context.Context, path string, query url.Values, into any) error {
	return c.into(ctx, http.MethodGet, path, query, into)
}

// into reads an answer.
func (c *Client) into(ctx context.Context, method, path string, query url.Values, into any) error {
	resp, err := c.ask(ctx, method, path, query)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of Kip at %s: %w", c.socket, err)
	}
	return nil
}

// ask returns an answer that is no error; the caller closes its body.
func (c *Client) ask(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	u := url.URL{
		Scheme:   "http",
		Host:     "kip",
		Path:     path,
		RawQuery: query.Encode(),
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, &noServerError{c.socket}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("socket %s: it is for Kip's own user only: %w", c.socket, fs.ErrPermission)
	}
	if err != nil {
		return nil, fmt.Errorf("ask Kip at %s: %w", c.socket, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	var p problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Error == "" {
		// Not Kip's own words: the path is not served.
		return nil, fmt.Errorf("kip at %s: %s %s: %s: is it of another version?", c.socket, method, path, resp.Status)
	}
	if resp.StatusCode == http.StatusNotFound {
		return nil, &notFoundError{p.Error}
	}
	return nil, fmt.Errorf("kip at %s: %s", c.socket, p.Error)
}

// noServerError is ErrNoServer with what to do.
type noServerError struct{ socket string }

func (e *noServerError) Error() string {
	return fmt.Sprintf("%v: %s: start Kip, or name its socket (%s in its etcd.internal.dataDir) with --socket or KIP_SOCKET; "+
		"in a cluster, run kipctl in Kip's own pod (kubectl exec)", ErrNoServer, e.socket, SocketName)
}
func (e *noServerError) Unwrap() error { return ErrNoServer }

// notFoundError is ErrNotFound in the server's words.
type notFoundError struct{ text string }

func (e *notFoundError) Error() string { return e.text }
func (e *notFoundError) Unwrap() error { return ErrNotFound }
