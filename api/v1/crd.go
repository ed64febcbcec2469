package v1

import (
	_ "embed"
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// CRDManifest is the definition of the Cell resource, as YAML.
//
//go:embed crd.yaml
var CRDManifest []byte

// AnnotationCRDVersion holds the version of a definition of the Cell resource, a whole number. A higher one is newer.
const AnnotationCRDVersion = "kip.elotl.co/crd-version"

// CRDVersion returns the version of a definition of the Cell resource. It is 0 without the annotation: Kip wrote such
// definitions before they had versions.
func CRDVersion(crd *apiextensionsv1.CustomResourceDefinition) (int, error) {
	value, ok := crd.Annotations[AnnotationCRDVersion]
	if !ok {
		return 0, nil
	}
	version, err := strconv.Atoi(value)
	if err != nil || version < 1 {
		return 0, fmt.Errorf("definition %s has annotation %s %q: it must be a whole number from 1", crd.Name, AnnotationCRDVersion, value)
	}
	return version, nil
}

// CustomResourceDefinition returns the definition of the Cell resource that this build has.
func CustomResourceDefinition() (*apiextensionsv1.CustomResourceDefinition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(CRDManifest, &crd); err != nil {
		return nil, fmt.Errorf("parse the embedded definition of cells.kip.elotl.co: %w", err)
	}
	return &crd, nil
}
