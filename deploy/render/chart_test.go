package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/engine"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const least = "config: {cloud: {aws: {region: us-east-1}}, cells: {defaultInstanceType: t3.micro}}\n"

const external = `
config:
  cloud: {aws: {region: us-east-1}}
  cells: {defaultInstanceType: t3.micro}
  etcd: {client: {endpoints: ["https://etcd:2379"]}}
`

// profiled are values with a list of profiles, in YAML.
func profiled(list string) string {
	return "config:\n  cloud: {aws: {region: us-east-1}}\n  cells: {defaultInstanceType: t3.micro}\n  admission:\n    profiles:\n    " +
		strings.ReplaceAll(strings.TrimSpace(list), "\n", "\n    ") + "\n"
}

// rendered is the chart with values, as release team in namespace apps.
func rendered(t *testing.T, text string) (map[string]string, error) {
	t.Helper()
	return renderedIn(t, text, nil)
}

func renderedIn(t *testing.T, text string, cluster engine.ClientProvider) (map[string]string, error) {
	t.Helper()
	c, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	values, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return release{name: "team", namespace: "apps", values: values, cluster: cluster}.renderAll(c)
}

// objects are all that an installation with values has, hooks too.
func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	all, err := rendered(t, text)
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == "NOTES" {
			continue
		}
		for _, document := range documents(all[name]) {
			out = append(out, object(t, document))
		}
	}
	return out
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(data); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return &o
}

