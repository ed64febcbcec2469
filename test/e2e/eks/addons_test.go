//go:build e2e

package eks

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/dev/registry"
)

// Of EKS' webhook. Source: github.com/aws/amazon-eks-pod-identity-webhook, README.
const (
	roleAnnotation = "eks.amazonaws.com/role-arn"
	tokenVolume    = "aws-iam-token"
	tokenFolder    = "/var/run/secrets/eks.amazonaws.com/serviceaccount"
	tokenAudience  = "sts.amazonaws.com"
	tokenSeconds   = 86400
)

// podIdentities serves EKS' webhook of roles for service accounts: a pod whose service account has the annotation gets a token, and the
// variables by which the SDK finds it. Besides it says where AWS is, which on EKS needs no saying.
func (s *space) podIdentities() {
	s.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		err := json.NewDecoder(r.Body).Decode(&review)
		if err == nil && review.Request == nil {
			err = errors.New("the review has no request")
		}
		if err == nil {
			review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
			review.Response.Patch, err = s.identify(review.Request)
		}
		if err == nil && review.Response.Patch != nil {
			review.Response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
		}
		if err == nil {
			err = json.NewEncoder(w).Encode(review)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	s.Cleanup(server.Close)
	configurations := world.Admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(s.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-identity-webhook"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "iam-for-pods.amazonaws.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL + "/mutate"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
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
}

// identify is the patch of a pod; nil for none.
func (s *space) identify(r *admissionv1.AdmissionRequest) ([]byte, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return nil, err
	}
	account, err := world.Admin.CoreV1().ServiceAccounts(r.Namespace).Get(s.Context(), pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	role := account.Annotations[roleAnnotation]
	if role == "" {
		return nil, nil
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: tokenAudience, ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: "token",
			},
		}}},
	}})
	for n := range pod.Spec.Containers {
		c := &pod.Spec.Containers[n]
		for _, v := range []corev1.EnvVar{
			{Name: "AWS_ENDPOINT_URL_STS", Value: world.Ready["ec2-https"]}, // the SDK asks STS there before it knows AWS_ENDPOINT_URL
			{Name: "AWS_STS_REGIONAL_ENDPOINTS", Value: "regional"},
			{Name: "AWS_DEFAULT_REGION", Value: machines.Region},
			{Name: "AWS_REGION", Value: machines.Region},
			{Name: "AWS_ROLE_ARN", Value: role},
			{Name: "AWS_WEB_IDENTITY_TOKEN_FILE", Value: tokenFolder + "/token"},
			{Name: "AWS_ENDPOINT_URL", Value: world.Ready["ec2-https"]},
			{Name: "AWS_CA_BUNDLE", Value: "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"},
		} {
			if !slices.ContainsFunc(c.Env, func(has corev1.EnvVar) bool { return has.Name == v.Name }) {
				c.Env = append(c.Env, v)
			}
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: tokenVolume, MountPath: tokenFolder, ReadOnly: true})
	}
	return json.Marshal([]map[string]any{
		{"op": "add", "path": "/spec/volumes", "value": pod.Spec.Volumes},
		{"op": "add", "path": "/spec/containers", "value": pod.Spec.Containers},
	})
}

// imageTag is the tag of Kip's image that was built.
func (s *space) imageTag() string {
	s.Helper()
	folder := filepath.Join(world.Bin, "images", "kip")
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		s.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		s.Fatal(err)
	}
	for _, d := range manifest.Manifests {
		if tag, err := name.NewTag(d.Annotations[registry.RefName]); err == nil {
			return tag.TagStr()
		}
	}
	s.Fatalf("no image in %s has a name with a tag: make local-images builds it", folder)
	return ""
}
