package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// probe is a pod that selects Kip's nodes, as restricted as Pod Security wants. It is never made.
func probe(namespace string) *corev1.Pod {
	little := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "kip-doctor-dry-run-"},
		Spec: corev1.PodSpec{
			NodeSelector:    map[string]string{"type": "virtual-kubelet"},
			RestartPolicy:   corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name:      "main",
				Image:     "registry.k8s.io/pause:3.10",
				Resources: corev1.ResourceRequirements{Requests: little, Limits: little},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(bool),
					RunAsNonRoot:             new(true),
					RunAsUser:                new(int64(65532)),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// ports checks whether the API server reaches Kip.
type ports struct{ *installation }

// webhook has the API server ask Kip about a pod that is not made. What Kip changes of such a pod shows that it was asked.
func (k ports) webhook(ctx context.Context) []finding.Finding {
	pod, err := k.c.Cluster.Kube.CoreV1().Pods(k.c.PodNamespace).Create(ctx, probe(k.c.PodNamespace),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return one(unasked("dry-run a pod in namespace "+k.c.PodNamespace, err))
	}
	heard := answered(pod)
	configured, err := k.webhookConfiguration(ctx)
	if gone := k.goneService(ctx, configured, heard); gone != nil {
		return gone
	}
	if heard && k.name == "" {
		return one(finding.Fine("the API server asks Kip about pods that select its nodes (a dry run)"))
	}
	untrusted := configured != nil && slices.ContainsFunc(configured.Webhooks, trustsNobody)
	switch {
	case heard && !untrusted:
		return one(finding.Unchecked("whether the API server reaches the webhook of this Kip: for pods that select type: virtual-kubelet all Kips of the " +
			"cluster answer, and one has"))
	case err != nil:
		return one(finding.Fail(k.reachable(ctx), "Kip's webhook has not answered for a pod that selects its nodes, %s; why is not known: %v", untolerated, err))
	case configured == nil:
		return one(finding.Fail(k.set("webhook.enabled=true"), "Kip's webhook is not installed, %s", untolerated))
	case untrusted:
		return one(finding.Fail(fmt.Sprintf("kubectl logs -n %s %s -c %s # it says why", k.Namespace(), firstName(k.pods), kipContainer),
			"Kip has not written its CA into the MutatingWebhookConfiguration %s, %s", configured.Name, untolerated))
	}
	return one(finding.Fail(k.reachable(ctx), "the API server does not reach Kip's webhook, port 9443 of its pod, %s", untolerated))
}

// untolerated is what a cluster loses without Kip's webhook.
const untolerated = "so pods that select type: virtual-kubelet get no toleration of Kip's taint, and wait"

// goneService finds that the Service of Kip's webhook is not there. The API server looks for it only when it connects, so it may reach Kip
// for hours all the same.
func (k ports) goneService(ctx context.Context, c *admissionregistrationv1.MutatingWebhookConfiguration, heard bool) []finding.Finding {
	if c == nil {
		return nil
	}
	for _, w := range c.Webhooks {
		at := w.ClientConfig.Service
		if at == nil {
			continue
		}
		_, err := k.c.Cluster.Kube.CoreV1().Services(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
		switch {
		case !apierrors.IsNotFound(err):
		case heard:
			return one(finding.Fail(k.restore(), "the Service %s/%s of Kip's webhook is gone: the API server reaches Kip only until its connection ends",
				at.Namespace, at.Name))
		default:
			return one(finding.Fail(k.restore(), "the Service %s/%s of Kip's webhook is gone, %s", at.Namespace, at.Name, untolerated))
		}
	}
	return nil
}

func trustsNobody(w admissionregistrationv1.MutatingWebhook) bool {
	return len(w.ClientConfig.CABundle) == 0
}

// answered reports whether Kip has changed a pod as it changes each that is for its nodes: it stays on a node that is not heard of for as
// long as that takes, which the API server bounds by itself (internal/admission, tolerations.go).
func answered(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == corev1.TaintNodeUnreachable && t.TolerationSeconds == nil
	})
}