// named is the object of a kind, whose name begins with a word.
func named(t *testing.T, all []*unstructured.Unstructured, kind, prefix string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range all {
		if o.GetKind() == kind && strings.HasPrefix(o.GetName(), prefix) {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, prefix)
	return nil
}

// into decodes an object as a type that has all of its fields.
func into[T any](t *testing.T, o *unstructured.Unstructured) T {
	t.Helper()
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &out, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return out
}

func podOf(t *testing.T, all []*unstructured.Unstructured) corev1.PodSpec {
	t.Helper()
	for _, o := range all {
		if o.GetKind() == "StatefulSet" || o.GetKind() == "Deployment" {
			spec, _, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
			if err != nil {
				t.Fatal(err)
			}
			return into[corev1.PodSpec](t, &unstructured.Unstructured{Object: spec})
		}
	}
	t.Fatal("there is no workload")
	return corev1.PodSpec{}
}

// Each object decodes strictly as its kind, so that no field is misspelled or misplaced.
func TestEveryObjectIsOneOfItsKind(t *testing.T) {
	codec := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	others := map[string]bool{"ServiceMonitor": true, "Certificate": true}
	for says, text := range map[string]string{
		"the least":     least,
		"external etcd": external,
		"a Deployment with a claim": least + `
kind: Deployment
persistence: {storageClassName: "", annotations: {a: b}}`,
		"all that is off": least + `
nodeCount: 3
credentials: {data: {AWS_ACCESS_KEY_ID: "1", AWS_SECRET_ACCESS_KEY: "true"}}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::012345678910:role/kip"}}
imagePullSecrets: [{name: registry}]
policies: {namespaces: true}
metrics: {certSecret: scrape, audience: kip, readers: [{namespace: monitoring, name: prometheus}]}
serviceMonitor: {enabled: true, labels: {a: b}, tlsConfig: {serverName: kip}, authorization: {credentials: {name: a, key: b}}}
servingCertificate: {source: csr, requester: kip, approve: true}
cloudInit: "#cloud-config\nhostname: cell"
networkPolicy: {enabled: true, from: [{ipBlock: {cidr: 10.0.0.0/8}}]}
nodeSelector: {a: b}
tolerations: [{operator: Exists}]
affinity: {podAffinity: {}}
topologySpreadConstraints: [{topologyKey: a, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}]
podAnnotations: {a: b}
podLabels: {a: b}
extraArgs: [--v=1]
extraEnv: [{name: A, value: b}]
extraVolumes: [{name: etcd, secret: {secretName: etcd}}]
extraVolumeMounts: [{name: etcd, mountPath: /etc/kip/etcd}]
uninstall: {hook: true, force: true}
createNamespace: true`,
		"profiles": profiled(`
- {name: a, namespaces: [a, "b*"], podSelector: {matchLabels: {c: d}, matchExpressions: [{key: e, operator: Exists}]}, mode: burst}
- {name: f, gpu: true, resources: [g.io/h], serviceAccounts: [i], ownerKinds: [Job], annotations: {pod.elotl.co/launch-type: spot}}`),
		"on one host": `
config: {cloud: {qemu: {}}, cells: {defaultInstanceType: small}}
host: {name: rack-1}`,
		"cert-manager": least + `
hostNetwork: true
servingCertificate: {source: cert-manager, issuerRef: {name: ca, kind: ClusterIssuer}, ipAddresses: [10.0.0.1]}`,
		"all that is on is off": least + `
serviceAccount: {create: false, name: other}
rbac: {create: false}
policies: {enabled: false}
webhook: {enabled: false}
storageClass: {create: false}
persistence: {enabled: false}
crds: {upgrade: false}
existingConfigMap: mine`,
	} {
		all := objects(t, text)
		for _, o := range all {
			data, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := codec.Decode(data, nil, nil); err != nil && !others[o.GetKind()] {
				t.Errorf("%s: %s %s: %v", says, o.GetKind(), o.GetName(), err)
			}
		}
		if len(all) < 3 {
			t.Errorf("%s: there are %d objects", says, len(all))
		}
	}
}

func TestWhatCannotBeIsRefusedByItsKey(t *testing.T) {
	for text, words := range map[string][]string{
		profiled("- {name: a, mode: only}") + "webhook: {enabled: false}": {"webhook.enabled is false", "config.admission.profiles"},
		least + "\nwebhook: {enabled: false, profiles: true}":             {"webhook.enabled is false", "webhook.profiles"},
		least + "\nwebhook: {enabled: false, daemonSets: true}":           {"webhook.enabled is false", "webhook.daemonSets"},
		profiled("- {name: a, modus: only}"):                              {"/config/admission/profiles/0", "modus"},
		"":                                                                {"config.cloud", "config.cloud.aws.region=us-east-1"},
		"config: {cloud: {aws: {}}}":                                      {"config.cells.defaultInstanceType"},
		"config: {cloud: {aws: {}, gce: {}}}":                             {"/config/cloud", "maxProperties"},
		"config: {clouds: {}}":                                            {"/config", "clouds"},
		least + "nodename: kip-0":                                         {"nodename"},
		least + "nodeName: Kip_0":                                         {"/nodeName", "Kip_0"},
		least + "nodeCount: 65":                                           {"/nodeCount", "64"},
		least + "nodeCount: two":                                          {"/nodeCount", "got string, want null or integer"},
		least + "image: {repo: x}":                                        {"/image", "repo"},
		least + "image: {digest: abc}":                                    {"/image/digest", "abc"},
		least + "replicas: 2":                                             {"replicas is 2", "config.etcd.client.endpoints"},
		least + "kind: DaemonSet":                                         {"/kind", "StatefulSet", "Deployment"},
		least + "webhook: {port: 70000}":                                  {"/webhook/port", "65,535"},
		least + "webhook: {enabled: \"yes\"}":                             {"/webhook/enabled", "want boolean"},
		least + "taint: {effect: NoRun}":                                  {"/taint/effect", "NoSchedule"},
		least + "credentials: {data: {A: 1}}":                             {"/credentials/data/A", "want string"},
		least + "host: {name: rack-1}":                                    {"host.name", "rack-1", "nodeSelector"},
		least + "persistence: {existingClaim: c}":                         {"persistence.existingClaim", `"c"`, "Deployment"},
		least + "serviceMonitor: {enabled: true}":                         {"serviceMonitor.tlsConfig", "insecureSkipVerify"},
		least + "servingCertificate: {source: secret}":                    {"servingCertificate.secretName", "kubernetes.io/tls"},
		least + "extraArgs: [v=1]":                                        {"/extraArgs/0", "v=1"},
		least + "hostNetwork: true\nkubelet: {port: 10250}":               {"kubelet.port is 10250", "hostNetwork"},
		least + "bootImage: {publish: true}\nimage: {digest: 'sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}": {
			"bootImage.publish is true", "set bootImage.tag"},
		least + "bootImage: {publish: true}\nimage: {repository: kip}": {"image.repository is \"kip\"", "set bootImage.repository"},
		least + "credentials: {existingSecret: s, data: {A: b}}": {
			"credentials.existingSecret", "credentials.data"},
		least + "servingCertificate: {source: cert-manager}": {"servingCertificate.issuerRef.name"},
		least + "servingCertificate: {source: cert-manager, issuerRef: {name: ca}}": {
			"servingCertificate.ipAddresses"},
		least + "serviceMonitor: {enabled: true, tlsConfig: {serverName: kip}}": {"serviceMonitor.authorization"},
		"config: {cloud: {local: {}}, cells: {defaultInstanceType: nano}}": {
			"host.name is empty", "config.cloud.local", "kubernetes.io/hostname"},
		"config: {cloud: {aws: {secretAccessKey: hush}}, cells: {defaultInstanceType: nano}}": {
			"config.cloud.aws.secretAccessKey", "credentials.existingSecret"},
		"nodeCount: 1\nconfig: {cloud: {aws: {}}, cells: {defaultInstanceType: nano}, nodes: [{zones: [a]}, {zones: [b]}]}": {
			"nodeCount is 1", "nodeCount to 2"},
		"nodeCount: 4\nconfig: {cloud: {aws: {}}, cells: {defaultInstanceType: nano}, nodes: [{suffix: 7}]}": {
			"nodeCount is 4", "nodeCount to 7"},
		"config: {cloud: {aws: {}}, cells: {defaultInstanceTyp: nano}}":   {"/config/cells", "defaultInstanceTyp"},
		"config: {cloud: {aws: {region: 5}}}":                             {"/config/cloud/aws/region", "want string"},
		"config: {cloud: {aws: {subnetID: {a: b}}}}":                      {"/config/cloud/aws/subnetID"},
		"config: {cells: {healthcheck: {status: {healthyTimeout: 90s}}}}": {"healthyTimeout", "want number"},
		"config: {cloud: {aws: {}}, cells: {defaultInstanceType: nano}, nodes: [{suffix: 7, zones: [a]}, {suffix: 7}]}": {
			"config.nodes", "suffix 7"},
		"config: {cloud: {aws: {}}, cells: {defaultInstanceType: nano}, nodes: none}": {"/config/nodes"},
		least + "existingConfigMap: mine\ncloudInit: x":                               {"cloudInit", "existingConfigMap", "cells.cloudInitFile"},
		least + "existingConfigMap: mine\nservingCertificate: {source: csr}":          {"existingConfigMap", "kubernetes.io/kubelet-serving"},
		"config: {cloud: {aws: {}}, cells: {defaultInstanceType: nano}, servingCertificate: {signerName: a/b}}": {
			"config.servingCertificate", "servingCertificate.source"},
	} {
		_, err := rendered(t, text)
		if err == nil {
			t.Errorf("%s\nis taken", text)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s\n%v\ndoes not say %q", text, err, w)
			}
		}
		if strings.Contains(err.Error(), "hush") {
			t.Errorf("the error has the secret: %v", err)
		}
	}
}

