package tunnel

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
)

// benchmarkCells in the environment makes this binary the cells' end of the
// benchmarks, so that what Kip's end costs is measured alone: it reads an array
// of user data, writes an address a line, and serves until its input ends.
const benchmarkCells = "KIP_TUNNEL_BENCHMARK_CELLS"

func runBenchmarkCells() bool {
	if os.Getenv(benchmarkCells) == "" {
		return false
	}
	if err := serveBenchmarkCells(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func serveBenchmarkCells() error {
	dir, err := os.MkdirTemp("", "cells")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var all []agentapi.UserData
	in := json.NewDecoder(os.Stdin)
	if err := in.Decode(&all); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, ud := range all {
		c, err := NewCell(CellConfig{
			UserData: ud, StateDir: filepath.Join(dir, ud.CellID), Handler: says("agent"),
			Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		wg.Go(func() { _ = c.Serve(ctx, l) })
		fmt.Println(l.Addr())
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startBenchmarkCells returns cells in a process of their own.
func startBenchmarkCells(b *testing.B, a *pki.Authority, n int) []Target {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchmarkCells+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	targets := make([]Target, n)
	all := make([]agentapi.UserData, n)
	for i := range n {
		token := pki.NewToken()
		id := fmt.Sprintf("c-%d", i)
		targets[i] = Target{CellID: id, Token: token}
		all[i] = agentapi.UserData{CellID: id, CAHash: a.Hash(), Token: token.Reveal()}
	}
	if err := json.NewEncoder(in).Encode(all); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for i := range n {
		if !lines.Scan() {
			b.Fatalf("the cells' process ended: %v", lines.Err())
		}
		targets[i].Addr = netip.MustParseAddrPort(lines.Text())
	}
	return targets
}

func benchmarkDialer(b *testing.B) *Dialer {
	b.Helper()
	a, err := pki.New(time.Now)
	if err != nil {
		b.Fatal(err)
	}
	d, err := NewDialer(DialerConfig{Authority: a, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

func spendNothing(context.Context, string) error { return nil }

// usage is what Kip's end holds now.
func usage() (bytes, goroutines float64) {
	runtime.GC()
	runtime.GC() // the pools are emptied by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse), float64(runtime.NumGoroutine())
}

// BenchmarkIdleSession reports what an idle session costs Kip: after its join,
// and with the h2 connection that it has for a while after requests.
func BenchmarkIdleSession(b *testing.B) {
	const n = 400
	d := benchmarkDialer(b)
	targets := startBenchmarkCells(b, d.authorities.Signing, n)
	for b.Loop() {
		before, gBefore := usage()
		sessions := make([]*Session, n)
		began := time.Now()
		for i, t := range targets {
			s, err := d.Keep(context.Background(), t, http.NotFoundHandler(), spendNothing)
			if err != nil {
				b.Fatal(err)
			}
			sessions[i] = s
		}
		for _, s := range sessions {
			<-s.Ready()
		}
		took := time.Since(began)
		idle, gIdle := usage()
		for _, s := range sessions {
			if _, _, err := tryGet(s.Conn(), "/"); err != nil {
				b.Fatal(err)
			}
		}
		used, gUsed := usage()
		b.ReportMetric((idle-before)/n, "bytes/idle-session")
		b.ReportMetric((gIdle-gBefore)/n, "goroutines/idle-session")
		b.ReportMetric((used-before)/n, "bytes/used-session")
		b.ReportMetric((gUsed-gBefore)/n, "goroutines/used-session")
		b.ReportMetric(n/took.Seconds(), "sessions/s")
		for _, s := range sessions {
			s.Close()
		}
	}
}

// BenchmarkRequest is one small request of Kip to an agent, one after another.
func BenchmarkRequest(b *testing.B) {
	d := benchmarkDialer(b)
	t := startBenchmarkCells(b, d.authorities.Signing, 1)[0]
	s, err := d.Keep(context.Background(), t, http.NotFoundHandler(), spendNothing)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	<-s.Ready()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := tryGet(s.Conn(), "/"); err != nil {
			b.Fatal(err)
		}
	}
}