// webhookConfiguration is how the API server asks Kip; nil if it does not. It has the name of the Kip's first node.
func (k ports) webhookConfiguration(ctx context.Context) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	list, err := k.c.Cluster.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i, c := range list.Items {
		own := k.name == "" || c.Name == nodeNameOf(k.pods) || hasFirst(k.own, c.Name)
		selecting := func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == "selecting.kip.elotl.co" }
		if own && slices.ContainsFunc(c.Webhooks, selecting) {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// reachable is the command that has the API server reach the ports of Kip's pod. Pod Security refuses a pod of the host's network, unless
// its namespace allows all.
func (k ports) reachable(ctx context.Context) string {
	if k.eks() {
		return fmt.Sprintf(`cluster=$(aws eks describe-cluster --region %[1]s --name %[2]s --query cluster.resourcesVpcConfig.clusterSecurityGroupId `+
			`--output text); aws ec2 authorize-security-group-ingress --region %[1]s --group-id %[3]s --ip-permissions `+
			`"IpProtocol=tcp,FromPort=9443,ToPort=9443,UserIdGroupPairs=[{GroupId=$cluster}]" `+
			`"IpProtocol=tcp,FromPort=10250,ToPort=10250,UserIdGroupPairs=[{GroupId=$cluster}]"`, k.region(), k.clusterName(), k.nodeGroup())
	}
	cure := k.set("hostNetwork=true") + " # or let the API server reach the ports 9443 and 10250 of Kip's pod"
	const level, all = "pod-security.kubernetes.io/enforce", "privileged"
	namespace, err := k.c.Cluster.Kube.CoreV1().Namespaces().Get(ctx, k.Namespace(), metav1.GetOptions{})
	if err == nil && namespace.Labels[level] != "" && namespace.Labels[level] != all {
		cure = fmt.Sprintf("kubectl label namespace %s %s=%s --overwrite # for the next command\n", namespace.Name, level, all) + cure
	}
	return cure
}

// kubeletPort asks Kip's kubelet port for its health, by way of the API server.
func (k ports) kubeletPort(ctx context.Context) []finding.Finding {
	var found []finding.Finding
	for _, n := range k.own {
		answer, err := k.c.Cluster.Raw(ctx, "/api/v1/nodes/"+n.Name+"/proxy/healthz")
		port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
		said := saidBy(answer.Body)
		lost := "so kubectl logs and exec fail for its pods"
		switch {
		case err != nil:
			found = append(found, finding.Unchecked("ask for the health of node %s: %v", n.Name, err))
		case answer.Status == http.StatusOK:
			found = append(found, finding.Fine("the API server reaches the kubelet port %d of node %s", port, n.Name))
		case answer.Status == http.StatusForbidden || answer.Status == http.StatusUnauthorized:
			found = append(found, finding.Unchecked("you may not get nodes/proxy, or nodes/healthz, of node %s: %s", n.Name, said))
		case strings.Contains(said, "x509") || strings.Contains(said, "certificate"):
			found = append(found, finding.Fail(k.trusted(), "the API server does not trust the certificate of the kubelet port of node %s, %s: %s", n.Name, lost,
				said))
		default:
			found = append(found, finding.Fail(k.reachable(ctx), "the API server does not reach the kubelet port %d of node %s, %s: status %d, %s", port, n.Name,
				lost, answer.Status, said))
		}
	}
	if found == nil {
		found = one(finding.Unchecked("there is no node of Kip"))
	}
	return found
}

// trusted is the command that has Kip serve a certificate that the API server trusts.
func (k ports) trusted() string {
	if k.eks() {
		return k.setSigner(wellknown.ServingSigner)
	}
	return k.setSigner(certificatesv1.KubeletServingSignerName)
}

// saidBy is the message of an answer of an API server, in bounded length.
func saidBy(body []byte) string {
	var status metav1.Status
	text := string(body)
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		text = status.Message
	}
	return cmp.Or(strings.TrimSpace(text[:min(len(text), 400)]), "it says nothing")
}

