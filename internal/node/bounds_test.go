package node

import (
	"testing"
	"time"
)

// Each bound of the kubelet port, where it comes from, and the largest that a node does. That a command as long as Linux
// takes one arrives, TestACommandAsLongAsANodeTakesReachesTheKubelet tries.
func TestEachBoundLeavesRoomForWhatANodeDoes(t *testing.T) {
	const (
		exec  = 3*(128<<10) + 2<<10 // MAX_ARG_STRLEN of include/uapi/linux/binfmts.h, encoded, and the rest of the header
		token = 8 << 10             // of a service account, with names of 253
	)
	for _, b := range []struct {
		name          string
		bound, honest int64
		source        string
	}{
		{"mostHeader", mostHeader, 1 << 20, "MaxHeaderBytes, pkg/kubelet/server/server.go"},
		{"mostHeader", mostHeader, exec + token, "an exec of 128 KiB"},
		{"mostSent", mostSent, mostHeader + mostHeader/16 + 16<<10, "a header, what TLS adds, and a client's certificates"},
		{"smallHeader", smallHeader, token, "all but commands: a request without waits for nobody"},
		{"placesOfOne", placesOfOne, 1, "an API server whose next one is known in a moment; the others wait"},
		{"mostStrangers", mostStrangers, 1000, "as many exec as an API server may begin at once; those that are known do not count"},
		{"placeTimeout", int64(placeTimeout), int64(reviewTimeout), "the API server's answer about who has the place"},
		{"bindingTimeout", int64(bindingTimeout), int64(100 * time.Millisecond), "a watch that lags"},
	} {
		if b.bound < b.honest {
			t.Errorf("%s is %d, and a node does %d: %s", b.name, b.bound, b.honest, b.source)
		}
	}
}
