package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// generatedBy is the first line of generated manifests.
const generatedBy = "# Generated from deploy/helm/kip by make manifests.\n"

const crdFile = "api/v1/crd.yaml"

// rights are the parts of an installation that package deploy embeds: those of a Kip
// in kip-system, with all nodes that provider.yaml may ask for. Each is the output of one template, by its name or that in templateOf.
var rights = map[string]string{
	"rbac": "",
	"policies": `
policies: {namespaces: false}`,
	"namespaces": `
policies: {namespaces: true}`,
	"webhook": "",
	"webhook-profiles": `
webhook: {profiles: true}`,
	"webhook-daemonsets": `
webhook: {daemonSets: true}`,
	"storageclass": "",
	"csr": `
servingCertificate: {source: csr, requester: kip}`,
	"csr-approve": `
servingCertificate: {source: csr, approve: true}`,
	"cloud-init": `
cloudInit: |
  #cloud-config
  write_files:
  - path: /etc/sysctl.d/90-cells.conf
    permissions: '0644'
    content: |
      net.core.somaxconn = 4096
  runcmd:
  - sysctl -p /etc/sysctl.d/90-cells.conf`,
}

var templateOf = map[string]string{"webhook-profiles": "webhook", "webhook-daemonsets": "webhook"}

const rightsValues = `
config: {cloud: {aws: {}}, cells: {defaultInstanceType: t3.micro}}
nodeCount: 64
createNamespace: true
`

// onEKS is what kipctl eks deploy installs, in the namespace and with the image, the role and the configuration that it is given. The
// namespace here is deploy.EKSNamespace, in whose place it writes another. What profiles and daemonSets have of it is for a
// configuration with these.
var onEKS = struct{ file, profiles, daemonSets, release, namespace, values string }{
	"deploy/manifests/eks/kip.yaml", "deploy/manifests/eks/profiles.yaml", "deploy/manifests/eks/daemonsets.yaml",
	"kip-provider", "namespace-of-kip", `
config:
  cloud: {aws: {}}
  cells: {defaultInstanceType: t3.micro}
  servingCertificate: {signerName: beta.eks.amazonaws.com/app-serving}
existingConfigMap: kip-provider-config
policies: {podAnnotations: false}
servingCertificate: {source: csr, signerName: beta.eks.amazonaws.com/app-serving}
createNamespace: true
`,
}

// bases are what kustomize starts from, by folder. Each has a provider.yaml beside it. Its
// users may write nodes into that, so that the rights are those of all. Pods of 2020 name
// profiles and groups: Kip grants them by provider.yaml, and no policy refuses them before.
var bases = map[string]struct{ release, values string }{
	"deploy/manifests/kip/base": {"kip", `
nodeCount: 64
policies: {podAnnotations: false}
existingConfigMap: config`},
	"deploy/manifests/kip/overlays/aws-eks": {"kip-provider", `
nodeCount: 64
policies: {podAnnotations: false}
existingConfigMap: config`},
	"deploy/manifests/virtual-kubelet/base": {"virtual-kubelet", `
fullnameOverride: virtual-kubelet
nodeName: virtual-kubelet
nodeCount: 64
policies: {podAnnotations: false}
kind: Deployment
existingConfigMap: virtual-kubelet-config`},
}

// trials are installations that an API server is asked to take, by the tests of dev/cluster: those whose objects no base has.
var trials = map[string]string{
	"operators": `
config: {cloud: {aws: {}}, cells: {defaultInstanceType: t3.micro}}
hostNetwork: true
networkPolicy: {enabled: true, from: [{ipBlock: {cidr: 10.0.0.0/8}}]}
metrics: {certSecret: kip-metrics}
serviceMonitor:
  enabled: true
  tlsConfig: {serverName: kip, ca: {secret: {name: kip-metrics, key: ca.crt}}}
  authorization: {credentials: {name: prometheus-token, key: token}}
servingCertificate: {source: cert-manager, issuerRef: {name: ca, kind: ClusterIssuer}, ipAddresses: [10.0.0.1]}`,
	"host-local": `
config: {cloud: {local: {}}, cells: {defaultInstanceType: small}}
host: {name: rack-1}`,
	"host-qemu": `
config: {cloud: {qemu: {}}, cells: {defaultInstanceType: small}}
host: {name: rack-1}`,
	"any-profiles": `
config: {cloud: {aws: {}}, cells: {defaultInstanceType: t3.micro}}
webhook: {profiles: true}`,
	"daemonsets": `
config:
  cloud: {aws: {}}
  cells:
    defaultInstanceType: t3.micro
    daemonSets: [{namespace: logging, name: fluent-bit}, {namespace: agents, selector: "app in (a, b)"}]
    csiDrivers: [{name: secrets-store.csi.k8s.io, daemonSet: kube-system/csi-secrets-store, beside: true}]
    grants: {namespaces: [{namespace: team-a, besidePods: true}]}`,
	"profiles": `
config:
  cloud: {aws: {}}
  cells: {defaultInstanceType: t3.micro}
  admission:
    profiles:
    - {name: system, namespaces: [kube-system, "ml-*"], serviceAccounts: [builder], mode: never}
    - name: labels
      namespaceSelector: {matchLabels: {tier: batch}}
      podSelector:
        matchLabels: {app.kubernetes.io/name: web}
        matchExpressions:
        - {key: a, operator: In, values: [b, c]}
        - {key: d, operator: NotIn, values: [e]}
        - {key: f, operator: Exists}
        - {key: g, operator: DoesNotExist}
      mode: only
    - {name: gpus, gpu: true, minCPU: 4, minMemory: 8Gi, mode: only}
    - {name: devices, gpu: false, resources: [example.com/fpga], ownerKinds: [DaemonSet, Job], mode: only}
    - {name: selecting, annotations: {pod.elotl.co/launch-type: spot}}
    - {name: rest, namespaces: [team-a], mode: burst}`,
}

