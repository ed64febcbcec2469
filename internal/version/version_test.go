package version

import (
	"os"
	"strings"
	"testing"
)

func TestKubernetesIsTheVersionInGoMod(t *testing.T) {
	data, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "k8s.io/kubernetes "+Kubernetes+"\n") {
		t.Fatalf("go.mod does not require k8s.io/kubernetes %s", Kubernetes)
	}
}
