package eks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/elotl/kip/internal/cloud/aws/images"
)

// registryLimit bounds the questions to the registry of Kip's image: a token, an index, a manifest and a file.
const registryLimit = time.Minute

// asking says who asks registries, and by what.
func (d *Deployment) asking() []remote.Option {
	options := []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if d.Registries != nil {
		options = append(options, remote.WithTransport(d.Registries))
	}
	return options
}

// imageToPublish finds a boot image: in the folder, else in the registry, beside Kip's own image.
func (d *Deployment) imageToPublish(ctx context.Context, arch string) (images.Image, error) {
	image, err := images.InFolder(d.Folder, arch, "")
	if !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	d.Say("Asking for the boot image %s", d.cellImage())
	ctx, cancel := context.WithTimeout(ctx, registryLimit)
	defer cancel()
	image, failed := images.InRegistry(ctx, d.cellImage(), arch, d.asking()...)
	if failed != nil {
		return image, errors.Join(err, failed)
	}
	return image, nil
}

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
	_, err = remote.Head(reference, append(d.asking(), remote.WithContext(ctx), remote.WithRetryBackoff(remote.Backoff{Steps: 1}))...)
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
