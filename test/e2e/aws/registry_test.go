//go:build e2e

package aws

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// What the account has: own is of the pod of the test, next may be read by the role for images,
// closed may not.
var own, next, closed = machines.Repositories[0], machines.Repositories[1], machines.Repositories[2]

// inECR is the name of a repository's image.
func inECR(repository string) string {
	return machines.Registry() + "/" + repository + ":" + machines.ImageTag
}

// podOf has a container for each image.
func podOf(name string, images ...string) string {
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  nodeSelector: {type: virtual-kubelet}\n" +
		"  terminationGracePeriodSeconds: 1\n  containers:\n"
	for n, image := range images {
		text += fmt.Sprintf("  - {name: c%d, image: %q, command: [sleep, infinity], resources: {requests: {cpu: 10m, memory: 16Mi}}}\n", n, image)
	}
	return text
}

// machine is that behind the instance of a pod's cell.
func (s *space) machine(pod string) namespace.Machine {
	s.Helper()
	cells, err := s.Cells(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	all, err := host.Recorded(host.Config{StateDir: filepath.Join(world.State, "cloud")})
	if err != nil {
		s.Fatal(err)
	}
	for _, cell := range cells {
		for _, machine := range all {
			if cell.Status.Pod.Name == pod && machine.Tags[cloud.TagName] == cell.Status.InstanceID {
				cell.Status.InstanceID = machine.ID
				return s.Machine(cell)
			}
		}
	}
	s.Fatalf("no machine stands behind the cell of pod %s: %+v", pod, cells)
	return namespace.Machine{}
}

// onBridge is where pods and cells reach images and STS.
func (s *space) onBridge() string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(world.State, "provider.yaml"))
	if err != nil {
		s.Fatal(err)
	}
	var provider struct {
		Cells struct{ RegistryMirrors map[string][]string }
	}
	if err := yaml.Unmarshal(text, &provider); err != nil || len(provider.Cells.RegistryMirrors[machines.Registry()]) != 1 {
		s.Fatalf("cells do not find %s (%v): %s", machines.Registry(), err, text)
	}
	return provider.Cells.RegistryMirrors[machines.Registry()][0]
}

// askAsRoot asks Kip for what pulls an image, with what root on a cell has.
func (s *space) askAsRoot(m namespace.Machine, image string) (status int, answer string) {
	s.Helper()
	cfg, err := m.Kubelet()
	if err != nil {
		s.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		s.Fatal(err)
	}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(agentapi.ImageRequest{Image: image})
	if err != nil {
		s.Fatal(err)
	}
	resp, err := client.Post(cfg.Host+agentapi.PathImageCredentials, "application/json", bytes.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// pulls asks the registry for the manifest of a repository's image.
func (s *space) pulls(password, repository string) int {
	s.Helper()
	url := s.onBridge() + "/v2/" + repository + "/manifests/" + machines.ImageTag
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.Fatal(err)
	}
	if password != "" {
		req.SetBasicAuth("AWS", password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestAPodHasItsImagesOfECRWithoutAPullSecretAndNoOthers(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	elsewhere := strings.Replace(inECR(own), ".us-east-1.amazonaws.com", ".cn-north-1.amazonaws.com.cn", 1)
	s.Apply(podOf("own", inECR(own)))
	s.Apply(podOf("mixed", inECR(next), inECR(closed), elsewhere))

	if p := s.WaitReady("own"); len(p.Spec.ImagePullSecrets) > 0 || !strings.Contains(p.Status.ContainerStatuses[0].ImageID, own) {
		t.Errorf("the pod has the secrets %v, and runs %s", p.Spec.ImagePullSecrets, p.Status.ContainerStatuses[0].ImageID)
	}
	for _, repository := range []string{own, next, closed} {
		if status := s.pulls("", repository); status != http.StatusUnauthorized {
			t.Errorf("nobody's pull of %s: %d, want 401", repository, status)
		}
	}

	// Root on that cell.
	m := s.machine("own")
	status, answer := s.askAsRoot(m, machines.Registry()+"/"+own)
	var lent agentapi.ImageCredentials
	if err := json.Unmarshal([]byte(answer), &lent); status != http.StatusOK || err != nil || lent.Password == "" {
		t.Fatalf("the cell asks for its pod's image: %d (%v)", status, err)
	}
	for repository, want := range map[string]int{own: http.StatusOK, next: http.StatusForbidden, closed: http.StatusForbidden} {
		if got := s.pulls(lent.Password, repository); got != want {
			t.Errorf("with what was lent for %s it pulls %s: %d, want %d", own, repository, got, want)
		}
	}
	for _, image := range []string{inECR(next), inECR(closed), elsewhere, machines.Registry() + "/*", machines.Registry() + "/team/" + own} {
		status, answer := s.askAsRoot(m, image)
		if status != http.StatusForbidden || !strings.Contains(answer, "its pod does not name the image") {
			t.Errorf("the cell asks for %s, which its pod does not name: %d %.300s", image, status, answer)
		}
	}

	// What the role may not read, and what no role reads, is not pulled, and the rest is.
	s.WaitPod("mixed", "runs what it may", func(p *corev1.Pod) bool {
		n := 0
		for _, c := range p.Status.ContainerStatuses {
			waits := c.State.Waiting
			switch {
			case c.Name == "c0" && c.State.Running != nil,
				c.Name != "c0" && waits != nil && (waits.Reason == "ErrImagePull" || waits.Reason == "ImagePullBackOff"):
				n++
			}
		}
		return n == 3
	})
	s.waitEvent("mixed", "Failed", closed+":"+machines.ImageTag, "403 Forbidden")
	s.waitEvent("mixed", events.NoImageCredentials, "cn-north-1", "partition")
}

// waitEvent waits for an Event of a pod that says all this.
func (s *space) waitEvent(pod, reason string, texts ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("pod %s has the Event %s with %q", pod, reason, texts), func(ctx context.Context) error {
		out, _, errs := s.Attempt(ctx, "get", "events", "--field-selector", "involvedObject.name="+pod+",reason="+reason,
			"-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
	messages:
		for message := range strings.Lines(out) {
			for _, text := range texts {
				if !strings.Contains(message, text) {
					continue messages
				}
			}
			return nil
		}
		return fmt.Errorf("there are %q %s", out, errs)
	})
}
