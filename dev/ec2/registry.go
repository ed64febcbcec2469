package ec2

import (
	"context"
	"net/http"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/elotl/kip/dev/cloudmodel"
)

// registryUser has every token of ECR's as its password.
const registryUser = "AWS"

// RegistryHost is the host in the names of an account's images, in the partition aws.
func RegistryHost(account, region string) string {
	return account + ".dkr.ecr." + region + ".amazonaws.com"
}

// rightsOf are those that ECR asks for what is done with an image, by the method and the part
// of its path. Sources: Amazon ECR User Guide, "Private registry permissions" and "IAM
// permissions for pushing an image to an Amazon ECR private repository".
var rightsOf = map[string]string{
	"GET manifests":  "ecr:BatchGetImage",
	"HEAD manifests": "ecr:BatchGetImage",
	"GET blobs":      "ecr:GetDownloadUrlForLayer",
	"HEAD blobs":     "ecr:BatchCheckLayerAvailability",
	"POST uploads":   "ecr:InitiateLayerUpload",
	"PATCH uploads":  "ecr:UploadLayerPart",
	"PUT uploads":    "ecr:CompleteLayerUpload",
	"PUT manifests":  "ecr:PutImage",
}

// registry is ECR, with its tokens and its images.
type registry struct {
	*base
	callers *callers

	tokens       cloudmodel.Grants[*Policy] // nil for everything
	repositories map[string]http.Handler    // by name
	upstreams    map[string]http.Handler    // of Config.Upstreams, by name
	imported     map[string]bool            // the upstreams that were pulled from
}

// serveRegistry answers who pulls an image of the account, or pushes one, as the token of the
// request may.
func (m *registry) serveRegistry(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code, format string, args ...any) {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="`+m.cfg.Account+`",service="ecr.amazonaws.com"`)
		}
		cloudmodel.RefuseImage(w, status, code, format, args...)
	}
	user, password, _ := r.BasicAuth()
	policy, err := m.tokens.Of(password, m.model.Now())
	if user != registryUser || err != nil {
		refuse(http.StatusUnauthorized, "UNAUTHORIZED", "Your authorization token is unknown or has expired")
		return
	}
	if r.URL.Path == cloudmodel.ImagesPath {
		return // who asks whether this is a registry is told so by 200
	}
	repository, what := cloudmodel.RepositoryOf(r.URL.Path)
	right := rightsOf[r.Method+" "+what]
	if right == "" {
		refuse(http.StatusNotFound, "UNSUPPORTED", "the model does not know %s %s", r.Method, r.URL.Path)
		return
	}
	arn := m.arnOf("ecr", m.cfg.Region, m.cfg.Account, "repository/"+repository)
	if !m.letsTo(policy, right, repository, arn) {
		refuse(http.StatusForbidden, "DENIED", "User is not authorized to perform: %s on resource: %s", right, arn)
		return
	}
	images := m.repositories[repository]
	if upstream := m.upstreams[repository]; upstream != nil {
		if right, lacks := m.importOf(policy, repository, what, arn); lacks {
			refuse(http.StatusForbidden, "DENIED", "User is not authorized to perform: %s on resource: %s", right, arn)
			return
		}
		images = upstream
	}
	if images == nil {
		refuse(http.StatusNotFound, "NAME_UNKNOWN", "The repository with name '%s' does not exist in the registry", repository)
		return
	}
	images.ServeHTTP(w, r)
}

// importOf imports a repository from its upstream at the first pull of a manifest, or says which right the caller lacks for that.
// Source: Amazon ECR User Guide, "IAM permissions required to sync an upstream registry with an Amazon ECR private registry". The
// model makes the repository each time: there it is not before.
func (m *registry) importOf(policy *Policy, repository, what, arn string) (right string, lacks bool) {
	m.mu.Lock()
	done := m.imported[repository]
	m.mu.Unlock()
	if done {
		return "", false
	}
	for _, right := range []string{"ecr:CreateRepository", "ecr:BatchImportUpstreamImage"} {
		if !m.letsTo(policy, right, repository, arn) {
			return right, true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.imported[repository] = what == "manifests"
	return "", false
}

// Upstream is the registry that a repository of Config.Upstreams is imported from: who pushes there needs no right of the account's.
func (m *registry) Upstream(repository string) http.Handler { return m.upstreams[repository] }

// letsTo says whether the holder of a policy, nil for one who may do everything, has a right to a
// repository: by that, or by the repository's own.
func (m *registry) letsTo(policy *Policy, right, repository, arn string) bool {
	if policy == nil {
		return true
	}
	about := map[string][]string{"aws:RequestedRegion": {m.cfg.Region}}
	open := m.cfg.RepositoryPolicies[repository]
	return policy.allows(right, arn, about) ||
		open != nil && open.allows(right, arn, about) && !policy.denies(right, arn, about)
}

// Push puts an image into a repository of the account, as one who may do everything: as a/b:1.
// The model is served at a host and port.
func (m *registry) Push(ctx context.Context, at, repositoryAndTag string, image v1.Image) error {
	password, _ := m.newToken(nil)
	return cloudmodel.PushImage(ctx, at, repositoryAndTag, image, registryUser, password)
}