// Kip may be the nodes that the values ask for, each by its name, and no other.
func TestRightsNameTheNodesThatTheValuesAskFor(t *testing.T) {
	const config = "config: {cloud: {aws: {}}, cells: {defaultInstanceType: nano}, nodes: %s}\n"
	numbered := func(n int) []string {
		out := []string{"team-kip-0"}
		for i := range n {
			out = append(out, fmt.Sprintf("team-kip-0-%d", i+1))
		}
		return out
	}
	for text, want := range map[string][]string{
		least:                                  numbered(16),
		fmt.Sprintf(config, "null"):            numbered(16),
		least + "nodeName: edge\nnodeCount: 0": {"edge"},
		least + "nodeName: edge\nnodeCount: 2": {"edge", "edge-1", "edge-2"},
		fmt.Sprintf(config, "auto"):            numbered(64),
		// An entry keeps its number when others go.
		fmt.Sprintf(config, "[{zones: [a]}, {zones: [b]}]"): numbered(64),
		fmt.Sprintf(config, "[{suffix: 9}]"):                numbered(64),
	} {
		all := objects(t, text)
		role := into[rbacv1.ClusterRole](t, named(t, all, "ClusterRole", "kip."+want[0]))
		seen := 0
		for _, r := range role.Rules {
			switch {
			case slices.Contains(r.Resources, "users"):
				seen++
				for i, name := range r.ResourceNames {
					if i >= len(want) || name != "system:node:"+want[i] || len(r.ResourceNames) != len(want) {
						t.Errorf("%s: Kip may be %v", text, r.ResourceNames)
						break
					}
				}
			case slices.Contains(r.Resources, "nodes") && !slices.Equal(r.Verbs, []string{"create"}):
				seen++
				if !slices.Equal(r.ResourceNames, want) {
					t.Errorf("%s: Kip may change %v: want %v", text, r.ResourceNames, want)
				}
			}
		}
		if seen != 2 {
			t.Errorf("%s: %d rules name nodes: want 2", text, seen)
		}
		named(t, all, "MutatingWebhookConfiguration", want[0])
	}
}

// The rest of what is made belongs to one release, so that two can be beside each other.
func TestTwoReleasesShareNoObject(t *testing.T) {
	c, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, name := range []string{"kip-a", "kip-b"} {
		values, err := parse(least + `
storageClass: {create: false}
policies: {namespaces: true}
servingCertificate: {source: csr, requester: kip, approve: true}
metrics: {readers: [{namespace: a, name: b}]}
uninstall: {hook: true}`)
		if err != nil {
			t.Fatal(err)
		}
		all, err := release{name: name, namespace: "kip-system", values: values}.renderAll(c)
		if err != nil {
			t.Fatal(err)
		}
		delete(all, "NOTES")
		for _, text := range all {
			for _, document := range documents(text) {
				o := object(t, document)
				is := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
				if owner := owners[is]; owner != "" {
					t.Errorf("%s is of %s and of %s", is, owner, name)
				}
				owners[is] = name
			}
		}
	}
	if len(owners) < 50 {
		t.Errorf("there are %d objects", len(owners))
	}
}

// aCluster has some objects.
type aCluster struct{ dynamic.Interface }

func (c aCluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	plural, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
	return c.Resource(plural), false, err
}

func clusterOf(objects ...runtime.Object) aCluster {
	return aCluster{dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}: "ClusterRoleList",
		{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}:          "StorageClassList",
		{Group: "apps", Version: "v1", Resource: "statefulsets"}:                      "StatefulSetList",
		{Group: "apps", Version: "v1", Resource: "deployments"}:                       "DeploymentList",
	}, objects...)}
}

