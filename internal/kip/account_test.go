package kip

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestKipMakesVolumesAsTheAccountThatItIsGiven(t *testing.T) {
	var as string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { as = r.Header.Get("Impersonate-User") }))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		CurrentContext: "c",
	}, file); err != nil {
		t.Fatal(err)
	}
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	api, err := connect(Options{
		Kubeconfig: file, NodeName: "kip-0", QPS: 1, Burst: 1, Provisioner: types.NamespacedName{Namespace: "apps", Name: "of-disks"},
	}, unmeasured)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.asProvisioner.CoreV1().PersistentVolumes().Get(t.Context(), "a", metav1.GetOptions{}); err == nil {
		t.Error("an empty answer is a volume")
	}
	if as != "system:serviceaccount:apps:of-disks" {
		t.Errorf("Kip asks as %q", as)
	}
}
