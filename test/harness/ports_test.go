package harness

import (
	"net"
	"strconv"
	"testing"
)

func TestAFreePortIsGivenOnce(t *testing.T) {
	port, err := FreePort(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []int{port, port + 1} {
		held, ok := reserve(taken)
		for _, l := range held {
			_ = l.Close()
		}
		if ok {
			t.Errorf("port %d is given twice", taken)
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(taken))
		if err != nil {
			t.Fatalf("who has got the port cannot listen on it: %v", err)
		}
		defer l.Close()
	}
	// One that others listen on is given to nobody.
	other, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	held, ok := reserve(other.Addr().(*net.TCPAddr).Port)
	for _, l := range held {
		_ = l.Close()
	}
	if ok {
		t.Error("a port on which somebody listens is given to others")
	}
}
