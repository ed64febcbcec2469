package v1

import (
	_ "embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed crd.yaml
var crdYAML []byte

// CustomResourceDefinition returns the definition of the Cell resource, which
// Kip installs when it starts.
func CustomResourceDefinition() (*apiextensionsv1.CustomResourceDefinition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crdYAML, &crd); err != nil {
		return nil, fmt.Errorf("parse the embedded definition of cells.kip.elotl.co: %w", err)
	}
	return &crd, nil
}