func TestANodeOfAnotherReleaseIsRefused(t *testing.T) {
	role := func(release, nodes string) *unstructured.Unstructured {
		o := named(t, objects(t, least+"nodeName: edge\nnodeCount: "+nodes), "ClusterRole", "kip.edge")
		if release != "" {
			o.SetAnnotations(map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "apps"})
		}
		return o
	}
	for says, c := range map[string]struct {
		there *unstructured.Unstructured
		text  string
		words []string
	}{
		"the same release": {role("team", "0"), "nodeName: edge", nil},
		"another name":     {role("other", "0"), "nodeName: edge-1", nil},
		"the same name": {
			role("other", "0"), "nodeName: edge", []string{`node edge belongs to release "other" in namespace "apps"`}},
		"the name of a numbered one":    {role("other", "2"), "nodeName: edge-1", []string{"node edge-1 belongs to"}},
		"a number that is a name":       {role("other", "0"), "nodeName: edge\nnodeCount: 1", []string{"node edge "}},
		"one that Helm did not install": {role("", "0"), "nodeName: edge", []string{"ClusterRole kip.edge", "nodeName"}},
	} {
		_, err := renderedIn(t, least+c.text, clusterOf(c.there))
		if (err == nil) != (c.words == nil) {
			t.Errorf("%s: %v", says, err)
		}
		for _, w := range c.words {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", says, err, w)
			}
		}
	}
}

func TestAReleaseKeepsItsNodeAndItsStore(t *testing.T) {
	of := func(release, values string) *unstructured.Unstructured {
		o := named(t, objects(t, least+values), "StatefulSet", "team-kip")
		o.SetAnnotations(map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "apps"})
		return o
	}
	for text, c := range map[string]struct {
		there *unstructured.Unstructured
		words []string
	}{
		"nodeName: edge":        {of("team", "nodeName: edge"), nil},
		"nodeName: other":       {of("team", "nodeName: edge"), []string{"nodeName", "edge", "other", "kipctl cleanup"}},
		"fullnameOverride: kip": {of("team", "nodeName: team-kip-0"), []string{"fullnameOverride", "team-kip", "kipctl cleanup"}},
		"nodeName: third":       {of("another", "nodeName: edge"), nil},
	} {
		_, err := renderedIn(t, least+text, clusterOf(c.there))
		if (err == nil) != (c.words == nil) {
			t.Errorf("%s: %v", text, err)
		}
		for _, w := range c.words {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", text, err, w)
			}
		}
	}
}

func TestPodsOfOneHostAreReplacedOneByOne(t *testing.T) {
	const external = "etcd: {client: {endpoints: ['https://etcd:2379']}}, cells: {defaultInstanceType: nano}"
	for text, words := range map[string][]string{
		"hostNetwork: true\nconfig: {cloud: {aws: {}}, " + external + "}": {"replicas: 2", "maxSurge: 0, maxUnavailable: 1"},
		"host: {name: a}\nconfig: {cloud: {local: {}}, " + external + "}": {"replicas: 1", "type: Recreate", "hostPID: true"},
	} {
		all, err := rendered(t, text)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !strings.Contains(all["workload"], w) {
				t.Errorf("%s: the workload does not have %q:\n%s", text, w, all["workload"])
			}
		}
	}
}

func TestAStorageClassOfSomebodyElseIsRefused(t *testing.T) {
	class := func(release string) *unstructured.Unstructured {
		o := named(t, objects(t, least), "StorageClass", "kip")
		o.SetAnnotations(map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "apps"})
		return o
	}
	if _, err := renderedIn(t, least, clusterOf(class("team"))); err != nil {
		t.Errorf("its own: %v", err)
	}
	if _, err := renderedIn(t, least+"storageClass: {create: false}", clusterOf(class("other"))); err != nil {
		t.Errorf("another's, which it uses: %v", err)
	}
	_, err := renderedIn(t, least, clusterOf(class("other")))
	if err == nil || !strings.Contains(err.Error(), "storageClass.create to false") {
		t.Errorf("another's: %v", err)
	}
}

