package container

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/elotl/kip/image/spdx"
)

// attachment is an OCI artifact with one file, attached to an image by its subject:
// https://github.com/opencontainers/image-spec/blob/main/manifest.md#guidelines-for-artifact-usage
type attachment struct {
	manifest []byte
	layer    v1.Layer
}

var _ partial.CompressedImageCore = attachment{}

// Of an artifact without a configuration.
const (
	emptyConfigType = types.MediaType("application/vnd.oci.empty.v1+json")
	emptyConfig     = "{}"
)

// attach returns the artifact that attaches a list of software to an image.
func attach(to v1.Image, software []byte, created time.Time) (v1.Image, error) {
	subject, err := partial.Descriptor(to)
	if err != nil {
		return nil, err
	}
	layer := static.NewLayer(software, spdx.MediaType)
	content, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	config := v1.Descriptor{MediaType: emptyConfigType, Size: int64(len(emptyConfig)), Data: []byte(emptyConfig)}
	if config.Digest, _, err = v1.SHA256(bytes.NewReader(config.Data)); err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  spdx.MediaType,
		Config:        config,
		Layers:        []v1.Descriptor{*content},
		Subject:       &v1.Descriptor{MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest},
		Annotations:   map[string]string{"org.opencontainers.image.created": created.UTC().Format(time.RFC3339)},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(attachment{manifest, layer})
}

// RawConfigFile implements partial.CompressedImageCore.
func (a attachment) RawConfigFile() ([]byte, error) { return []byte(emptyConfig), nil }

// MediaType implements partial.CompressedImageCore.
func (a attachment) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest implements partial.CompressedImageCore.
func (a attachment) RawManifest() ([]byte, error) { return a.manifest, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (a attachment) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if d, err := a.layer.Digest(); err != nil || d != h {
		return nil, fmt.Errorf("the artifact has no blob %s", h)
	}
	return a.layer, nil
}
