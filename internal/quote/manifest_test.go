package quote

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

const podSpec = `{containers: [{name: c, image: i, resources: {requests: {cpu: 1, memory: 1Gi}}}]}`

// one is a line for each workload.
func shown(all []Workload) string {
	var lines []string
	for _, w := range all {
		line := fmt.Sprintf("%s/%s %s x%d", w.Namespace, w.Name, w.Owner, w.Replicas)
		if w.Ends {
			line += " ends"
		}
		if w.RunsPerMonth > 0 {
			line += fmt.Sprintf(", runs %.4g", w.RunsPerMonth)
		}
		if w.NotOnKip != "" {
			line += ", not on Kip"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestWorkloadsAreRead(t *testing.T) {
	template := "template: {metadata: {labels: {a: b}}, spec: " + podSpec + "}"
	of := func(version, kind, spec string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: n}\nspec: {%s}\n", version, kind, spec)
	}
	for _, c := range [][2]string{
		{"", ""},
		{"---\n---\n# nothing\n", ""},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: x}\nspec: " + podSpec, "x/p  x1"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\nspec: {restartPolicy: Never, containers: [{name: c}]}",
			"d/p-  x1 ends"},
		{of("apps/v1", "Deployment", "replicas: 3, "+template), "d/n Deployment/n x3"},
		{of("apps/v1", "Deployment", template), "d/n Deployment/n x1"},
		{of("apps/v1", "ReplicaSet", "replicas: 0, "+template), "d/n ReplicaSet/n x0"},
		{of("v1", "ReplicationController", "replicas: 2, "+template), "d/n ReplicationController/n x2"},
		{of("apps/v1", "StatefulSet", "serviceName: s, replicas: 2, "+template), "d/n StatefulSet/n x2"},
		{of("apps/v1", "DaemonSet", template), "d/n DaemonSet/n x0, not on Kip"},
		{of("batch/v1", "Job", template), "d/n Job/n x1 ends"},
		{of("batch/v1", "Job", "parallelism: 5, completions: 3, "+template), "d/n Job/n x3 ends"},
		{of("batch/v1", "Job", "suspend: true, "+template), "d/n Job/n x0 ends"},
		{of("batch/v1", "CronJob", "schedule: '0 3 * * *', jobTemplate: {spec: {parallelism: 2, "+template+"}}"),
			"d/n CronJob/n x2 ends, runs 30.42"},
		{of("batch/v1", "CronJob", "schedule: '@monthly', timeZone: Europe/Berlin, jobTemplate: {spec: {"+template+"}}"),
			"d/n CronJob/n x1 ends, runs 1"},
		{of("batch/v1", "CronJob", "schedule: '* * * * *', suspend: true, jobTemplate: {spec: {"+template+"}}"),
			"d/n CronJob/n x0 ends"},
		{"apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}", ""},
		{"apiVersion: example.com/v1\nkind: Deployment\nspec: {what: ever}", ""},
		{"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: " + podSpec + "}\n" +
			"- {apiVersion: v1, kind: Pod, metadata: {name: b}, spec: " + podSpec + "}", "d/a  x1\nd/b  x1"},
		{`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j"}, "spec": {"containers": [{"name": "c"}]}}`, "d/j  x1"},
		{"---\n# Source: x\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: &s " + podSpec + "\n---\napiVersion: v1\nkind: Pod\n" +
			"metadata: {name: b, annotations: {pod.elotl.co/launch-type: spot, other: x}}\nspec:\n  <<: {terminationGracePeriodSeconds: 5}\n" +
			"  containers: [{name: c}]\n", "d/a  x1\nd/b  x1"},
	} {
		text, want := c[0], c[1]
		got, err := Read("f.yaml", "d", []byte(text))
		if err != nil || shown(got) != want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", text, shown(got), err, want)
		}
	}
	merged, err := Read("f", "d", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"+
		"spec:\n  <<: {hostNetwork: true}\n  containers: [{name: c}]\n"))
	if err != nil || !merged[0].Pod.Spec.HostNetwork {
		t.Errorf("what is merged is lost: %v", err)
	}
}

