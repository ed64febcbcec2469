package configs

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/elotl/kip/internal/agentapi"
)

// ImagePlugin is the file name of itzo as the plugin by which the kubelet asks for what pulls
// an image (package imageplugin).
const ImagePlugin = "itzo-image-credentials"

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

// ImageProvidersFile renders which plugin the kubelet asks for which images: one only, which
// asks Kip at server, the local API endpoint, as the kubelet itself does. The arguments name
// files, and hold nothing secret.
func ImageProvidersFile(c agentapi.Config, server string, f Files) ([]byte, error) {
	b, err := json.MarshalIndent(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1",
		"kind":       "CredentialProviderConfig",
		"providers": []any{map[string]any{
			"name":        ImagePlugin,
			"apiVersion":  "credentialprovider.kubelet.k8s.io/v1",
			"matchImages": c.ImagesOfCloud,
			// What is answered says itself for how long.
			"defaultCacheDuration": "0s",
			"args": []string{
				"--" + ImagePluginServer + "=" + server,
				"--" + ImagePluginCA + "=" + f.CA,
				"--" + ImagePluginCert + "=" + f.ClientCert,
				"--" + ImagePluginKey + "=" + f.ClientKey,
			},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the kubelet's image credential providers: %w", err)
	}
	return append(b, '\n'), nil
}
