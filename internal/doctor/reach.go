package doctor

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/elotl/kip/internal/finding"
)

// reachLimit bounds the first question to the API server: one that does not answer is a failure, and not a check that was left out.
const reachLimit = 10 * time.Second

// reaching checks whether there is an API server to ask.
type reaching struct{ *installation }

// reach asks the API server for its version.
func (k reaching) reach(ctx context.Context) []finding.Finding {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	answer, err := k.c.Cluster.Raw(ctx, "/version")
	region := eksRegion(k.c.Cluster.Host)
	login := "kubectl auth whoami # then log in again, as your cluster's kubeconfig says"
	if region != "" {
		login = "aws eks update-kubeconfig --region " + region + " --name CLUSTER"
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "getting credentials"): // client-go, of a program in the kubeconfig
		return one(finding.Fail(login, "the kubeconfig's program for credentials fails: %v", err))
	case err != nil && region != "":
		show := "aws eks describe-cluster --region " + region + " --name CLUSTER --query cluster.resourcesVpcConfig # shows whether its endpoint is private"
		return one(finding.Fail(show, "the API server %s does not answer: %v. If its endpoint is private, run kipctl doctor within the cluster's VPC, or "+
			"through its VPN", k.c.Cluster.Host, err))
	case err != nil:
		return one(finding.Fail("kubectl cluster-info # with --kubeconfig or --context of a cluster that you reach",
			"the API server %s does not answer: %v", k.c.Cluster.Host, err))
	case answer.Status == http.StatusUnauthorized:
		return one(finding.Fail(login, "the API server %s does not know you: the credentials of the kubeconfig are wrong or have expired",
			k.c.Cluster.Host))
	case answer.Status != http.StatusOK:
		return one(finding.Unchecked("GET /version of the API server %s: status %d", k.c.Cluster.Host, answer.Status))
	}
	if err := json.Unmarshal(answer.Body, &k.server); err != nil || k.server.GitVersion == "" {
		return one(finding.Fail("kubectl cluster-info # with --kubeconfig or --context of a Kubernetes cluster",
			"%s answers, and not as an API server of Kubernetes does: %.80q", k.c.Cluster.Host, answer.Body))
	}
	k.date, k.askedAt = answer.Date, k.c.Clock.Now()
	return one(finding.Fine("%s answers", k.c.Cluster.Host))
}

// Limits of a clock that is off. AWS takes no signature that is five minutes off (IAM User Guide, "Signature Version 4").
const clockWarns, clockFails = 30 * time.Second, 5 * time.Minute

// clockSkew compares the clock of the API server with that of this machine.
func (k reaching) clockSkew(context.Context) []finding.Finding {
	if k.date.IsZero() {
		return one(finding.Unchecked("the API server does not tell its time"))
	}
	// The header has whole seconds.
	const cure = "sudo timedatectl set-ntp true # on the machine whose clock is wrong"
	switch off := k.askedAt.Sub(k.date).Round(time.Second); {
	case off.Abs() >= clockFails:
		return one(finding.Fail(cure, "this machine's clock and the API server's differ by %s: tokens, certificates and AWS' signatures fail", off.Abs()))
	case off.Abs() >= clockWarns:
		return one(finding.Warn(cure, "this machine's clock and the API server's differ by %s", off.Abs()))
	}
	return one(finding.Fine("this machine's clock and the API server's agree within %s", clockWarns))
}
