package eks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// registryLimit bounds the question to the registry of Kip's image.
const registryLimit = 15 * time.Second

// checkImage asks the registry whether it has Kip's image, with the credentials that docker has on this machine. A registry that refuses
// or does not answer proves nothing, since the node that pulls the image has its own credentials and its own network: ghcr.io refuses an
// image that it does not have as it does a private one.
func (d *Deployment) checkImage(ctx context.Context) (problems []string) {
	reference, err := imagename.ParseReference(d.image())
	if err != nil {
		return []string{fmt.Sprintf("the image %s (IMAGE_REGISTRY, IMAGE_TAG): %v", d.image(), err)}
	}
	d.Say("Asking %s for the image %s", reference.Context().RegistryStr(), d.image())
	ctx, cancel := context.WithTimeout(ctx, registryLimit)
	defer cancel()
	options := []remote.Option{
		remote.WithContext(ctx),
		remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
	}
	if d.Registries != nil {
		options = append(options, remote.WithTransport(d.Registries))
	}
	_, err = remote.Head(reference, options...)
	refused, answers := errors.AsType[*transport.Error](err)
	switch {
	case err == nil:
		return nil
	case answers && refused.StatusCode == http.StatusNotFound && refused.Request != nil &&
		strings.Contains(refused.Request.URL.Path, "/manifests/"): // else it is no registry
		return []string{fmt.Sprintf("IMAGE_TAG is %q: there is no image %s: want a tag that %s has (docs/releases.md), or another IMAGE_REGISTRY",
			d.Tag, d.image(), reference.Context().Name())}
	}
	d.note([]string{fmt.Sprintf("not checked: whether there is an image %s: %v", d.image(), err)})
	return nil
}
