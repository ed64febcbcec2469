package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/dev/registry"
)

// The release by which Kip is installed, and where.
const (
	Release   = "kip"
	Namespace = "kip-system"
)

// clusterCA is where pods have the CA of the cluster, which has signed the certificate of the model of EC2.
const clusterCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

// installing installs Kip by its chart.
type installing struct {
	*site
	controlPlane *controlPlane
	configuring  *configuring
}

// ValuesFile is the path of the values by which Kip is installed.
func (s *installing) ValuesFile() string { return s.path("values.yaml") }

// Install installs Kip by its chart, as a pod of an ordinary node. It returns when the pod is ready.
func (s *installing) Install(ctx context.Context) error {
	if err := s.prepareInstall(ctx); err != nil {
		return err
	}
	values, err := s.values()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.ValuesFile(), values, 0o600); err != nil {
		return fmt.Errorf("write the values of Kip's chart: %w", err)
	}
	return s.Helm(ctx, "install", Release, s.opts.Chart, "--values", s.ValuesFile(), "--wait", "--timeout", "5m")
}

// Helm runs Helm on the release's namespace.
func (s *installing) Helm(ctx context.Context, args ...string) error {
	args = append(args, "--namespace", Namespace, "--kubeconfig", s.controlPlane.Cluster.AdminKubeconfig())
	cmd := exec.CommandContext(ctx, filepath.Join(s.opts.Bin, "helm"), args...)
	// What Helm keeps of a user's is none of this cluster's.
	cmd.Env = append(os.Environ(), markVariable+"="+s.opts.State, "HELM_CONFIG_HOME="+s.path("helm"), "HELM_CACHE_HOME="+s.path("helm"),
		"HELM_DATA_HOME="+s.path("helm"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// prepareInstall makes the release's namespace, with the strictest Pod Security, and the volume for the claim of Kip's store.
func (s *installing) prepareInstall(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.controlPlane.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}},
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the namespace of Kip: %w", err)
	}
	volume := node.Volume("kip-store", nodeName(0), "", types.NamespacedName{Namespace: Namespace, Name: "data-" + Release + "-0"})
	if _, err := client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the volume of Kip's store: %w", err)
	}
	return nil
}

// values are those of the chart for this stack.
func (s *installing) values() ([]byte, error) {
	image, err := s.image()
	if err != nil {
		return nil, err
	}
	config := s.configuring.providerConfig(s.kips[0])
	// The chart says where the store is and which certificate is served. Kip has the account's keys from a Secret.
	delete(config, "etcd")
	delete(config, "servingCertificate")
	aws := config["cloud"].(map[string]any)[CloudAWS].(map[string]any)
	credentials := map[string]any{"AWS_ACCESS_KEY_ID": aws["accessKeyID"], "AWS_SECRET_ACCESS_KEY": aws["secretAccessKey"]}
	delete(aws, "accessKeyID")
	delete(aws, "secretAccessKey")
	values := map[string]any{
		"nodeName":           s.kips[0].node,
		"config":             config,
		"image":              map[string]any{"repository": image.Context().Name(), "tag": image.TagStr()},
		"credentials":        map[string]any{"data": credentials},
		"persistence":        map[string]any{"storageClassName": ""},
		"servingCertificate": map[string]any{"source": "csr"},
		"extraEnv":           []map[string]any{{"name": "AWS_CA_BUNDLE", "value": clusterCA}},
	}
	if s.opts.Verbose {
		values["extraArgs"] = []string{"--v=1"}
	}
	return yaml.Marshal(values)
}

// image is the name of Kip's image in the registry.
func (s *installing) image() (name.Tag, error) {
	folder := s.opts.Images[0]
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return name.Tag{}, fmt.Errorf("read Kip's image in %s: %w", folder, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return name.Tag{}, fmt.Errorf("read Kip's image in %s: %w", folder, err)
	}
	for _, d := range manifest.Manifests {
		if tag, err := name.NewTag(d.Annotations[registry.RefName]); err == nil {
			return tag, nil
		}
	}
	return name.Tag{}, fmt.Errorf("no image in %s has a name with a tag: make images builds Kip's", folder)
}

// InstalledLog is the log of the Kip that was installed, or why there is none.
func (s *installing) InstalledLog(ctx context.Context) string {
	client, err := kubernetes.NewForConfig(s.controlPlane.Cluster.AdminConfig())
	if err != nil {
		return err.Error()
	}
	log, err := client.CoreV1().Pods(Namespace).GetLogs(Release+"-0", &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		events, eventsErr := client.CoreV1().Events(Namespace).List(ctx, metav1.ListOptions{})
		text := errors.Join(err, eventsErr).Error()
		if eventsErr == nil {
			for _, e := range events.Items {
				text += fmt.Sprintf("\n%s %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
		return text
	}
	return string(log)
}
