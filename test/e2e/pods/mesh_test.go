//go:build e2e

package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// redirectAnnotation says by what the init container of a mesh redirects.
const redirectAnnotation = "mesh.example.com/redirect"

// proxyUser is who the proxy runs as, whose own connections are not redirected.
const proxyUser = 1337

// iptablesRules are those of a mesh, as Istio's istio-init writes them.
const iptablesRules = `*nat
:MESH_INBOUND - [0:0]
:MESH_OUTPUT - [0:0]
-A PREROUTING -p tcp -j MESH_INBOUND
-A MESH_INBOUND -p tcp --dport 15020 -j RETURN
-A MESH_INBOUND -p tcp -j REDIRECT --to-ports 15006
-A OUTPUT -p tcp -j MESH_OUTPUT
-A MESH_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A MESH_OUTPUT -d 127.0.0.1/32 -j RETURN
-A MESH_OUTPUT -p tcp -j REDIRECT --to-ports 15001
COMMIT
`

const nftRules = `table inet mesh {
	chain inbound {
		type nat hook prerouting priority dstnat
		meta l4proto tcp tcp dport != 15020 redirect to :15006
	}
	chain output {
		type nat hook output priority -100
		meta skuid 1337 return
		ip daddr 127.0.0.1 return
		meta l4proto tcp redirect to :15001
	}
}
`

// redirects are commands of init containers.
var redirects = map[string]string{
	"iptables-nft":    "iptables-nft-restore --noflush <<'EOF'\n" + iptablesRules + "EOF\niptables-nft -t nat -S | cat",
	"iptables-legacy": "iptables-legacy-restore --noflush <<'EOF'\n" + iptablesRules + "EOF\niptables-legacy -t nat -S | cat",
	"nft":             "nft -f - <<'EOF'\n" + nftRules + "EOF\nnft list ruleset | cat",
	"privileged":      "nft -f - <<'EOF'\n" + nftRules + "EOF",
	"powerless":       "iptables-nft-restore --noflush <<'EOF'\n" + iptablesRules + "EOF",
}

// mesh gives a pod with the label what Istio's injector gives it: an init container that redirects, a native sidecar, a token for
// the mesh, and the probes of its containers by way of the sidecar.
func mesh(pod *corev1.Pod) {
	if pod.Labels[injected] != "true" {
		return
	}
	kind := pod.Annotations[redirectAnnotation]
	if kind == "" {
		kind = "iptables-nft"
	}
	init := corev1.Container{
		Name: "mesh-init", Image: meshImage, Command: []string{"sh", "-c", "set -e\n" + redirects[kind]},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), RunAsNonRoot: ptr.To(false), AllowPrivilegeEscalation: ptr.To(false),
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}, Drop: []corev1.Capability{"ALL"}},
		},
	}
	switch kind {
	case "privileged":
		init.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](0), Privileged: ptr.To(true)}
	case "powerless":
		init.SecurityContext.Capabilities.Add = nil
	}
	proxy := corev1.Container{
		Name: "mesh-proxy", Image: meshImage, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		StartupProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 600, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(15020)},
		}},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](proxyUser), RunAsGroup: ptr.To[int64](proxyUser), RunAsNonRoot: ptr.To(true),
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "mesh-token", MountPath: "/var/run/secrets/tokens"}, {Name: "mesh-proxy", MountPath: "/etc/proxy"},
		},
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if p != nil && p.HTTPGet != nil {
				p.HTTPGet.Path = fmt.Sprintf("/app-health/%d%s", p.HTTPGet.Port.IntVal, p.HTTPGet.Path)
				p.HTTPGet.Port = intstr.FromInt32(15020)
			}
		}
	}
	pod.Spec.InitContainers = append([]corev1.Container{init, proxy}, pod.Spec.InitContainers...)
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "mesh-token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "mesh-ca", ExpirationSeconds: ptr.To[int64](43200), Path: "token",
			}}},
		}}},
		corev1.Volume{Name: "mesh-proxy", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
		}},
	)
}

// proxyLog waits until a pod's proxy has said something.
func (s *space) proxyLog(pod, what string) {
	s.Helper()
	s.Eventually("the proxy of "+pod+" says "+what, func(ctx context.Context) error {
		log, _, errs := s.Attempt(ctx, "logs", pod, "-c", "mesh-proxy")
		if !strings.Contains(log, what) {
			return fmt.Errorf("it says %s %s", log, errs)
		}
		return nil
	})
}

