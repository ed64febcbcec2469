package doctor

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
)

// File is one of a bundle.
type File struct {
	Name string
	Data []byte
}

const (
	// logLines and logBytes bound the log of a pod of Kip: its end.
	logLines, logBytes = 5000, 4 << 20
	// mostEvents bounds the Events that are looked through.
	mostEvents = 5000
	// bundleLimit bounds each question for a bundle.
	bundleLimit = 20 * time.Second
)

// WriteBundle writes the files as a compressed archive, in one folder. Each file passes the Redactor.
func WriteBundle(w io.Writer, folder string, now time.Time, files []File, redact *Redactor) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	for _, f := range files {
		data := redact.Text(f.Data)
		if err := archive.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     path.Join(folder, f.Name),
			Mode:     0o600,
			Size:     int64(len(data)),
			ModTime:  now,
		}); err != nil {
			return err
		}
		if _, err := archive.Write(data); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zip.Close()
}

// collector gathers files, and what could not be read.
type collector struct {
	files  []File
	errors []string
}

func (c *collector) add(name string, v any, err error) {
	if err == nil {
		var data []byte
		if data, err = json.MarshalIndent(v, "", "  "); err == nil {
			c.files = append(c.files, File{name, data})
			return
		}
	}
	c.errors = append(c.errors, name+": "+err.Error())
}

// Files are what a bug report needs of the cluster: Kip's nodes, the pods on them and its own, their Events, and Kip's log. Of pods only
// what Kip goes by is kept: no values of variables, no arguments of containers, no annotations but Kip's own. It reads no Secret.
// First and the Rest have run.
func (d *Doctor) Files(ctx context.Context, say func(string)) []File {
	c := &collector{}
	var nodes []corev1.Node
	for _, n := range d.own {
		n.ManagedFields, n.Annotations = nil, ownAnnotations(n.Annotations)
		n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		nodes = append(nodes, n)
	}
	c.add("nodes.json", nodes, nil)
	pods := []corev1.Pod{}
	for i := range d.pods {
		pods = append(pods, reduced(&d.pods[i], true))
	}
	for _, p := range d.onNodes() {
		pods = append(pods, reduced(&p, false))
	}
	c.add("pods.json", pods, nil)
	say("bundle: the Events of Kip's nodes and pods")
	events, err := bundling{d}.eventsOf(ctx)
	c.add("events.json", events, err)
	for i := range d.pods {
		bundling{d}.logs(ctx, &d.pods[i], c, say)
	}
	if len(c.errors) > 0 {
		c.files = append(c.files, File{"not-read.txt", []byte(strings.Join(c.errors, "\n") + "\n")})
	}
	return c.files
}

// bundling reads what a bundle has of each Kip.
type bundling struct{ *Doctor }

// logs adds the end of the log of a pod of Kip, and of the container before, if it was started again.
func (k bundling) logs(ctx context.Context, p *corev1.Pod, c *collector, say func(string)) {
	restarts := int32(0)
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == kipContainer {
			restarts = s.RestartCount
		}
	}
	for _, previous := range []bool{false, true} {
		if previous && restarts == 0 {
			continue
		}
		name := fmt.Sprintf("log-%s-%s.txt", p.Namespace, p.Name)
		if previous {
			name = fmt.Sprintf("log-%s-%s-previous.txt", p.Namespace, p.Name)
		}
		say("bundle: " + name)
		limited, cancel := context.WithTimeout(ctx, bundleLimit)
		data, err := k.c.Cluster.Kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
			Container:  kipContainer,
			Previous:   previous,
			TailLines:  new(int64(logLines)),
			LimitBytes: new(int64(logBytes)),
			Timestamps: true,
		}).DoRaw(limited)
		cancel()
		if err != nil {
			c.errors = append(c.errors, name+": "+err.Error())
			continue
		}
		c.files = append(c.files, File{name, data})
	}
}

// shortEvent is what is kept of an Event.
type shortEvent struct {
	Time    time.Time              `json:"time"`
	About   corev1.ObjectReference `json:"about"`
	Type    string                 `json:"type"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message"`
	Count   int32                  `json:"count"`
	By      string                 `json:"by"`
}

