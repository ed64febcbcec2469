package config

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestEveryKeyOfAProfileIsRead(t *testing.T) {
	c, warnings := parsed(t, least+`admission:
  profiles:
  - name: gpus
    namespaces: [team-a, ml-*]
    namespaceSelector: {matchLabels: {tier: batch}}
    podSelector:
      matchExpressions: [{key: app, operator: In, values: [x, y]}]
    serviceAccounts: [trainer]
    ownerKinds: [Job]
    gpu: true
    resources: [aws.amazon.com/neuron]
    minCPU: 4
    minMemory: 16Gi
    mode: burst
    annotations: {pod.elotl.co/launch-type: "spot,on-demand"}
    podDeletionCost: -5
`)
	want := Profile{
		Name:              "gpus",
		Namespaces:        []string{"team-a", "ml-*"},
		NamespaceSelector: LabelSelector{MatchLabels: map[string]string{"tier": "batch"}},
		PodSelector:       LabelSelector{MatchExpressions: []LabelExpression{{Key: "app", Operator: "In", Values: []string{"x", "y"}}}},
		ServiceAccounts:   []string{"trainer"},
		OwnerKinds:        []string{"Job"},
		GPU:               new(true),
		Resources:         []string{"aws.amazon.com/neuron"},
		MinCPU:            resource.MustParse("4"),
		MinMemory:         resource.MustParse("16Gi"),
		Mode:              ModeBurst,
		Annotations:       map[string]string{"pod.elotl.co/launch-type": "spot,on-demand"},
		PodDeletionCost:   new(-5),
	}
	if got := c.Admission.Profiles; len(warnings) > 0 || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, warnings, want)
	}
}

func TestTheCostOfDeletionFollowsTheMode(t *testing.T) {
	for _, c := range []struct {
		p    Profile
		want int
	}{{Profile{Mode: ModeBurst}, -1}, {Profile{Mode: ModeOnly}, 0}, {Profile{Mode: ModeBurst, PodDeletionCost: new(0)}, 0},
		{Profile{Mode: ModeOnly, PodDeletionCost: new(7)}, 7}} {
		if got := c.p.DeletionCost(); got != c.want {
			t.Errorf("mode %s costs %d, want %d", c.p.Mode, got, c.want)
		}
	}
}