// certificates checks the certificate requests of Kip.
type certificates struct{ *installation }

// requests says which certificates of Kip wait for somebody to approve them. Every node may make a request with a name like Kip's, so the
// command that approves is printed only for what Kip itself asks for.
func (k certificates) requests(ctx context.Context) []finding.Finding {
	list, err := k.c.Cluster.Kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the certificate requests", err))
	}
	var found []finding.Finding
	for i := range list.Items {
		r := &list.Items[i]
		of := slices.IndexFunc(k.own, func(n corev1.Node) bool { return strings.HasPrefix(r.Name, n.Name+"-serving-") })
		decided := slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
		})
		if of < 0 || decided || len(r.Status.Certificate) > 0 {
			continue
		}
		node := &k.own[of]
		names, wrong := k.notKips(r, node)
		if wrong != "" {
			found = append(found, finding.Warn("kubectl describe csr "+r.Name+" # do not approve it unless you know who made it: docs/serving-certificates.md",
				"the certificate request %s has a name like those of node %s, and is not known to be Kip's: %s", r.Name, node.Name, wrong))
			continue
		}
		found = append(found, finding.Fail("kubectl certificate approve "+r.Name+" # after you have compared it: docs/serving-certificates.md",
			"the certificate request %s of node %s, by %s of signer %s, waits for somebody to approve it. It is for the names %s; the node's addresses are %s",
			r.Name, node.Name, r.Spec.Username, r.Spec.SignerName, orNone(names), orNone(addressesOf(node))))
	}
	if found == nil {
		found = one(finding.Fine("no certificate request of Kip waits"))
	}
	return found
}

// notKips returns the alternative names that a request asks for, and why it is not one that Kip makes for a node; "" if it may be.
func (k certificates) notKips(r *certificatesv1.CertificateSigningRequest, node *corev1.Node) (names []string, why string) {
	users := []string{"system:node:" + node.Name}
	for _, p := range k.pods {
		if p.Spec.ServiceAccountName != "" {
			users = append(users, "system:serviceaccount:"+p.Namespace+":"+p.Spec.ServiceAccountName)
		}
	}
	signers := []string{certificatesv1.KubeletServingSignerName}
	if k.eks() {
		signers = append(signers, wellknown.ServingSigner)
	}
	if k.c.Provider != nil {
		signers = []string{k.c.Provider.ServingCertificate.SignerName}
	}
	if !slices.Contains(users, r.Spec.Username) {
		return nil, fmt.Sprintf("%q made it, and Kip makes its own as %s", r.Spec.Username, strings.Join(users, " or "))
	}
	if !slices.Contains(signers, r.Spec.SignerName) {
		return nil, fmt.Sprintf("it is for the signer %q, and Kip's is %q", r.Spec.SignerName, strings.Join(signers, " or "))
	}
	block, _ := pem.Decode(r.Spec.Request)
	if block == nil {
		return nil, "it is no PEM"
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Sprintf("it cannot be read: %v", err)
	}
	for _, ip := range asked.IPAddresses {
		names = append(names, ip.String())
	}
	names = append(slices.Clone(asked.DNSNames), names...)
	others := slices.DeleteFunc(slices.Clone(asked.DNSNames), func(name string) bool { return name == node.Name })
	others = append(others, asked.EmailAddresses...)
	for _, uri := range asked.URIs {
		others = append(others, uri.String())
	}
	if len(others) > 0 {
		return nil, fmt.Sprintf("it is also for the names %q", others)
	}
	return names, ""
}

// addressesOf are those that the API server finds a node at.
func addressesOf(n *corev1.Node) (all []string) {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			all = append(all, a.Address)
		}
	}
	return all
}