// eventsOf are those about Kip's nodes and pods, and the pods on its nodes.
func (k bundling) eventsOf(ctx context.Context) ([]shortEvent, error) {
	names, uids := map[string]bool{}, map[types.UID]bool{}
	for _, n := range k.own {
		names["Node/"+n.Name] = true
	}
	for _, pods := range [][]corev1.Pod{k.pods, k.onNodes()} {
		for _, p := range pods {
			uids[p.UID] = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bundleLimit)
	defer cancel()
	list, err := k.c.Cluster.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{Limit: mostEvents})
	if err != nil {
		return nil, err
	}
	all := []shortEvent{}
	for i := range list.Items {
		e := &list.Items[i]
		if about := e.InvolvedObject; names[about.Kind+"/"+about.Name] || uids[about.UID] {
			all = append(all, shortEvent{timeOf(e), about, e.Type, e.Reason, e.Message, e.Count, e.ReportingController})
		}
	}
	return all, nil
}

// ownAnnotations are those of Kip.
func ownAnnotations(all map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range all {
		if strings.HasPrefix(key, "pod.elotl.co/") || strings.HasPrefix(key, "kip.elotl.co/") {
			own[key] = value
		}
	}
	return own
}

// reduced is what of a pod is kept. What others may have written freely, arguments and the last words of a container, is kept of Kip's own
// container alone.
func reduced(p *corev1.Pod, kips bool) corev1.Pod {
	out := corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, Annotations: ownAnnotations(p.Annotations),
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, OwnerReferences: p.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, NodeSelector: p.Spec.NodeSelector, Affinity: p.Spec.Affinity, Tolerations: p.Spec.Tolerations,
			RestartPolicy: p.Spec.RestartPolicy, SchedulerName: p.Spec.SchedulerName, ServiceAccountName: p.Spec.ServiceAccountName,
			HostNetwork: p.Spec.HostNetwork, DNSPolicy: p.Spec.DNSPolicy, Resources: p.Spec.Resources, Overhead: p.Spec.Overhead,
			TopologySpreadConstraints: p.Spec.TopologySpreadConstraints, PriorityClassName: p.Spec.PriorityClassName,
		},
		Status: p.Status,
	}
	for _, v := range p.Spec.Volumes {
		kept := corev1.Volume{Name: v.Name}
		kept.PersistentVolumeClaim, kept.EmptyDir = v.PersistentVolumeClaim, v.EmptyDir
		if v.ConfigMap != nil {
			kept.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: v.ConfigMap.LocalObjectReference}
		}
		out.Spec.Volumes = append(out.Spec.Volumes, kept)
	}
	out.Spec.InitContainers = reducedContainers(p.Spec.InitContainers, kips)
	out.Spec.Containers = reducedContainers(p.Spec.Containers, kips)
	out.Status.ContainerStatuses = withoutWords(p.Status.ContainerStatuses, kips)
	out.Status.InitContainerStatuses = withoutWords(p.Status.InitContainerStatuses, kips)
	out.Status.EphemeralContainerStatuses = withoutWords(p.Status.EphemeralContainerStatuses, kips)
	return out
}

func reducedContainers(all []corev1.Container, kips bool) (out []corev1.Container) {
	for _, c := range all {
		kept := corev1.Container{Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Resources: c.Resources, Ports: c.Ports,
			VolumeMounts: c.VolumeMounts, RestartPolicy: c.RestartPolicy}
		if kips && c.Name == kipContainer {
			kept.Args = c.Args
		}
		for _, e := range c.Env {
			kept.Env = append(kept.Env, corev1.EnvVar{Name: e.Name, Value: redacted})
		}
		out = append(out, kept)
	}
	return out
}

// withoutWords leaves out what containers wrote when they ended.
func withoutWords(all []corev1.ContainerStatus, kips bool) (out []corev1.ContainerStatus) {
	for _, s := range all {
		s = *s.DeepCopy()
		for _, state := range []*corev1.ContainerState{&s.State, &s.LastTerminationState} {
			if state.Terminated != nil && state.Terminated.Message != "" && !(kips && s.Name == kipContainer) {
				state.Terminated.Message = redacted
			}
		}
		out = append(out, s)
	}
	return out
}

// Waiting are the pods on Kip's nodes that do not run yet.
func (d *Doctor) Waiting() (pods []corev1.Pod) {
	for _, p := range d.onNodes() {
		if p.Status.Phase == corev1.PodPending && apiv1.WithoutMachine(&p) == nil {
			pods = append(pods, p)
		}
	}
	return pods
}
