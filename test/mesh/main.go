// Command mesh is the sidecar of a service mesh for the end-to-end tests: as small as one can be that takes what a pod sends and
// receives. An init container redirects connections to it. It learns from the kernel where each was going, and passes it on. It
// answers the kubelet's probes in the name of the application.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	outbound := flag.String("outbound", ":15001", "`address` at which connections arrive that the pod makes")
	inbound := flag.String("inbound", ":15006", "`address` at which connections arrive that are made to the pod")
	probes := flag.String("probes", ":15020", "`address` of /app-health/PORT/PATH, which asks the application, and of /ready")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := run(ctx, *outbound, *inbound, *probes); err != nil {
		fmt.Fprintln(os.Stderr, "mesh:", err)
		os.Exit(1)
	}
	fmt.Println("the proxy ends")
}

func run(ctx context.Context, outbound, inbound, probes string) error {
	failed := make(chan error, 3)
	for _, side := range []struct {
		name, address string
		// to is where a connection goes that was going to a place.
		to func(netip.AddrPort) netip.AddrPort
	}{
		{"outbound", outbound, func(a netip.AddrPort) netip.AddrPort { return a }},
		{"inbound", inbound, func(a netip.AddrPort) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
		}},
	} {
		l, err := net.Listen("tcp4", side.address)
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					failed <- err
					return
				}
				go pass(ctx, side.name, conn.(*net.TCPConn), side.to)
			}
		}()
	}
	server := &http.Server{Addr: probes, Handler: http.HandlerFunc(probe), ReadHeaderTimeout: time.Minute}
	defer server.Close()
	go func() { failed <- server.ListenAndServe() }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// pass copies a connection to where it was going, both ways.
func pass(ctx context.Context, side string, conn *net.TCPConn, to func(netip.AddrPort) netip.AddrPort) {
	defer conn.Close()
	was, err := destination(conn)
	if err != nil {
		fmt.Println(side, "from", conn.RemoteAddr(), "refused:", err)
		return
	}
	there, err := new(net.Dialer).DialContext(ctx, "tcp4", to(was).String())
	if err != nil {
		fmt.Println(side, "from", conn.RemoteAddr(), "to", was, "failed:", err)
		return
	}
	defer there.Close()
	fmt.Println(side, "from", conn.RemoteAddr(), "to", was)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(there, conn)
		_ = there.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(conn, there)
	_ = conn.CloseWrite()
	<-done
}

// destination returns where a redirected connection was going.
func destination(conn *net.TCPConn) (is netip.AddrPort, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return is, err
	}
	const originalDestination = 80 // SO_ORIGINAL_DST of linux/netfilter_ipv4.h, which answers a sockaddr_in
	var asked error
	if err := raw.Control(func(fd uintptr) {
		var answer *unix.IPv6Mreq // the type of the answer that is large enough
		if answer, asked = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDestination); asked == nil {
			b := answer.Multiaddr
			is = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4]))
		}
	}); err != nil {
		return is, err
	}
	if asked == nil && is.String() == conn.LocalAddr().String() {
		asked = errors.New("nobody redirected it")
	}
	return is, asked
}

// probe answers a kubelet's probe as the application answers it.
func probe(w http.ResponseWriter, r *http.Request) {
	what, app := strings.CutPrefix(r.URL.Path, "/app-health/")
	if !app {
		return // it is ready
	}
	port, path, _ := strings.Cut(what, "/")
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/"+path, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer resp.Body.Close()
	fmt.Println("probe of", what, "from", r.RemoteAddr, "answered", resp.StatusCode)
	w.WriteHeader(resp.StatusCode)
}