// On AWS the quota bounds what a node can have; a capacity of the user's is left alone.
func TestTheCapacityIsAutoOnAWSUnlessTheUserNamesOne(t *testing.T) {
	const hosted = "host: {name: a}\n"
	for config, want := range map[string]string{
		"{cloud: {aws: {}}}":                                 "kubelet:\n      capacity: auto\n",
		"{cloud: {aws: {}}, kubelet: {labels: {a: b}}}":      "kubelet:\n      capacity: auto\n      labels:\n        a: b\n",
		"{cloud: {aws: {}}, kubelet: {capacity: {pods: 5}}}": "kubelet:\n      capacity:\n        pods: 5\n",
		"{cloud: {aws: {}}, kubelet: {pods: 5}}":             "kubelet:\n      pods: 5\n",
		"{cloud: {local: {}}, kubelet: {labels: {a: b}}}":    "kubelet:\n      labels:\n        a: b\n",
		"{cloud: {local: {}}, kubelet: {capacity: auto}}":    "kubelet:\n      capacity: auto\n",
		"{cloud: {local: {}}, nodes: [{capacity: auto}, {capacity: {cpu: auto}, zones: [a]}]}": "nodes:\n    - capacity: auto\n" +
			"    - capacity:\n        cpu: auto\n      zones:\n      - a\n",
	} {
		host := ""
		if strings.Contains(config, "local") {
			host = hosted
		}
		all, err := rendered(t, "config: "+strings.TrimSuffix(config, "}")+", cells: {defaultInstanceType: t3.micro}}\n"+host)
		if err != nil || !strings.Contains(all["configmap"], want) {
			t.Errorf("%s: %v, want %q:\n%s", config, err, want, all["configmap"])
		}
	}
	all, err := rendered(t, "config: {cloud: {local: {}}, cells: {defaultInstanceType: nano}}\n"+hosted)
	if err != nil || strings.Contains(all["configmap"], "kubelet") {
		t.Errorf("elsewhere: %v\n%s", err, all["configmap"])
	}
}

