package node

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		// A connection of spdystream whose close fails waits a second for somebody who asks
		// for the error. Find waits half a second.
		err := leaks()
		for looks := 1; err != nil && looks < 4; looks++ {
			err = leaks()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func leaks() error {
	// A dynamic CA of the API server's libraries that is never run, or whose file is
	// missing, leaves its queue.
	return goleak.Find(goleak.IgnoreTopFunction("k8s.io/client-go/util/workqueue.(*delayingType[...]).waitingLoop"))
}
