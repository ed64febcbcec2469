//go:build e2e

package pods

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// inject has a webhook change each pod that is made in the namespace, as a mesh's or a vault's does.
func (s *space) inject(change func(*corev1.Pod)) {
	s.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var pod corev1.Pod
		err := json.NewDecoder(r.Body).Decode(&review)
		if err == nil && review.Request == nil {
			err = errors.New("the review has no request")
		}
		if err == nil {
			err = json.Unmarshal(review.Request.Object.Raw, &pod)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		change(&pod)
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
		if review.Response.Patch, err = json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": pod.Spec}}); err == nil {
			err = json.NewEncoder(w).Encode(review)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	s.Cleanup(server.Close)
	hooks := world.Admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	name := "injector-" + s.NS
	if _, err := hooks.Create(s.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "sidecars.injector.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL + "/inject"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.NS}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(sync.OnceFunc(func() {
		if err := hooks.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	}))
	// The API server hears of it a moment later.
	s.Eventually("the webhook is asked", func(ctx context.Context) error {
		pod, err := world.Admin.CoreV1().Pods(s.NS).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "dry", Labels: map[string]string{injected: "true"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "any"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(pod.Spec.InitContainers) == 0 {
			err = errors.New("the pod has nothing injected")
		}
		return err
	})
}

// injected is the label of pods that want it.
const injected = "injected"