// What a value changes besides what has its name.
func TestValuesReachWhatDependsOnThem(t *testing.T) {
	for text, c := range map[string]struct {
		template string
		has, not []string
	}{
		"nodeCount: 0": {"policies", []string{
			"'system:serviceaccount:apps:team-kip'", "'system:serviceaccount:apps:team-kip-provisioner'",
			"username in ['system:node:team-kip-0']", "t.key in ['virtual-kubelet.io/provider']"}, []string{"kip-system"}},
		"nodeName: a.b\nnodeCount: 2": {"policies", []string{
			"username in ['system:node:a.b', 'system:node:a.b-1', 'system:node:a.b-2']",
			"oldObject.metadata.name in ['a.b', 'a.b-1', 'a.b-2']"}, nil},
		"rbac: {create: false}": {"hooks", nil, []string{"kind:"}},
		"bootImage: {publish: true, archs: [amd64, arm64], annotations: {eks.amazonaws.com/role-arn: 'arn:x'}}\nimage: {repository: a.io/b/kip, tag: v9}": {
			"bootimage", []string{"eks.amazonaws.com/role-arn: arn:x", "helm.sh/hook: pre-install,pre-upgrade", "image: a.io/b/kip:v9", "--region=us-east-1",
				"--arch=arm64", "--from=a.io/b/kip-cell:v9"}, []string{"kind: Role"}},
		"bootImage: {publish: true, repository: c.io/cells, tag: v8}": {"bootimage", []string{"--from=c.io/cells:v8", "--arch=amd64"}, []string{"arm64"}},
		"bootImage: {publish: true}\nimagePullSecrets: [{name: pull}]": {
			"bootimage", []string{"value: /registry", "mountPath: /registry", "secretName: pull"}, nil},
		"bootImage: {publish: false}": {"bootimage", nil, []string{"kind:"}},
		"uninstall: {force: true}":    {"hooks", []string{"- --force", "--node=team-kip-0", "resourceNames:\n      - team-kip-0"}, nil},
		"taint: {key: team.io/cells}": {"policies", []string{"t.key in ['virtual-kubelet.io/provider', 'team.io/cells']"}, nil},
		"taint: {key: team.io/pods}":  {"webhook", []string{"in ['', 'team.io/pods']"}, []string{"virtual-kubelet.io/provider"}},
		"serviceAccount: {name: own}": {"rbac", []string{"name: own\n", "resourceNames: [own-provisioner]"}, []string{"name: team-kip\n"}},
		"servingCertificate: {source: csr}": {"configmap", []string{
			"servingCertificate:\n      approve: false\n      signerName: kubernetes.io/kubelet-serving"}, nil},
		"servingCertificate: {source: csr, signerName: a.io/b, approve: true}": {"csr-approve", []string{"resourceNames: [a.io/b]"}, nil},
		"servingCertificate: {source: csr, signerName: a.io/b}":                {"csr", []string{"verbs: [create, get]"}, nil},
		"servingCertificate: {source: secret, secretName: mine}": {"workload", []string{
			"APISERVER_CERT_LOCATION\n              value: /etc/kip/serving/tls.crt", "secretName: mine"}, nil},
		"cloudInit: '#cloud-config'":   {"configmap", []string{"cloudInitFile: /etc/kip/cloud-init/cells.yaml"}, nil},
		"policies: {namespaces: true}": {"namespaces", []string{"values: [kube-system, apps]"}, nil},
		"nodeCount: 3\nnetworkPolicy: {enabled: true}": {"networkpolicy", []string{
			"port: 10250\n", "port: 10351\n          endPort: 10353\n", "port: 10255\n", "port: 9443\n"}, nil},
		"hostNetwork: true":                                         {"workload", []string{"--kubelet-port=10270", "ClusterFirstWithHostNet"}, []string{"hostPID"}},
		"webhook: {enabled: false}":                                 {"workload", []string{"--webhook-port=0"}, []string{"containerPort: 9443"}},
		"credentials: {data: {AWS_REGION: x}}":                      {"workload", []string{"name: team-kip-credentials", "checksum/credentials"}, nil},
		"credentials: {existingSecret: mine}":                       {"workload", []string{"name: mine"}, []string{"checksum/credentials"}},
		"image: {digest: 'sha256:" + strings.Repeat("a", 64) + "'}": {"workload", []string{"image: ghcr.io/elotl/kip@sha256:aaa"}, nil},
	} {
		all, err := rendered(t, least+text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, w := range c.has {
			if !strings.Contains(all[c.template], w) {
				t.Errorf("%s: %s does not have %q:\n%s", text, c.template, w, all[c.template])
			}
		}
		for _, w := range c.not {
			if strings.Contains(all[c.template], w) {
				t.Errorf("%s: %s has %q", text, c.template, w)
			}
		}
	}
	// Rights that nobody asked for.
	all, err := rendered(t, least+"servingCertificate: {source: csr}")
	if err != nil {
		t.Fatal(err)
	}
	for _, template := range []string{"csr", "csr-approve", "namespaces", "networkpolicy", "monitoring", "certificate"} {
		if left := documents(all[template]); len(left) != 0 {
			t.Errorf("without a value for it, %s is %v", template, left)
		}
	}
}

// Whatever becomes of a hook, neither its Job nor its rights are in the way of the next try, or left by helm uninstall.
func TestHooksLeaveNothing(t *testing.T) {
	hooks := 0
	for _, o := range objects(t, least+"bootImage: {publish: true}") {
		notes := o.GetAnnotations()
		if notes["helm.sh/hook"] == "" {
			continue
		}
		hooks++
		policies := strings.Split(notes["helm.sh/hook-delete-policy"], ",")
		for _, p := range []string{"before-hook-creation", "hook-succeeded", "hook-failed"} {
			if !slices.Contains(policies, p) {
				t.Errorf("%s %s is deleted by %v: want %s, too", o.GetKind(), o.GetName(), policies, p)
			}
		}
	}
	if hooks == 0 {
		t.Error("the chart has no hooks")
	}
}

func TestFoldersOfTheHostAreInItsFolder(t *testing.T) {
	const values = "config: {cloud: {%s: {%s}}, cells: {defaultInstanceType: small}}\nhost: {name: rack-1, dir: /data/kip}"
	for _, c := range []struct {
		cloud, keys string
		has         []string
	}{
		{"local", "", []string{"stateDir: /data/kip/local", "rootDir: /data/kip/cell-root"}},
		{"local", "rootDir: /srv/root", []string{"stateDir: /data/kip/local", "rootDir: /srv/root"}},
		{"qemu", "", []string{"stateDir: /data/kip/qemu", "image: /data/kip/image/kip-cell-amd64.qcow2"}},
	} {
		all, err := rendered(t, fmt.Sprintf(values, c.cloud, c.keys))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.has {
			if !strings.Contains(all["configmap"], w) {
				t.Errorf("cloud %s with %q: provider.yaml does not have %q:\n%s", c.cloud, c.keys, w, all["configmap"])
			}
		}
	}
}

func TestKipRunsOnNoVirtualNode(t *testing.T) {
	for _, text := range []string{"", `
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions: [{key: a, operator: Exists}]
      - matchFields: [{key: metadata.name, operator: In, values: [b]}]
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 1, preference: {matchExpressions: [{key: c, operator: Exists}]}}`} {
		affinity := podOf(t, objects(t, least+text)).Affinity.NodeAffinity
		terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		for _, term := range terms {
			if !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
				return r.Key == "type" && r.Operator == corev1.NodeSelectorOpNotIn && slices.Equal(r.Values, []string{"virtual-kubelet"})
			}) {
				t.Errorf("%s: a term lets Kip run on its own nodes: %v", text, term)
			}
		}
		if text == "" && len(terms) != 1 || text != "" && (len(terms) != 2 || len(terms[0].MatchExpressions) != 2 ||
			len(terms[1].MatchFields) != 1 || len(affinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1) {
			t.Errorf("%s: the affinity is %v", text, affinity)
		}
	}
}

