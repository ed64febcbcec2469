package node

import (
	"testing"
	"time"
)

// Each bound of the kubelet port, where it comes from, and the largest that a node does. Tests drive them:
// TestACommandAsLongAsANodeTakesReachesTheKubelet and TestAHeaderThatIsLargerThanAnyIsRefused drive mostHeader,
// TestAStrangerIsReadSoFar mostSent, TestTheOldestOfTooManyStrangersGoes mostStrangers,
// TestLargeHeadersOfStrangersKeepOutNobodyElse smallHeader and placesOfOne, TestAPodThatHasJustBeenBoundIsWaitedFor
// bindingTimeout.
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
		{"mostStrangers", mostStrangers, 1000, "as many exec as an API server may begin at once; those that are known do not count"},
		{"placeTimeout", int64(placeTimeout), int64(reviewTimeout), "the API server's answer about who has the place"},
		{"bindingTimeout", int64(bindingTimeout), int64(100 * time.Millisecond), "a watch that lags"},
	} {
		if b.bound < b.honest {
			t.Errorf("%s is %d, and a node does %d: %s", b.name, b.bound, b.honest, b.source)
		}
	}
}
