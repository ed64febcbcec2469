package configs

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/credentialproviders"
)

// ImagePlugin is the file name of itzo as the plugin by which the kubelet asks for what pulls
// an image (package imageplugin).
const ImagePlugin = credentialproviders.OfCloud

// Flags of that plugin.
const (
	ImagePluginServer = "server"
	ImagePluginCA     = "ca"
	ImagePluginCert   = "cert"
	ImagePluginKey    = "key"
)

// maxImagePatterns bounds what Kip may say of images.
const maxImagePatterns = 256

// imagePatterns are hosts, with * for a part or some of it, as the kubelet's matchImages takes.
var imagePatterns = regexp.MustCompile(`^[a-z0-9*]([a-z0-9*-]*[a-z0-9*])?(\.[a-z0-9*]([a-z0-9*-]*[a-z0-9*])?)+$`)

// ImageProvidersFile renders which plugins the kubelet asks for which images: for those of the cloud one that
// asks Kip at server, the local API endpoint, as the kubelet itself does, and the operator's. The arguments of the first name
// files, and hold nothing secret.
func ImageProvidersFile(c agentapi.Config, server string, f Files) ([]byte, error) {
	var providers []any
	if len(c.ImagesOfCloud) > 0 {
		providers = append(providers, map[string]any{
			"name":        ImagePlugin,
			"apiVersion":  credentialproviders.V1,
			"matchImages": c.ImagesOfCloud,
			// What is answered says itself for how long.
			"defaultCacheDuration": "0s",
			"args": []string{
				"--" + ImagePluginServer + "=" + server,
				"--" + ImagePluginCA + "=" + f.CA,
				"--" + ImagePluginCert + "=" + f.ClientCert,
				"--" + ImagePluginKey + "=" + f.ClientKey,
			},
		})
	}
	for _, p := range c.CredentialProviders {
		one := map[string]any{
			"name":                 p.Name,
			"apiVersion":           p.APIVersion,
			"matchImages":          p.MatchImages,
			"defaultCacheDuration": p.DefaultCacheDuration.String(),
		}
		if len(p.Args) > 0 {
			one["args"] = p.Args
		}
		if len(p.Env) > 0 {
			one["env"] = p.Env
		}
		if p.TokenAttributes != nil {
			one["tokenAttributes"] = p.TokenAttributes
		}
		providers = append(providers, one)
	}
	b, err := json.MarshalIndent(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1",
		"kind":       "CredentialProviderConfig",
		"providers":  providers,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the kubelet's image credential providers: %w", err)
	}
	return append(b, '\n'), nil
}
