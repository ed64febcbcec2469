package harness

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// reserved are what keeps ports for this process, until it ends.
var reserved struct {
	mu   sync.Mutex
	held []net.Listener
}

// Tests choose from ports that the kernel, by default, gives to no connection and to no listener
// that asks for any, and that are not those of Services.
const lowestPort, highestPort = 20000, 29000

// FreePort returns a TCP port that nobody listens on, and nor on those so far above it. Nobody
// takes them before the test does: no connection gets them by chance, and each other test that
// calls FreePort gets others, in whichever process.
func FreePort(above ...int) (int, error) {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	first := rand.IntN(highestPort - lowestPort)
	for n := range highestPort - lowestPort {
		port := lowestPort + (first+n)%(highestPort-lowestPort)
		held, ok := reserve(port)
		for _, more := range above {
			if ok {
				var also []net.Listener
				also, ok = reserve(port + more)
				held = append(held, also...)
			}
		}
		if ok {
			reserved.held = append(reserved.held, held...)
			return port, nil
		}
		for _, l := range held {
			_ = l.Close() // it was for others to see
		}
	}
	return 0, errors.New("find a free port: all are taken")
}

// reserve keeps a port from the tests of all processes, if nobody has or listens on it. What
// keeps it is a socket that has its name, and is gone with the process.
func reserve(port int) (held []net.Listener, ok bool) {
	mark, err := net.Listen("unix", "@kip-test-port-"+strconv.Itoa(port))
	if err != nil {
		return nil, false
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return []net.Listener{mark}, false
	}
	return []net.Listener{mark}, l.Close() == nil
}
