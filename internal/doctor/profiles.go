package doctor

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/finding"
)

// Paths of the webhooks that profiles need: internal/admission.
const (
	profiledPath = "/profiled-pods"
	bindingsPath = "/bindings"
)

// profiles says whether the API server asks Kip about the pods that profiles may choose.
func (k ports) profiles(ctx context.Context) []finding.Finding {
	configured, err := k.webhookConfiguration(ctx)
	if err != nil {
		return one(unasked("read the webhooks that admission.profiles need", err))
	}
	costs := slices.ContainsFunc(k.c.Provider.Admission.Profiles, func(p config.Profile) bool { return p.DeletionCost() != 0 })
	switch {
	case !asks(configured, profiledPath):
		return one(finding.Fail(k.profileWebhooks(configured),
			"admission.profiles have no effect: the API server does not ask Kip about pods, since no webhook has the path %s", profiledPath))
	case costs && !asks(configured, bindingsPath):
		return one(finding.Fail(k.profileWebhooks(configured),
			"podDeletionCost of admission.profiles has no effect: no webhook has the path %s", bindingsPath))
	}
	for _, p := range k.c.Provider.Admission.Profiles {
		for _, namespace := range p.Namespaces {
			if !asksAbout(configured, profiledPath, namespace) {
				cure := strings.Replace(k.profileWebhooks(configured), "apply --server-side ", "apply --server-side --force-conflicts ", 1)
				return one(finding.Fail(cure, "profile %s names namespace %s, and the API server does not ask Kip about pods there", p.Name, namespace))
			}
		}
	}
	return one(finding.Fine("the API server asks Kip about the pods that %d profiles may choose", len(k.c.Provider.Admission.Profiles)))
}

// asks reports whether a webhook has this path.
func asks(c *admissionregistrationv1.MutatingWebhookConfiguration, path string) bool {
	return c != nil && slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return pathOf(w.ClientConfig) == path
	})
}

// pathOf is the path at which a webhook is called; "" for none.
func pathOf(at admissionregistrationv1.WebhookClientConfig) string {
	switch {
	case at.Service != nil:
		return ptr.Deref(at.Service.Path, "")
	case at.URL != nil:
		if parsed, err := url.Parse(*at.URL); err == nil {
			return parsed.Path
		}
	}
	return ""
}

// asksAbout reports whether a webhook with this path is asked about pods of a namespace, as far as its name decides that.
func asksAbout(c *admissionregistrationv1.MutatingWebhookConfiguration, path, namespace string) bool {
	return strings.HasSuffix(namespace, "*") || slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return pathOf(w.ClientConfig) == path && (w.NamespaceSelector == nil ||
			!slices.ContainsFunc(w.NamespaceSelector.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
				in := slices.Contains(e.Values, namespace)
				return e.Key == corev1.LabelMetadataName && (e.Operator == metav1.LabelSelectorOpNotIn && in ||
					e.Operator == metav1.LabelSelectorOpIn && !in)
			}))
	})
}

// profileWebhooks is the command that makes the webhooks of the profiles in Kip's provider.yaml. Helm makes them of the same profiles in
// its values. Without a release the chart alone renders them, and nothing else of it is applied.
func (k ports) profileWebhooks(c *admissionregistrationv1.MutatingWebhookConfiguration) string {
	if len(k.pods) == 0 {
		return findKip
	}
	name := configMapOf(&k.pods[0])
	if name == "" {
		name = "NAME"
	}
	const values = `(echo config:; kubectl get configmap -n %s %s -o jsonpath='{.data.provider\.yaml}' | %s) | `
	if k.release != "" {
		// awk takes admission alone: the chart refuses some keys that it writes itself.
		return fmt.Sprintf(values+"helm upgrade %s deploy/helm/kip --namespace %s --reuse-values --values - --force-conflicts # Helm 3 does so without the last flag",
			k.Namespace(), name, `awk '/^[^ #-]/ {on = /^admission:/} on {print "  " $0}'`, k.release, k.Namespace())
	}
	release, full, node := "kip", "kip", nodeNameOf(k.pods)
	if c != nil {
		if is := c.Labels["app.kubernetes.io/instance"]; is != "" {
			release, full = is, is
		}
		node = c.Name
		for _, w := range c.Webhooks {
			if at := w.ClientConfig.Service; at != nil {
				full = strings.TrimSuffix(at.Name, "-webhook")
			}
		}
	}
	return fmt.Sprintf(values+"helm template %s deploy/helm/kip --namespace %s --set existingConfigMap=%s,fullnameOverride=%s,nodeName=%s,nodeCount=64 "+
		"--values - --show-only templates/webhook.yaml | kubectl apply --server-side --field-manager=kip-profiles -f -",
		k.Namespace(), name, "sed 's/^/  /'", release, k.Namespace(), name, full, node)
}