func TestAMeshRedirectsWhatItsPodsSendAndReceive(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.inject(mesh)
	meshed := func(name, manifest, redirect string) string {
		meta := ", labels: {app: " + name + ", " + injected + `: "true"}, annotations: {` + redirectAnnotation + ": " + redirect + "}}\nspec:"
		return strings.Replace(manifest, "}\nspec:", meta, 1)
	}
	server := func(name string) string {
		return namespace.Bare(name, `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /tmp/www; echo `+name+` > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
    livenessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
`)
	}
	s.Apply(meshed("nft", server("nft"), "nft"))
	s.Apply(meshed("legacy", server("legacy"), "iptables-legacy"))
	s.Apply(meshed("privileged", server("privileged"), "privileged"))
	s.Apply(meshed("client", namespace.Sleeper("client"), "iptables-nft"))
	s.Apply(meshed("powerless", namespace.Sleeper("powerless"), "powerless"))
	s.Apply(namespace.WebServer("plain", "", "outside"))
	s.Kubectl("expose", "pod", "legacy", "--name=web", "--port=80", "--target-port=8080")
	s.WaitReady("client")
	plain := s.WaitReady("plain")
	for _, name := range []string{"nft", "legacy", "privileged"} {
		pod := s.WaitReady(name)
		// By the pod's address: out by the client's proxy, in by the server's.
		url := fmt.Sprintf("http://%s:8080/", pod.Status.PodIP)
		s.Eventually("the client reaches "+name, func(ctx context.Context) error {
			out, _, errs := s.Attempt(ctx, "exec", "client", "-c", "main", "--", "timeout", "10", "wget", "-qO-", url)
			if out != name+"\n" {
				return fmt.Errorf("it gets %q %s", out, errs)
			}
			return nil
		})
		s.proxyLog("client", fmt.Sprintf("to %s:8080\n", pod.Status.PodIP))
		s.proxyLog(name, fmt.Sprintf("to %s:8080\n", pod.Status.PodIP))
		s.proxyLog(name, "probe of 8080/index.html")
	}
	client, err := s.Pod(t.Context(), "client")
	if err != nil {
		t.Fatal(err)
	}
	s.proxyLog("nft", "inbound from "+client.Status.PodIP+":")

	// By the Service, whose address the proxy is told, and by its name.
	service := s.Kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	s.Eventually("the client reaches the Service", func(ctx context.Context) error {
		out, _, errs := s.Attempt(ctx, "exec", "client", "-c", "main", "--", "timeout", "10", "wget", "-qO-", "http://web/")
		if out != "legacy\n" {
			return fmt.Errorf("it gets %q %s", out, errs)
		}
		return nil
	})
	s.proxyLog("client", "outbound from "+client.Status.PodIP+":")
	s.proxyLog("client", "to "+service+":80\n")
	// To and from what is in no mesh.
	outside := fmt.Sprintf("http://%s:8080/", plain.Status.PodIP)
	if got := s.Kubectl("exec", "client", "-c", "main", "--", "wget", "-qO-", outside); got != "outside\n" {
		t.Errorf("from outside the mesh the client gets %q", got)
	}
	if got := s.Kubectl("exec", "plain", "--", "wget", "-qO-", "http://web/"); got != "legacy\n" {
		t.Errorf("the pod outside gets %q", got)
	}
	// Without the right to, the pod does not start, and says why.
	s.WaitPod("powerless", "fails to redirect", func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) > 0 && p.Status.InitContainerStatuses[0].RestartCount > 0
	})
	if log := s.Kubectl("logs", "powerless", "-c", "mesh-init"); !strings.Contains(log, "Operation not permitted") &&
		!strings.Contains(log, "Permission denied") {
		t.Errorf("the init container without a right says %q", log)
	}

	// A Job whose pod has a sidecar ends.
	s.Apply(`apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {injected: "true"}}
    spec:
      restartPolicy: Never
      nodeSelector: {type: virtual-kubelet}
      containers:
      - {name: main, image: 'busybox:1.36', command: [sh, -c, 'timeout 10 wget -qO- http://web/']}
`)
	s.Kubectl("wait", "--for=condition=complete", "job/j", "--timeout=5m")
	s.Eventually("its cell is gone", func(ctx context.Context) error {
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if strings.HasPrefix(c.Status.Pod.Name, "j-") {
				return fmt.Errorf("cell %s is %s", c.Name, c.Status.Phase)
			}
		}
		return nil
	})
	if log := s.Kubectl("logs", "job/j", "-c", "main"); log != "legacy\n" {
		t.Errorf("its log is %q", log)
	}
	for _, want := range []string{"to " + service + ":80\n", "the proxy ends"} {
		if log := s.Kubectl("logs", "job/j", "-c", "mesh-proxy"); !strings.Contains(log, want) {
			t.Errorf("the log of its proxy is %q, without %q", log, want)
		}
	}
}
