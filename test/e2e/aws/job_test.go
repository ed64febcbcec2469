//go:build e2e

package aws

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/tier"
)

// served is a Deployment, its Service, and a Job that is done when that has answered it.
const served = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 100m, memory: 64Mi}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: ask}
spec:
  backoffLimit: 0
  template:
    spec:
      nodeSelector: {type: virtual-kubelet}
      restartPolicy: Never
      containers:
      - name: main
        image: busybox:1.36
        # busybox' wget has no working timeout.
        command: [sh, -c, 'until [ $(sort -u /tmp/answers 2>/dev/null | wc -l) = 2 ]; do timeout 3 wget -qO- http://web/ >>/tmp/answers || sleep 0.2; done; sort -u /tmp/answers']
        resources: {requests: {cpu: 100m, memory: 64Mi}}
`

func TestAJobIsAnsweredByTheServiceOfADeployment(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	s.Apply(served)
	s.Kubectl("wait", "--for=condition=Complete", "job/ask", "--timeout=5m")
	want := s.Kubectl("get", "pods", "-l=app=web", "--sort-by=.metadata.name", `-o=jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}`)
	if log := s.Kubectl("logs", "job/ask"); log != want {
		t.Errorf("the Job was answered by %q, want the pods %q", log, want)
	}
	// That of the Job ends with its pod, and may be over before its turn to be tagged; the Deployment's run on.
	s.Eventually("of three instances that of the Job is over", func(ctx context.Context) error {
		all := s.since(ctx, before)
		for _, i := range all {
			is := i.Tags[cloud.TagPod]
			switch {
			case is == "" && i.Ended.IsZero():
				return fmt.Errorf("instance %s has no tag of its pod", i.ID)
			case i.Ended.IsZero() != strings.HasPrefix(is, "web-"):
				return fmt.Errorf("the instance of pod %s is %s", is, i.State)
			}
		}
		if len(all) != 3 {
			return fmt.Errorf("there are %+v", all)
		}
		return nil
	})
	s.Kubectl("delete", "deployment", "web")
	s.Eventually("all instances are over", func(ctx context.Context) error {
		for _, i := range s.since(ctx, before) {
			if i.Cause != sim.Terminated {
				return fmt.Errorf("instance %s is %s (%q)", i.ID, i.State, i.Cause)
			}
		}
		return nil
	})
}