func TestWrongManifestsAreToldWithTheirLine(t *testing.T) {
	const head = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n"
	const inPod = head + "  template:\n    spec:\n      containers:\n      - name: c\n" // the next line is 10
	const object = `Deployment "web": `
	const containers = "spec.template.spec.containers"
	for _, c := range [][2]string{
		{"a: b: c", "f.yaml:1: error converting YAML to JSON: mapping values are not allowed in this context"},
		{"kind: Pod\n---\n\ta: 1", "f.yaml:3: error converting YAML to JSON: found character that cannot start any token"},
		{"kind: Pod\n---\na: 1", "f.yaml:1: error validating data: apiVersion not set"},
		{"apiVersion: v1\nspec: {}", "f.yaml:1: error validating data: kind not set"},
		{"- a", "f.yaml:1: want an object with apiVersion and kind"},
		{"apiVersion: a/b/c\nkind: Pod", "f.yaml:1: apiVersion: unexpected GroupVersion string: a/b/c"},
		{"apiVersion: apps/v1\nkind: Pod", `f.yaml:2: no matches for kind "Pod" in version "apps/v1"; it is in v1`},
		{"apiVersion: apps/v1\nkind: Deploment",
			`f.yaml:2: no matches for kind "Deploment" in version "apps/v1"; did you mean Deployment?`},
		{"apiVersion: extensions/v1beta1\nkind: DaemonSets",
			`f.yaml:2: no matches for kind "DaemonSets" in version "extensions/v1beta1"`},
		{head + "  replicas: three\n  template: {spec: " + podSpec + "}",
			"f.yaml:6: " + object + `spec.replicas: Invalid value: "three": want a whole number`},
		{head + "  replicas: -1\n  template: {spec: " + podSpec + "}",
			"f.yaml:6: " + object + "spec.replicas: Invalid value: -1: must be greater than or equal to 0"},
		{head + "  replicaas: 1\n  template: {spec: " + podSpec + "}",
			"f.yaml:6: " + object + `unknown field "spec.replicaas"; did you mean replicas?`},
		{head + "  replicas: 1\n  replicas: 1\n  template: {spec: " + podSpec + "}",
			"f.yaml:7: " + object + `key "replicas" already set in map`},
		{head + "  template:\n    spec: {}\n", "f.yaml:7: " + object + containers + ": Required value"},
		{head + "  template:\n    spec:\n      containers: {}\n", "f.yaml:8: " + object + containers + ": want a list"},
		{head + "  template: []\n", "f.yaml:6: " + object + "spec.template: want an object"},
		{inPod + "        image: 5\n",
			"f.yaml:10: " + object + containers + `[0].image: Invalid value: "5": want a string; put it in quotes`},
		{inPod + "        image: [a]\n", "f.yaml:10: " + object + containers + "[0].image: want a single value"},
		{inPod + "        tty: maybe\n",
			"f.yaml:10: " + object + containers + `[0].tty: Invalid value: "maybe": want true or false`},
		{inPod + "        resources:\n          requests:\n            cpu: 1x\n", "f.yaml:12: " + object + containers +
			"[0].resources.requests.cpu: quantities must match the regular expression"},
		{inPod + "        resources:\n          requests:\n            cpu: 1e-999999999\n",
			"f.yaml:12: " + object + containers +
				"[0].resources.requests.cpu: quantities must match the regular expression"},
		{inPod + "        resources:\n          limits:\n            memory: -1Gi\n", "f.yaml:12: " + object + containers +
			`[0].resources.limits.memory: Invalid value: "-1Gi": must be greater than or equal to 0`},
		{inPod + "        resources:\n          requests:\n            cpu: 2\n          limits: {cpu: 1}\n",
			"f.yaml:12: " + object + containers +
				`[0].resources.requests.cpu: Invalid value: "2": must be less than or equal to cpu limit of 1`},
		{head + "  template:\n    metadata:\n      annotations:\n        pod.elotl.co/launch-type: cheap\n    spec: " + podSpec,
			"f.yaml:9: " + object +
				`spec.template.metadata.annotations.pod.elotl.co/launch-type: annotation pod.elotl.co/launch-type: "cheap" is not valid`},
		{"apiVersion: v1\nkind: Pod\nmetadata: {labels: {a: b}}\nspec: " + podSpec,
			`f.yaml:3: Pod "": metadata.name: Required value: name or generateName is required`},
		{"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  schedule: every day\n  jobTemplate: {spec: {template: {spec: " +
			podSpec + "}}}", `f.yaml:5: CronJob "c": spec.schedule: Invalid value: "every day": expected exactly 5 fields`},
		{"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  schedule: TZ=x\n  jobTemplate: {spec: {template: {spec: " +
			podSpec + "}}}",
			`f.yaml:5: CronJob "c": spec.schedule: Invalid value: "TZ=x": cannot use TZ or CRON_TZ in schedule`},
		{"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: p}\n  spec: {container: []}\n",
			`f.yaml:7: Pod "p": unknown field "spec.container"; did you mean containers?`},
	} {
		text, want := c[0], c[1]
		got, err := Read("f.yaml", "d", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) || got != nil {
			t.Errorf("%s\ngot  %v, %v\nwant %s", text, got, err, want)
		}
	}

	many := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c}]\n"
	for i := range 30 {
		many += fmt.Sprintf("  x%d: 1\n", i)
	}
	if _, err := Read("f", "d", []byte(many)); err == nil || strings.Count(err.Error(), "\n") != mostErrors ||
		!strings.Contains(err.Error(), "and 10 more") {
		t.Errorf("of many errors: %v", err)
	}
	if _, err := Read("f", "d", make([]byte, MostBytes+1)); err == nil || !strings.Contains(err.Error(), "larger than 16 MiB") {
		t.Errorf("of a large file: %v", err)
	}
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 9), i)
	}
	for _, endless := range []string{bomb, "apiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: v1, kind: List, items: [*a]}"} {
		const want = "f:1: it contains itself, or aliases make more"
		if _, err := Read("f", "d", []byte(endless)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("what has no end: %v", err)
		}
	}
}

