package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
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

func (c *Client) get(ctx context.Context, path string, query url.Values, into any) error {
	u := url.URL{Scheme: "http", Host: "kip", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: %s", ErrNoServer, c.socket)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("socket %s: it is for Kip's own user only: %w", c.socket, fs.ErrPermission)
	}
	if err != nil {
		return fmt.Errorf("ask Kip at %s: %w", c.socket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			return fmt.Errorf("read the answer of Kip at %s: %w", c.socket, err)
		}
		return nil
	}
	var p problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Error == "" {
		p.Error = resp.Status
	}
	if resp.StatusCode == http.StatusNotFound {
		return &notFoundError{p.Error}
	}
	return fmt.Errorf("kip at %s: %s", c.socket, p.Error)
}

// notFoundError is ErrNotFound in the server's words.
type notFoundError struct{ text string }

func (e *notFoundError) Error() string { return e.text }
func (e *notFoundError) Unwrap() error { return ErrNotFound }
