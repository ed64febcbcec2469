package kip

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAKubeconfigThatCannotBeReadIsNamed(t *testing.T) {
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\x00\x01 not yaml: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{garbage, "/none/kubeconfig"} {
		_, err := connect(Options{Kubeconfig: file, NodeName: "kip-0"}, unmeasured)
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := connect(Options{NodeName: "kip-0"}, unmeasured)
	if err == nil || !strings.Contains(err.Error(), "there is no --kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