func TestProfilesThatCannotBeAreRefused(t *testing.T) {
	for says, c := range map[string]struct {
		text string
		want []string // one for each error; key and problem
	}{
		"no name, no mode": {"- {}", []string{
			"[0]: says nothing of the pods that it chooses: want a mode (only, burst or never), or annotations",
			"[0].name: there is no value: this key is required"}},
		"another mode":        {"- {name: a, mode: always}", []string{`[0].mode: "always" is not valid: want only, burst or never`}},
		"a name that is none": {"- {name: A_b, mode: only}", []string{`[0].name: "A_b" is not valid: a lowercase RFC 1123 label`}},
		"a name twice": {"- {name: a, gpu: true, mode: only}\n- {name: a, gpu: false, mode: only}", []string{
			"[1].name: admission.profiles[0] has the name a too: want another"}},
		"names that are none": {"- {name: a, mode: only, namespaces: [A, 'b*c'], serviceAccounts: [x/y], ownerKinds: [job]}", []string{
			`[0].namespaces[0]: "A" is not valid: want the name of a namespace, or the beginning of one and a * at its end`,
			`[0].namespaces[1]: "b*c" is not valid: want the name of a namespace`,
			`[0].ownerKinds[0]: "job" is not valid: want a kind such as Job`,
			`[0].serviceAccounts[0]: "x/y" is not valid: want the name of a service account, without its namespace`}},
		"kinds that control no pods": {"- {name: a, mode: only, ownerKinds: [Deployment, CronJob]}", []string{
			`[0].ownerKinds[0]: "Deployment" is not valid: want ReplicaSet, by which a Deployment controls its pods`,
			`[0].ownerKinds[1]: "CronJob" is not valid: want Job, by which a CronJob controls its pods`}},
		"DaemonSets that burst": {"- {name: a, mode: burst, ownerKinds: [DaemonSet]}", []string{
			`[0].mode: "burst" is not valid: want only, or none, since ownerKinds has DaemonSet`}},
		"selectors": {"- {name: a, mode: only, podSelector: {matchLabels: {'a b': c}, matchExpressions: [{key: a, operator: Gt, values: ['1']}, " +
			"{key: a, operator: In}]}}", []string{
			`[0].podSelector.matchExpressions[0].operator: "Gt" is not valid: want In, NotIn, Exists or DoesNotExist`,
			`[0].podSelector.matchExpressions[1]: is not valid: `,
			`[0].podSelector.matchLabels.a b: "a b" is no name of a label`}},
		"resources": {"- {name: a, mode: only, gpu: false, minCPU: -1, resources: [cpu, memory, nvidia.com/gpu]}", []string{
			`[0].minCPU: "-1" is not valid: want 0 or more`, `[0].resources[0]: "cpu" is not valid: want minCPU`,
			`[0].resources[1]: "memory" is not valid: want minMemory`, `[0].resources[2]: "nvidia.com/gpu" is a GPU, and gpu is false`}},
		"annotations": {"- {name: a, mode: only, annotations: {pod.elotl.co/lunch-type: spot, pod.elotl.co/volume-size: much, team: x, " +
			"pod.elotl.co/profile: b}}", []string{
			"[0].annotations.pod.elotl.co/lunch-type: annotation pod.elotl.co/lunch-type is unknown",
			"[0].annotations.pod.elotl.co/profile: Kip writes this one itself",
			`[0].annotations.pod.elotl.co/volume-size: annotation pod.elotl.co/volume-size: "much" is not valid: want a quantity`,
			"[0].annotations.team: is none of Kip's annotations"}},
		"an autoscaler's annotation": {"- {name: a, mode: burst, annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: 'no', " +
			"karpenter.sh/do-not-disrupt: 'true'}}", []string{
			`[0].annotations.cluster-autoscaler.kubernetes.io/safe-to-evict: "no" is not valid: want true or false`}},
		"annotations that contradict each other": {"- {name: a, mode: only, annotations: {pod.elotl.co/instance-profile: x, " +
			"pod.elotl.co/allow-metadata: 'false'}}", []string{"[0].annotations.pod.elotl.co/instance-profile: annotation"}},
		"what never needs": {"- {name: a, mode: never, podDeletionCost: -1, annotations: {pod.elotl.co/launch-type: spot}}", []string{
			"[0].annotations: are for pods on Kip's nodes, and mode is never: want none",
			`[0].podDeletionCost: "-1" is not valid: want 0, since mode is never`}},
		"a cost that no annotation holds": {"- {name: a, mode: only, podDeletionCost: 2147483648}", []string{
			`[0].podDeletionCost: "2147483648" is not valid: want a number of 32 bits`}},
		"the same twice": {"- {name: a, namespaces: [x], mode: only}\n- {name: b, namespaces: [x], mode: never}", []string{
			`[1]: chooses the same pods as admission.profiles[0] (a), and contradicts its mode "only" by "never": want one of them`}},
		"one that comes too late": {"- {name: all, mode: burst}\n- {name: b, namespaces: [x], gpu: true, mode: only}", []string{
			"[1]: chooses no pod, since admission.profiles[0] (all) comes before it and chooses all that it would: want it before that one"}},
		"one within another": {"- {name: a, namespaces: ['ml-*'], minCPU: 2, podSelector: {matchExpressions: [{key: app, operator: Exists}]}, mode: only}\n" +
			"- {name: b, namespaces: [ml-x], minCPU: 4, podSelector: {matchLabels: {app: web}}, ownerKinds: [Job], mode: never}", []string{
			"[1]: chooses no pod, since admission.profiles[0] (a)"}},
	} {
		_, _, err := Parse("p.yaml", []byte(least+"admission:\n  profiles:\n  "+strings.ReplaceAll(c.text, "\n", "\n  ")))
		if err == nil {
			t.Errorf("%s: it is taken", says)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("%s: %d errors, want %d:\n%v", says, len(lines), len(c.want), err)
			continue
		}
		for i, want := range c.want {
			if _, problem, _ := strings.Cut(lines[i], "admission.profiles"); !strings.HasPrefix(problem, want) {
				t.Errorf("%s: got  %s\nwant %s", says, problem, want)
			}
		}
	}
}

// What the first of two does not surely choose is left for the second.
func TestProfilesThatPodsReachAreTaken(t *testing.T) {
	for says, text := range map[string]string{
		"narrow before wide":        "- {name: a, namespaces: [x], mode: never}\n- {name: b, mode: burst}",
		"a system namespace":        "- {name: a, mode: burst}\n- {name: b, namespaces: [kube-system], mode: only}",
		"DaemonSets":                "- {name: a, mode: burst}\n- {name: b, ownerKinds: [DaemonSet], mode: only}",
		"other labels":              "- {name: a, podSelector: {matchLabels: {app: web}}, mode: burst}\n- {name: b, podSelector: {matchLabels: {app: db}}, mode: only}",
		"smaller ones":              "- {name: a, minMemory: 4Gi, mode: only}\n- {name: b, minMemory: 2Gi, mode: burst}",
		"those that select Kip":     "- {name: a, annotations: {pod.elotl.co/launch-type: spot}}\n- {name: b, mode: burst}",
		"a wider beginning":         "- {name: a, namespaces: ['ml-a*'], mode: only}\n- {name: b, namespaces: ['ml-*'], mode: burst}",
		"namespaces by their label": "- {name: a, namespaceSelector: {matchLabels: {x: y}}, mode: only}\n- {name: b, namespaces: [x], mode: burst}",
	} {
		if _, _, err := Parse("p.yaml", []byte(least+"admission:\n  profiles:\n  "+strings.ReplaceAll(text, "\n", "\n  "))); err != nil {
			t.Errorf("%s: %v", says, err)
		}
	}
}
