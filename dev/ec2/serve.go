package ec2

import (
	"context"
	"net/http"
	"strings"

	"github.com/elotl/kip/dev/cloudmodel"
)

// request is one call.
type request struct {
	ctx context.Context
	*form
	action string
	caller
}

// caller is who calls.
type caller struct {
	policy *Policy // nil for one who may do everything
	key    string  // the access key
}

// maxRequest bounds a call in bytes: user data is 16 KiB.
const maxRequest = 1 << 20

// Public is the part of the model that asks for a proof of who calls, and believes no key: images,
// and STS' AssumeRoleWithWebIdentity. So it may be served where pods reach it.
func (m *Model) Public() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, cloudmodel.ImagesPath) {
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
			if err := r.ParseForm(); err != nil || r.PostForm.Get("Version") != stsVersion || r.PostForm.Get("Action") != byWebIdentity ||
				r.Header.Get("X-Amz-Target") != "" || r.URL.Path != "/" {
				http.Error(w, "here are images, and STS' "+byWebIdentity, http.StatusNotFound)
				return
			}
		}
		m.ServeHTTP(w, r)
	})
}

// ServeHTTP answers one call.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	most := int64(maxRequest)
	if strings.HasPrefix(r.URL.Path, cloudmodel.ImagesPath) {
		most = cloudmodel.MaxLayer
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	below := func(path string) bool { return r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/") }
	switch target := r.Header.Get("X-Amz-Target"); {
	case strings.HasPrefix(r.URL.Path, cloudmodel.ImagesPath):
		m.Registry.serveRegistry(w, r)
	case below(snapshotsPath):
		m.Snapshots.serveEBS(w, r)
	case below(clustersPath):
		m.eks.serveEKS(w, r)
	case below(efsPath):
		m.FileSystems.serveEFS(w, r)
	case strings.HasPrefix(target, ecrTarget):
		m.Registry.serveECR(w, r)
	case strings.HasPrefix(target, pricingTarget):
		m.Prices.servePricing(w, r)
	case strings.HasPrefix(target, quotasTarget):
		m.Quotas.serveQuotas(w, r)
	default:
		m.queries.serveQuery(w, r)
	}
}