// trialTemplates are the parts of a trial that differ from those of the bases.
var trialTemplates = []string{"namespace", "workload", "networkpolicy", "monitoring", "certificate"}

// trial returns the objects of a trial, in a namespace of its own.
func trial(c *chart.Chart, name string) ([]byte, error) {
	values, err := parse("createNamespace: true" + trials[name])
	if err != nil {
		return nil, err
	}
	outputs, err := release{name: "kip", namespace: "kip-" + name, values: values}.render(c)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	var objects [][]byte
	templates := trialTemplates
	if strings.HasSuffix(name, "profiles") || name == "daemonsets" { // they change nothing else
		templates = []string{"webhook"}
	}
	for _, template := range templates {
		if content := outputs[template]; len(content) > 0 {
			objects = append(objects, content)
		}
	}
	return append([]byte(generatedBy), bytes.Join(objects, []byte("---\n"))...), nil
}

// generated returns the content of all generated files of the repository in a folder, by path.
func generated(folder string) (map[string][]byte, error) {
	c, err := loadChart(folder)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, text := range rights {
		values, err := parse(rightsValues + text)
		if err != nil {
			return nil, err
		}
		outputs, err := release{name: "kip", namespace: "kip-system", values: values}.render(c)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", name, err)
		}
		content := outputs[cmp.Or(templateOf[name], name)]
		if name == "rbac" {
			content = append(append(outputs["namespace"], "---\n"...), content...)
		}
		files["deploy/manifests/rights/"+name+".yaml"] = append([]byte(generatedBy), content...)
	}
	values, err := parse(onEKS.values)
	if err != nil {
		return nil, err
	}
	eks := release{name: onEKS.release, namespace: onEKS.namespace, values: values}
	outputs, err := eks.render(c)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", onEKS.file, err)
	}
	files[onEKS.file] = append([]byte(generatedBy), together(outputs)...)
	for file, key := range map[string]string{onEKS.profiles: "profiles", onEKS.daemonSets: "daemonSets"} {
		if outputs, err = eks.asking(key).render(c); err != nil {
			return nil, fmt.Errorf("render %s: %w", file, err)
		}
		files[file] = append([]byte(generatedBy), outputs["webhook"]...)
	}
	crd, err := os.ReadFile(filepath.Join(folder, crdFile))
	if err != nil {
		return nil, err
	}
	files["deploy/helm/kip/crds/cells.yaml"] = crd
	for base := range bases {
		r, err := baseRelease(folder, base)
		if err != nil {
			return nil, err
		}
		outputs, err := r.render(c)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", base, err)
		}
		files[base+"/kip.yaml"] = append([]byte(generatedBy), together(outputs)...)
		for folder := range components {
			if err := addComponent(files, c, r, base, folder, outputs); err != nil {
				return nil, err
			}
		}
		files[base+"/crd.yaml"] = append([]byte("# Generated from "+crdFile+" by make manifests.\n"), crd...)
	}
	for name := range trials {
		if files["dev/cluster/testdata/"+name+".yaml"], err = trial(c, name); err != nil {
			return nil, err
		}
	}
	const readme = "deploy/helm/kip/README.md"
	if files[readme], err = withValues(filepath.Join(folder, readme), filepath.Join(folder, "deploy/helm/kip/values.yaml")); err != nil {
		return nil, err
	}
	const schema = "deploy/helm/kip/values.schema.json"
	files[schema], err = withProvider(filepath.Join(folder, schema), filepath.Join(folder, "deploy/helm/kip/provider.schema.json"))
	return files, err
}

// withProvider returns the schema of values in which that of config is the schema of provider.yaml: a chart's schema is one file.
func withProvider(values, provider string) ([]byte, error) {
	var all, config map[string]any
	for path, into := range map[string]*map[string]any{values: &all, provider: &config} {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, into); err != nil {
			return nil, fmt.Errorf("parse %s: %w", path, err)
		}
	}
	cloud, found, err := unstructured.NestedMap(config, "properties", "cloud")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", provider, err)
	}
	if !found {
		return nil, fmt.Errorf("%s has no schema of cloud", provider)
	}
	cloud["minProperties"], cloud["maxProperties"] = 1.0, 1.0 // one cloud
	if err := unstructured.SetNestedMap(config, cloud, "properties", "cloud"); err != nil {
		return nil, err
	}
	if err := unstructured.SetNestedMap(all, config, "properties", "config"); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(all, "", "  ")
	return append(text, '\n'), err
}

// baseRelease is the installation that a base is, with the provider.yaml beside it.
func baseRelease(folder, base string) (release, error) {
	values, err := parse(bases[base].values)
	if err != nil {
		return release{}, err
	}
	text, err := os.ReadFile(filepath.Join(folder, base, "provider.yaml"))
	if err != nil {
		return release{}, err
	}
	var provider map[string]any
	if err := yaml.UnmarshalStrict(text, &provider); err != nil {
		return release{}, fmt.Errorf("parse provider.yaml of %s: %w", base, err)
	}
	if _, says := provider["nodes"]; !says {
		provider["nodes"] = nil // one node: not the chart's default
	}
	values["config"] = provider
	return release{name: bases[base].release, namespace: "kube-system", values: values}, nil
}
