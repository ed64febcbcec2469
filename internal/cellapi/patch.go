package cellapi

import (
	"encoding/json"
	"net/http"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/elotl/kip/internal/watches"
)

// patch is a change to an object that lives here: a strategic merge patch, which
// is what a kubelet sends, or a merge patch.
type patch struct {
	kind types.PatchType
	body []byte
}

func readPatch(r *http.Request) (*patch, error) {
	t, err := bodyMediaType(r.Header)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	p := &patch{kind: types.PatchType(t)}
	if p.kind != types.StrategicMergePatchType && p.kind != types.MergePatchType {
		return nil, unsupportedMediaType(t, string(types.StrategicMergePatchType), string(types.MergePatchType))
	}
	p.body, err = readBody(r)
	return p, err
}

// apply writes into next, an empty object of the same type, what the patch makes
// of o.
func (p *patch) apply(o, next watches.APIObject) error {
	before, err := jsonOf(o)
	if err != nil {
		return err
	}
	var after []byte
	if p.kind == types.StrategicMergePatchType {
		// The type is passed for its tags: by what key lists are merged.
		after, err = strategicpatch.StrategicMergePatch(before, p.body, reflect.New(reflect.TypeOf(next).Elem()).Interface())
	} else {
		after, err = jsonpatch.MergePatch(before, p.body)
	}
	if err != nil {
		return apierrors.NewBadRequest("apply the patch: " + err.Error())
	}
	if err := json.Unmarshal(after, next); err != nil {
		return apierrors.NewBadRequest("what the patch makes of the object: " + err.Error())
	}
	return nil
}
