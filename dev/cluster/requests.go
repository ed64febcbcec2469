package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates/authority"
)

// Who answers the requests for certificates of kubelet ports. Upstream's controller manager
// signs what is approved, and approves none of them.
const (
	// ApproverPerson approves those of Kip and its nodes, as docs/serving-certificates.md says.
	ApproverPerson = "person"
	// ApproverGKE denies those that nodes make which are no instances of Compute Engine: here all.
	ApproverGKE = "gke"
	// ApproverNone answers none.
	ApproverNone = "none"
)

// Approvers are all of them.
var Approvers = []string{ApproverPerson, ApproverGKE, ApproverNone}

// CheckApprover returns an error unless there is such an approver.
func CheckApprover(name string) error {
	if name != "" && !slices.Contains(Approvers, name) {
		return fmt.Errorf("no approver of certificate requests is called %q: want one of %s", name, strings.Join(Approvers, ", "))
	}
	return nil
}

// EKSSigner is the signer that EKS adds to those of upstream.
const EKSSigner = "beta.eks.amazonaws.com/app-serving"

// eksLife is how long its certificates are valid: EKS User Guide, "Secure workloads with
// Kubernetes certificates".
const eksLife = 365 * 24 * time.Hour

// answer does what one who answers requests does with one of them.
type answer func(context.Context, kubernetes.Interface, *certificatesv1.CertificateSigningRequest) error

// answerRequests approves or denies, and signs for EKSSigner, until ctx ends.
func (c *Cluster) answerRequests(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	who := map[string]answer{"signer-of-eks": c.signAsEKS}
	switch c.opts.Approver {
	case "", ApproverPerson:
		who["person"] = c.approveAsPerson
	case ApproverGKE:
		who["approver-of-gke"] = denyAsGKE
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	requests := factory.Certificates().V1().CertificateSigningRequests()
	var running sync.WaitGroup
	for name, answer := range who {
		controller := certificates.NewCertificateController(ctx, name, client, requests,
			func(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
				return answer(ctx, client, r)
			})
		running.Go(func() { controller.Run(ctx, 1) })
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	running.Wait()
	factory.Shutdown()
	return nil
}

// unanswered reports whether nobody has approved or denied a request.
func unanswered(r *certificatesv1.CertificateSigningRequest) bool {
	approved, denied := certificates.GetCertApprovalCondition(&r.Status)
	return !approved && !denied
}

// conclude adds a condition.
func conclude(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) {
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type:    kind,
		Status:  corev1.ConditionTrue,
		Reason:  reason,
		Message: message,
	})
}

// approveAsPerson approves what Kip asks for, as itself and as its nodes.
func (c *Cluster) approveAsPerson(ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest) error {
	serving := []string{certificatesv1.KubeletServingSignerName, EKSSigner}
	if !unanswered(r) || !c.isKip(r.Spec.Username) || !slices.Contains(serving, r.Spec.SignerName) {
		return nil
	}
	conclude(r, certificatesv1.CertificateApproved, "KubectlApprove", "This CSR was approved by kubectl certificate approve.")
	_, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{})
	return err
}

// isKip reports whether a user is Kip, or one of its nodes: a numbered one has its name and a number.
func (c *Cluster) isKip(user string) bool {
	if user == "system:serviceaccount:"+kipNamespace+":"+kipServiceAccount {
		return true
	}
	node, is := strings.CutPrefix(user, "system:node:")
	if !is {
		return false
	}
	for _, own := range append(slices.Collect(maps.Keys(c.opts.Peers)), c.opts.NodeName) {
		if node == own || strings.HasPrefix(node, own+"-") {
			return true
		}
	}
	return false
}

// denyAsGKE denies a request of a node, since no node here is an instance of Compute Engine. It
// leaves alone what others than that node request. Source: isNodeServerCert, validateNodeServerCert
// and updateCSR in cmd/gcp-controller-manager/node_csr_approver.go of cloud-provider-gcp.
func denyAsGKE(ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest) error {
	parsed, err := certificatesapi.ParseCSR(r.Spec.Request)
	if err != nil {
		return err
	}
	uses := sets.NewString()
	for _, u := range r.Spec.Usages {
		uses.Insert(string(u))
	}
	if !unanswered(r) || r.Spec.SignerName != certificatesv1.KubeletServingSignerName || r.Spec.Username != parsed.Subject.CommonName ||
		!certificatesapi.IsKubeletServingCSR(parsed, uses) {
		return nil
	}
	conclude(r, certificatesv1.CertificateDenied, "AutoDenied", "")
	_, err = client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{})
	return err
}

// signAsEKS signs what is approved for EKSSigner: any subject, any alternative name, no other
// usages than these, no other extension, for a year, whoever asks. Source: EKS User Guide, "Secure
// workloads with Kubernetes certificates". That EKS' API server takes such a certificate of a kubelet:
// admiraltyio/admiralty pull request 211.
func (c *Cluster) signAsEKS(ctx context.Context, client kubernetes.Interface, r *certificatesv1.CertificateSigningRequest) error {
	if r.Spec.SignerName != EKSSigner || len(r.Status.Certificate) > 0 || !certificates.IsCertificateRequestApproved(r) ||
		certificates.HasTrueCondition(r, certificatesv1.CertificateFailed) {
		return nil
	}
	permitted := []certificatesv1.KeyUsage{
		certificatesv1.UsageKeyEncipherment, certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth,
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	if i := slices.IndexFunc(r.Spec.Usages, func(u certificatesv1.KeyUsage) bool { return !slices.Contains(permitted, u) }); i >= 0 {
		conclude(r, certificatesv1.CertificateFailed, "SignerValidationFailure", fmt.Sprintf("usage %q is not permitted", r.Spec.Usages[i]))
		_, err := requests.UpdateStatus(ctx, r, metav1.UpdateOptions{})
		return err
	}
	parsed, err := certificatesapi.ParseCSR(r.Spec.Request)
	if err != nil {
		return err
	}
	ca := authority.CertificateAuthority{Certificate: c.ca.cert, PrivateKey: c.ca.key}
	der, err := ca.Sign(parsed.Raw, authority.PermissiveSigningPolicy{TTL: eksLife, Usages: r.Spec.Usages, Backdate: 5 * time.Minute})
	if err != nil {
		return err
	}
	r.Status.Certificate = encodeCert(der)
	_, err = requests.UpdateStatus(ctx, r, metav1.UpdateOptions{})
	return err
}
