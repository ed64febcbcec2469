package loopback

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestConnectionsTakeNoPortOfTheOwnAddress(t *testing.T) {
	l, err := net.Listen("tcp", net.JoinHostPort(Own().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	from := c.LocalAddr().(*net.TCPAddr)
	if from.AddrPort().Addr() == Own() {
		t.Errorf("the connection is from %s, whose ports are for listeners", from)
	}
	same, err := net.Listen("tcp", (&net.TCPAddr{IP: Own().AsSlice(), Port: from.Port}).String())
	if err != nil {
		t.Fatalf("the port of a connection is not free there: %v", err)
	}
	same.Close()
}

func TestARefusedPortIsKept(t *testing.T) {
	at := Refused(t)
	if c, err := net.Dial("tcp", at.String()); !errors.Is(err, unix.ECONNREFUSED) {
		if err == nil {
			c.Close()
		}
		t.Errorf("%v; want it refused", err)
	}
	if l, err := net.Listen("tcp", at.String()); !errors.Is(err, unix.EADDRINUSE) {
		if err == nil {
			l.Close()
		}
		t.Errorf("%v; want it taken", err)
	}
}
