package admission

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// configurations are the objects by which API servers know of webhooks. They are read and
// written as they are: what a newer API server has in them stays.
var configurations = admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations")

var errNotInstalled = errors.New("there is no such MutatingWebhookConfiguration")

// errUnasked says which part of the profiles has no effect, since no webhook asks about it.
type errUnasked string

func (e errUnasked) Error() string { return string(e) }

// clientConfigs are how the webhooks of a configuration are called.
func clientConfigs(configuration *unstructured.Unstructured) ([]map[string]any, error) {
	hooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return nil, err
	}
	var all []map[string]any
	for _, h := range hooks {
		hook, ok := h.(map[string]any)
		if !ok {
			return nil, errors.New("a webhook is no object")
		}
		config, _, err := unstructured.NestedMap(hook, "clientConfig")
		if err != nil {
			return nil, err
		}
		all = append(all, config)
	}
	return all, nil
}

// hostsOf are the names and addresses at which webhooks are called.
func hostsOf(configs []map[string]any) ([]string, error) {
	var hosts []string
	for _, config := range configs {
		name, _, _ := unstructured.NestedString(config, "service", "name")
		namespace, _, _ := unstructured.NestedString(config, "service", "namespace")
		host := name + "." + namespace + ".svc"
		if at, _, _ := unstructured.NestedString(config, "url"); at != "" {
			parsed, err := url.Parse(at)
			if err != nil {
				return nil, err
			}
			host = parsed.Hostname()
		}
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil
}

// unasked is an error if the API server does not ask what profiles, or sets that run beside pods, need.
func (w *Webhook) unasked(configuration *unstructured.Unstructured) error {
	configs, err := clientConfigs(configuration)
	if err != nil {
		return err
	}
	asks := func(path string) bool {
		return slices.ContainsFunc(configs, func(config map[string]any) bool {
			at, _, _ := unstructured.NestedString(config, "service", "path")
			if text, _, _ := unstructured.NestedString(config, "url"); text != "" {
				if parsed, err := url.Parse(text); err == nil {
					at = parsed.Path
				}
			}
			return at == path
		})
	}
	return errors.Join(w.cfg.Profiles.unasked(asks), w.cfg.Sets.unasked(asks))
}

// unasked is an error if the API server does not ask what profiles need.
func (ps Profiles) unasked(asks func(path string) bool) error {
	const want = ": want the webhooks that the chart makes of config.admission.profiles, or those of docs/profiles.md"
	switch {
	case len(ps.List) == 0:
	case !asks(profiledPath):
		return errUnasked("admission.profiles have no effect: no webhook of the MutatingWebhookConfiguration has the path " + profiledPath + want)
	case ps.cost() && !asks(bindingsPath):
		return errUnasked("podDeletionCost of admission.profiles has no effect: no webhook of the MutatingWebhookConfiguration has the path " +
			bindingsPath + want)
	}
	return nil
}

// trusting returns the configuration as it trusts these CAs (PEM), and no others; nil if it does.
func trusting(configuration *unstructured.Unstructured, ca []byte) (*unstructured.Unstructured, error) {
	bundle := base64.StdEncoding.EncodeToString(ca)
	trusted := configuration.DeepCopy()
	hooks, _, err := unstructured.NestedSlice(trusted.Object, "webhooks")
	if err != nil {
		return nil, err
	}
	changed := false
	for i, h := range hooks {
		hook, ok := h.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("webhook %d is no object", i)
		}
		have, _, err := unstructured.NestedString(hook, "clientConfig", "caBundle")
		if err != nil {
			return nil, err
		}
		if have == bundle {
			continue
		}
		changed = true
		if err := unstructured.SetNestedField(hook, bundle, "clientConfig", "caBundle"); err != nil {
			return nil, err
		}
	}
	if !changed {
		return nil, nil
	}
	return trusted, unstructured.SetNestedSlice(trusted.Object, hooks, "webhooks")
}
