package doctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestAPathOfTheAPIServerIsReadWithItsStatusAndItsTime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", now.Format(http.TimeFormat))
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, r.URL.Path)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL + "/below", Transport: server.Client().Transport}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	get, err := Raw(config, kube.CoreV1().RESTClient())
	if err != nil {
		t.Fatal(err)
	}
	got, err := get(t.Context(), "/version")
	if err != nil || got.Status != http.StatusTeapot || !got.Date.Equal(now) || string(got.Body) != "/below/version" {
		t.Errorf("%+v %s, %v", got, got.Body, err)
	}
}