// Pod Security's profile restricted, where cells are not on Kip's host.
func TestKipIsRestrictedWhereTheCloudAllowsIt(t *testing.T) {
	pod := podOf(t, objects(t, least))
	c, p := pod.Containers[0].SecurityContext, pod.SecurityContext
	if !*p.RunAsNonRoot || *p.RunAsUser == 0 || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || c.Privileged != nil ||
		*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		len(c.Capabilities.Add) != 0 || pod.HostNetwork {
		t.Errorf("Kip has %+v and %+v", p, c)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("Kip has a folder of the host: %v", v)
		}
	}
	pod = podOf(t, objects(t, "config: {cloud: {qemu: {}}, cells: {defaultInstanceType: small}}\nhost: {name: rack-1}"))
	if !*pod.Containers[0].SecurityContext.Privileged || !pod.HostNetwork || pod.NodeSelector["kubernetes.io/hostname"] != "rack-1" {
		t.Errorf("on a host Kip is %+v", pod)
	}
	// Cells outlive the pod, so their cgroups are beside it, and what is mounted in the pod is left nowhere else.
	hostPaths := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			hostPaths[v.Name] = v.HostPath.Path
		}
	}
	shown := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		if path := hostPaths[m.Name]; path != "" {
			shown[path] = m.MountPath
		}
		if m.MountPropagation != nil {
			t.Errorf("mounts in %s are passed on: %s", m.MountPath, *m.MountPropagation)
		}
	}
	if want := map[string]string{"/opt/kip": "/opt/kip", "/sys/fs/cgroup": "/sys/fs/cgroup"}; !maps.Equal(shown, want) {
		t.Errorf("Kip sees %v of the host: want %v", shown, want)
	}
}

func TestTheWorkloadFitsTheStore(t *testing.T) {
	for says, c := range map[string]struct {
		text, kind, strategy string
		replicas             int64
		claims               int
		volume               string
	}{
		"the embedded etcd":               {least, "StatefulSet", "", 1, 1, ""},
		"the embedded etcd, no claim":     {least + "persistence: {enabled: false}", "StatefulSet", "", 1, 0, "emptyDir"},
		"the embedded etcd, a Deployment": {least + "kind: Deployment", "Deployment", "Recreate", 1, 0, "persistentVolumeClaim"},
		"an external etcd":                {external, "Deployment", "", 2, 0, "emptyDir"},
		"an external etcd, a StatefulSet": {external + "kind: StatefulSet\nreplicas: 3", "StatefulSet", "", 3, 0, "emptyDir"},
	} {
		o := named(t, objects(t, c.text), c.kind, "team-kip")
		replicas, _, err := unstructured.NestedInt64(o.Object, "spec", "replicas")
		if err != nil {
			t.Fatal(err)
		}
		strategy, _, _ := unstructured.NestedString(o.Object, "spec", "strategy", "type")
		claims, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
		volumes, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "volumes")
		volume := ""
		for _, v := range volumes {
			if v := v.(map[string]any); v["name"] == "data" {
				for source := range v {
					if source != "name" {
						volume = source
					}
				}
			}
		}
		if replicas != c.replicas || strategy != c.strategy || len(claims) != c.claims || volume != c.volume {
			t.Errorf("%s: %d replicas, strategy %q, %d claims, data on %q", says, replicas, strategy, len(claims), volume)
		}
	}
}

