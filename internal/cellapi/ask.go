package cellapi

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/elotl/kip/internal/sanitize"
	"github.com/elotl/kip/internal/watches"
)

// ask is a request that was understood.
type ask struct {
	*request.RequestInfo
	resource schema.GroupVersionResource
}

func (a *ask) String() string {
	what := a.Resource
	if a.Subresource != "" {
		what += "/" + a.Subresource
	}
	if a.APIGroup != "" {
		what += "." + a.APIGroup
	}
	if a.Name != "" {
		what += " " + watches.Key(a.Namespace, a.Name)
	} else if a.Namespace != "" {
		what += " in namespace " + a.Namespace
	}
	return sanitize.Printable(cut(a.Verb+" "+what, maxLogged))
}

// isPodStatus reports whether it is what a kubelet says of its pod.
func (a *ask) isPodStatus() bool {
	return a.resource == podKind.Resource && a.Subresource == "status"
}

// apiPaths knows the form of the API's paths.
var apiPaths = request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// understand reads what a request asks, and refuses forms that no Kubernetes
// client produces.
func (c *base) understand(r *http.Request) (*ask, error) {
	switch {
	case len(r.URL.Path) > maxPath:
		return nil, apierrors.NewBadRequest("the path is longer than any of the Kubernetes API")
	case len(r.URL.RawQuery) > maxQuery:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the options are longer than %d bytes", maxQuery))
	case !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, r.Method):
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: r.URL.Path}, r.Method)
	case r.Header.Get("Upgrade") != "":
		return nil, apierrors.NewBadRequest("connections are not upgraded here")
	case r.URL.RawPath != "" || path.Clean(r.URL.Path) != r.URL.Path:
		return nil, apierrors.NewBadRequest("the path is not in its plain form")
	}
	if _, err := decodeListOptions(r); err != nil { // before the API server's own code, which logs it
		return nil, err
	}
	info, err := apiPaths.NewRequestInfo(r)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !info.IsResourceRequest {
		return nil, c.refused(schema.GroupResource{}, "",
			fmt.Sprintf("cell %s may not %s %s: only the resources that a kubelet needs are served", c.id, strings.ToLower(r.Method), r.URL.Path))
	}
	for _, segment := range []string{info.Namespace, info.Name} {
		if problems := content.IsPathSegmentName(segment); len(problems) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("name %q %s", segment, strings.Join(problems, ", ")))
		}
	}
	a := &ask{
		RequestInfo: info,
		resource:    schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
	}
	nameless := info.Verb == "create" || info.Verb == "list" || info.Verb == "watch" || info.Verb == "deletecollection"
	if !nameless && info.Name == "" || info.Verb == "create" && info.Name != "" && info.Subresource == "" {
		return nil, apierrors.NewMethodNotSupported(a.resource.GroupResource(), info.Verb)
	}
	// The old forms /api/v1/watch/… and /api/v1/proxy/… are no longer used.
	resourceAt := 2
	if info.APIGroup != "" {
		resourceAt = 3
	}
	segments := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if len(info.Parts) > 3 || segments[resourceAt] == "watch" || segments[resourceAt] == "proxy" {
		return nil, c.forbidden(a, "")
	}
	return a, nil
}