// FuzzRead holds that what is read of a manifest can be priced, that what is wrong is told
// on clean lines with their places, and that both are the same each time.
func FuzzRead(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: " + podSpec + "\n---\nkind: Pod\n"))
	f.Add([]byte("{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, resources: " +
		"{requests: {cpu: -1, memory: -2, ephemeral-storage: -3, a/b: -4}, limits: {cpu: -5, memory: -6}}}]}}"))
	f.Add([]byte("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: n}\nspec: {schedule: '0 3 * * *', jobTemplate: {spec: " +
		"{parallelism: 3, completions: -2, template: {spec: " + podSpec + "}}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := Read("f", "d", data)
		again, againErr := Read("f", "d", data)
		if !reflect.DeepEqual(again, found) || fmt.Sprint(againErr) != fmt.Sprint(err) {
			t.Fatalf("%v, %v\nthe second time it is\n%v, %v", shown(found), err, shown(again), againErr)
		}
		if err != nil {
			if len(found) > 0 {
				t.Fatalf("an error and workloads: %s", shown(found))
			}
			last := 2
			for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // all that end a line in YAML
				last += bytes.Count(data, []byte(end))
			}
			told := err.(interface{ Unwrap() []error }).Unwrap()
			for i, e := range told {
				var wrong *Error
				if known := errors.As(e, &wrong); known && (wrong.File != "f" || wrong.Line < 1 || wrong.Line > last) ||
					!known && i < mostErrors || i > mostErrors || strings.ContainsFunc(e.Error(), unicode.IsControl) {
					t.Fatalf("of %d lines at most: error %d of %d is %q", last, i+1, len(told), e)
				}
			}
			return
		}
		for _, w := range found {
			if w.Name == "" || w.Namespace == "" || w.Replicas < 0 || w.RunsPerMonth < 0 || w.RunsPerMonth > 60*24*31 ||
				len(w.Pod.Spec.Containers) == 0 {
				t.Fatalf("read %s: %+v", shown([]Workload{w}), w)
			}
			for _, c := range w.Pod.Spec.Containers {
				for name, q := range c.Resources.Requests {
					if limit, bounded := c.Resources.Limits[name]; q.Sign() < 0 || bounded && q.Cmp(limit) > 0 {
						t.Fatalf("container %q requests %s %s, of at most %s", c.Name, q.String(), name, limit.String())
					}
				}
			}
		}
	})
}
