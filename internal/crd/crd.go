package crd

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	apiv1 "github.com/elotl/kip/api/v1"
)

// ErrNotServed reports that the cluster has the definition, but that its API server does not serve cells yet.
var ErrNotServed = errors.New("the API server does not serve cells." + apiv1.GroupVersion.Group + " yet")

// OlderError reports that the definition in the cluster is older than this build's. The API server then drops the fields of
// cells that it does not know.
type OlderError struct{ Has, Wants int }

func (e *OlderError) Error() string {
	return fmt.Sprintf("the definition of cells.%s in this cluster has version %d, older than %d", apiv1.GroupVersion.Group, e.Has, e.Wants)
}

// Check reports whether cells can be written. It returns nil if the API server serves them by this build's definition or a
// newer one, an [OlderError] if by an older one, [ErrNotServed] while it does not serve them, and else the API server's error:
// NotFound without a definition.
func Check(ctx context.Context, crds apiextensionsclient.CustomResourceDefinitionInterface) error {
	want, err := apiv1.CustomResourceDefinition()
	if err != nil {
		return err
	}
	have, err := crds.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the definition %s: %w", want.Name, err)
	}
	if !served(have) {
		return ErrNotServed
	}
	wants, err := apiv1.CRDVersion(want)
	if err != nil {
		return err
	}
	has, err := apiv1.CRDVersion(have)
	if err != nil {
		return err
	}
	if has < wants {
		return &OlderError{Has: has, Wants: wants}
	}
	return nil
}

func served(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

// Outcome is what Update found and left.
type Outcome struct {
	Found bool `json:"found"` // whether there was a definition
	Ours  bool `json:"ours"`  // whether it is this build's now
	// The versions in the cluster, before and after.
	Before int `json:"before"`
	After  int `json:"after"`
}

// Try has the API server check what Update would do, and changes nothing.
func Try(ctx context.Context, crds apiextensionsclient.CustomResourceDefinitionInterface) error {
	want, err := apiv1.CustomResourceDefinition()
	if err != nil {
		return err
	}
	wants, err := apiv1.CRDVersion(want)
	if err != nil {
		return err
	}
	_, err = put(ctx, crds, want, wants, metav1.DryRunAll)
	return err
}

// put creates a definition, or replaces one that is not newer.
func put(ctx context.Context, crds apiextensionsclient.CustomResourceDefinitionInterface, want *apiextensionsv1.CustomResourceDefinition,
	wants int, dryRun ...string,
) (out Outcome, err error) {
	crossed := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	if err := retry.OnError(retry.DefaultBackoff, crossed, func() error {
		have, err := crds.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			out = Outcome{Ours: true, After: wants}
			_, err = crds.Create(ctx, want, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
		if err != nil {
			return err
		}
		has, err := apiv1.CRDVersion(have)
		if err != nil {
			return err
		}
		out = Outcome{Found: true, Ours: has <= wants, Before: has, After: max(has, wants)}
		if has > wants {
			return nil
		}
		update := have.DeepCopy()
		update.Spec = want.Spec
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, apiv1.AnnotationCRDVersion, want.Annotations[apiv1.AnnotationCRDVersion])
		_, err = crds.Update(ctx, update, metav1.UpdateOptions{DryRun: dryRun})
		return err
	}); err != nil {
		return Outcome{}, fmt.Errorf("install the definition %s: %w", want.Name, err)
	}
	return out, nil
}

// Update installs this build's definition, or replaces an older one or one of the same version. It leaves a newer definition
// alone. Labels and annotations of others stay. Several may call it at once. It returns when the API server serves cells,
// and fails if that takes more than a minute.
func Update(ctx context.Context, crds apiextensionsclient.CustomResourceDefinitionInterface) (Outcome, error) {
	want, err := apiv1.CustomResourceDefinition()
	if err != nil {
		return Outcome{}, err
	}
	wants, err := apiv1.CRDVersion(want)
	if err != nil {
		return Outcome{}, err
	}
	out, err := put(ctx, crds, want, wants)
	if err != nil {
		return Outcome{}, err
	}
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		have, err := crds.Get(ctx, want.Name, metav1.GetOptions{})
		return err == nil && served(have), err
	}); err != nil {
		return Outcome{}, fmt.Errorf("wait until the API server serves cells.%s: %w", apiv1.GroupVersion.Group, err)
	}
	return out, nil
}