// The API server asks Kip about no more pods than its profiles need, and without profiles about those that it has always asked about.
func TestTheWebhookAsksAboutThePodsOfProfilesAlone(t *testing.T) {
	names := func(text string) (all []string) {
		t.Helper()
		c := into[admissionregistrationv1.MutatingWebhookConfiguration](t, named(t, objects(t, text), "MutatingWebhookConfiguration", ""))
		for _, w := range c.Webhooks {
			name, _, _ := strings.Cut(w.Name, ".")
			all = append(all, name)
			if w.FailurePolicy == nil || *w.FailurePolicy != admissionregistrationv1.Ignore {
				t.Errorf("without an answer of webhook %s no pod is made", w.Name)
			}
		}
		return all
	}
	selector := func(text string) (string, string) {
		t.Helper()
		c := into[admissionregistrationv1.MutatingWebhookConfiguration](t, named(t, objects(t, text), "MutatingWebhookConfiguration", ""))
		for _, w := range c.Webhooks {
			if w.Name == "profiles.kip.elotl.co" {
				return metav1.FormatLabelSelector(w.NamespaceSelector), w.MatchConditions[len(w.MatchConditions)-1].Expression
			}
		}
		t.Fatalf("there is no webhook of profiles in %s", text)
		return "", ""
	}
	for text, want := range map[string][]string{
		least:                                {"selecting", "namespaces", "resizes"},
		profiled("- {name: a, mode: only}"):  {"selecting", "namespaces", "profiles", "resizes"},
		profiled("- {name: a, mode: burst}"): {"selecting", "namespaces", "profiles", "resizes", "bindings"},
		profiled("- {name: a, mode: burst, podDeletionCost: 0}"):  {"selecting", "namespaces", "profiles", "resizes"},
		profiled("- {name: a, mode: only, podDeletionCost: -10}"): {"selecting", "namespaces", "profiles", "resizes", "bindings"},
		least + anyProfiles: {"selecting", "namespaces", "profiles", "resizes", "bindings"},

		withSets("daemonSets: [{namespace: a}]"):                                      {"selecting", "namespaces", "resizes", "daemonsets"},
		withSets("csiDrivers: [{name: d.example.com, daemonSet: a/b}]"):               {"selecting", "namespaces", "resizes"},
		withSets("csiDrivers: [{name: d.example.com, daemonSet: a/b, beside: true}]"): {"selecting", "namespaces", "resizes", "daemonsets"},
		withSets("grants: {namespaces: [{namespace: a, besidePods: true}]}"):          {"selecting", "namespaces", "resizes", "daemonsets"},
		least + "\nwebhook: {daemonSets: true}\n":                                     {"selecting", "namespaces", "resizes", "daemonsets"},
	} {
		if got := names(text); !slices.Equal(got, want) {
			t.Errorf("%s: webhooks %q, want %q", text, got, want)
		}
	}
	for list, want := range map[string]struct{ namespaces, expression string }{
		"- {name: a, mode: only}": {"kubernetes.io/metadata.name notin (apps,kube-node-lease,kube-public,kube-system)",
			"(!object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind == 'DaemonSet'))"},
		"- {name: a, namespaces: [kube-system], mode: never}\n- {name: b, ownerKinds: [Job], mode: only}": {
			"kubernetes.io/metadata.name notin (apps,kube-node-lease,kube-public)",
			`(request.namespace == "kube-system") && !object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && ` +
				`o.kind == 'DaemonSet')) ||` + "\n" + `(object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind in ["Job"]))`},
		"- {name: a, namespaces: [x, z], mode: only}\n- {name: b, namespaces: [x], gpu: true, mode: burst}": {
			"kubernetes.io/metadata.name in (x,z)", `c.?resources.?requests.orValue({}).exists(r, r.startsWith('nvidia.com/') || r.endsWith('/gpu'))`},
		"- {name: a, namespaces: ['x*'], namespaceSelector: {matchLabels: {tier: batch}}, mode: only}": {
			"kubernetes.io/metadata.name notin (apps,kube-node-lease,kube-public,kube-system),tier=batch", `request.namespace.startsWith("x")`},
		"- {name: a, podSelector: {matchLabels: {k: v}, matchExpressions: [{key: l, operator: NotIn, values: [w]}]}, serviceAccounts: [s], mode: only}": {
			"notin", `object.metadata.?labels[?"k"].orValue('') == "v" && !(object.metadata.?labels[?"l"].hasValue() && ` +
				`object.metadata.?labels[?"l"].value() in ["w"]) && object.spec.?serviceAccountName.orValue('') in ["s"]`},
		"- {name: a, annotations: {pod.elotl.co/launch-type: spot}}": {"notin", `(object.spec.?nodeSelector[?'type'].orValue('') == 'virtual-kubelet' ||`},
	} {
		namespaces, expression := selector(profiled(list))
		if !strings.Contains(namespaces, want.namespaces) || !strings.Contains(expression, want.expression) {
			t.Errorf("%s: it asks about namespaces %s, and\n     %s\nwant %s, and\n     %s", list, namespaces, expression, want.namespaces,
				want.expression)
		}
	}
	for _, text := range []string{least, profiled("- {name: a, namespaces: [kube-system], gpu: true, mode: only}")} {
		namespaces, expression := selector(text + anyProfiles)
		if namespaces != "kubernetes.io/metadata.name notin (apps,kube-node-lease,kube-public,kube-system)" ||
			expression != "object.spec.?nodeName.orValue('') == ''" {
			t.Errorf("for any profiles it asks about namespaces %s, and %s", namespaces, expression)
		}
	}
}

// anyProfiles are values by which the webhooks are those of profiles that the chart does not see.
const anyProfiles = "\nwebhook: {profiles: true}\n"

// withSets are values with further keys of cells.
func withSets(cells string) string {
	return strings.Replace(least, "cells: {", "cells: {"+cells+", ", 1)
}

// Whoever has taken over Kip could change each DaemonSet that Kip is asked about.
func TestTheWebhookAsksAboutTheDaemonSetsThatAreNamedAlone(t *testing.T) {
	for cells, want := range map[string]string{
		"daemonSets: [{namespace: a, name: b}, {namespace: c, selector: x}]": `(request.namespace == "a" && object.metadata.name == "b") ||` +
			"\n" + `(request.namespace == "c")`,
		"csiDrivers: [{name: d.example.com, daemonSet: a/b, beside: true}, {name: e.example.com, daemonSet: a/b, beside: true}]": `(request.namespace == "a" && ` +
			`object.metadata.name == "b")`,
		"grants: {namespaces: [{namespace: a, besidePods: true}, {namespace: b}]}": `object.spec.template.?metadata.?annotations[?'pod.elotl.co/beside-pods'].hasValue()`,
	} {
		object := named(t, objects(t, withSets(cells)), "MutatingWebhookConfiguration", "")
		c := into[admissionregistrationv1.MutatingWebhookConfiguration](t, object)
		w := c.Webhooks[len(c.Webhooks)-1]
		if w.Name != "daemonsets.kip.elotl.co" || len(w.MatchConditions) != 1 || w.MatchConditions[0].Expression != want {
			t.Errorf("%s: %s asks by %+v, want %s", cells, w.Name, w.MatchConditions, want)
		}
	}
}
