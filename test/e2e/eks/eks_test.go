//go:build e2e

// Package eks proves docs/eks.md: kustomize/deploy.sh installs Kip, as its documents of 2020 say, into a cluster that a model of AWS
// shows as one of Amazon EKS, from an account without a boot image, up to pods with a Service, disks and a role of their own, and back.
package eks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

var world *harness.World

// What deploy.sh installs: docs/eks.md.
const (
	kipNamespace = "kip"
	kipPod       = "kip-provider-0"
	kipAccount   = "system:serviceaccount:" + kipNamespace + ":kip-provider"
	signer       = "beta.eks.amazonaws.com/app-serving"
	kipRole      = "arn:aws:iam::" + machines.Account + ":role/kip-enterprise"
)

func TestMain(m *testing.M) {
	network := harness.MustClaim("eks")
	os.Exit(harness.Main(harness.Options{
		Network:  network,
		Stderr:   os.Stderr,
		EKS:      true,
		AuditLog: filepath.Join(os.TempDir(), network.Bridge+"-audit.log"),
		Rights:   harness.Rights{Account: kipAccount, Provisioner: kipAccount + "-provisioner", File: "deploy/manifests/eks/kip.yaml"},
	}, &world, m.Run))
}

// space is a namespace of the test's own, with the account.
type space struct {
	*namespace.Space
	tag string // of Kip's image
}

func (s *space) state() (state ec2.State) {
	s.Helper()
	if err := world.Model().State(context.WithoutCancel(s.Context()), &state); err != nil {
		s.Fatal(err)
	}
	return state
}

// role makes a role that a service account assumes. The trust policy is that of the documents of 2020.
func (s *space) role(arn, account string, policy []byte) {
	s.Helper()
	text, err := world.Admin.Discovery().RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	var issues struct{ Issuer string }
	if err := json.Unmarshal(text, &issues); err != nil || issues.Issuer == "" {
		s.Fatalf("the cluster names no issuer: %s (%v)", text, err)
	}
	provider := strings.TrimPrefix(issues.Issuer, "https://")
	trust := fmt.Sprintf(`{"Version": "2012-10-17", "Statement": [{"Sid": "T", "Effect": "Allow",
		"Principal": {"Federated": "arn:aws:iam::%s:oidc-provider/%s"}, "Action": "sts:AssumeRoleWithWebIdentity",
		"Condition": {"StringEquals": {"%s:sub": "%s"}}}]}`, machines.Account, provider, provider, account)
	if err := world.Model().Order(s.Context(), "role", ec2.Role{ARN: arn, Policy: policy, Trust: json.RawMessage(trust)}); err != nil {
		s.Fatal(err)
	}
}

// environment is that of a shell in which somebody follows the documents of 2020, with an administrator's keys.
func (s *space) environment() []string {
	return append(os.Environ(),
		"CLUSTER_NAME="+machines.ClusterName,
		"USE_REGION="+machines.Region,
		"IMAGE_TAG="+s.tag,
		"KIP_SERVICE_ACCOUNT_ROLE_ARN="+kipRole,
		"KUBECONFIG="+world.Kubeconfig,
		"AWS_ENDPOINT_URL="+world.Ready["ec2"],
		"AWS_ACCESS_KEY_ID="+machines.AdministratorKeyID, "AWS_SECRET_ACCESS_KEY=any", "AWS_SESSION_TOKEN=", "AWS_PROFILE=",
		"AWS_REGION=", "AWS_DEFAULT_REGION=", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
		"AWS_EC2_METADATA_DISABLED=true", "NAMESPACE=", "IMAGE_REGISTRY=", "NFS_VOLUME_ENDPOINT=", "CELL_INSTANCE_PROFILE_ARN=", "KIP_CELL_SG=",
	)
}

// deploy runs deploy.sh, and returns what it said.
func (s *space) deploy(image string) string {
	s.Helper()
	said, err := s.tryDeploy(image)
	if err != nil {
		ctx := context.WithoutCancel(s.Context())
		out, _, _ := namespace.Run(world.Kubectl(ctx, "-n", kipNamespace, "describe", "pods,pvc"))
		log, _, _ := namespace.Run(world.Kubectl(ctx, "-n", kipNamespace, "logs", kipPod))
		s.Fatalf("deploy.sh: %v\n%s\nKip's log:\n%s", err, out, log)
	}
	return said
}

// tryDeploy is deploy where it may fail.
func (s *space) tryDeploy(image string) (string, error) {
	s.Helper()
	root, err := harness.Repository()
	if err != nil {
		s.Fatal(err)
	}
	args := []string{"--image-folder=" + image}
	if runtime.GOARCH != "amd64" { // which it takes if nothing says otherwise
		args = append(args, "--instance-type="+machines.Types()[0].Name)
	}
	cmd := exec.CommandContext(s.Context(), filepath.Join(root, "kustomize", "deploy.sh"), args...)
	cmd.Env = append(s.environment(), "KIPCTL="+world.Tool("kipctl"))
	var said bytes.Buffer
	cmd.Stdout = io.MultiWriter(&said, s.Output())
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	return said.String(), err
}

// bootImage makes a folder as make image does. What its disk has is of no matter: local cells stand behind the instances.
func (s *space) bootImage() string {
	s.Helper()
	name, folder, disk := "kip-cell-"+runtime.GOARCH, s.TempDir(), bytes.Repeat([]byte{1}, 3<<19)
	sum := sha256.Sum256(disk)
	manifest := fmt.Sprintf(`{"version": "1.0", "arch": %q, "outputs": [{"name": "%s.raw", "bytes": %d, "sha256": %q}]}`,
		runtime.GOARCH, name, len(disk), hex.EncodeToString(sum[:]))
	for file, content := range map[string][]byte{name + ".raw": disk, name + ".manifest.json": []byte(manifest)} {
		if err := os.WriteFile(filepath.Join(folder, file), content, 0o600); err != nil {
			s.Fatal(err)
		}
	}
	return folder
}

// addons make what EKS has in a cluster and this one has not: the driver of disks, and the webhook of roles.
func (s *space) addons() {
	s.Helper()
	if _, err := world.Admin.StorageV1().CSIDrivers().Create(s.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "ebs.csi.aws.com"},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.podIdentities()
}

// storeVolume makes the volume for the claim of Kip's store, which the driver of disks would: a new folder of the ordinary node.
func (s *space) storeVolume(folder string) {
	s.Helper()
	nodes := filepath.Join(world.State, "nodes")
	all, err := filepath.Glob(filepath.Join(nodes, "machines", "*"))
	if err != nil || len(all) != 1 {
		s.Fatalf("the machines of ordinary nodes are %q, want 1 (%v)", all, err)
	}
	machine, err := host.Inspect(host.Config{StateDir: nodes}, filepath.Base(all[0]))
	if err != nil {
		s.Fatal(err)
	}
	path := namespace.Machine{PID: machine.PID}.Path(filepath.Join(node.VolumeDir, folder))
	if err := os.Mkdir(path, 0o777); err != nil {
		s.Fatal(err)
	}
	volume := node.Volume("kip-store", "node-1", folder, types.NamespacedName{Namespace: kipNamespace, Name: "data-" + kipPod})
	volume.Spec.StorageClassName = "kip-provider-store"
	if _, err := world.Admin.CoreV1().PersistentVolumes().Create(s.Context(), volume, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// kip returns Kip's pod, and the generation of its StatefulSet.
func (s *space) kip() (types.UID, int64) {
	s.Helper()
	pod, err := world.Admin.CoreV1().Pods(kipNamespace).Get(s.Context(), kipPod, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	set, err := world.Admin.AppsV1().StatefulSets(kipNamespace).Get(s.Context(), "kip-provider", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return pod.UID, set.Generation
}

// virtualNodes waits until each zone has a virtual node that is Ready, beside that of all zones. It returns their zones, by their names.
func (s *space) virtualNodes() map[string]string {
	s.Helper()
	var zones map[string]string
	s.Eventually("a virtual node for each zone is Ready", func(ctx context.Context) error {
		nodes, err := world.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=virtual-kubelet"})
		if err != nil {
			return err
		}
		zones = map[string]string{}
		for _, n := range nodes.Items {
			if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				zones[n.Name] = n.Labels[corev1.LabelTopologyZone]
			}
		}
		have := slices.Sorted(maps.Values(zones))
		if want := []string{"", machines.Region + "a", machines.Region + "b", machines.Region + "c"}; !slices.Equal(have, want) {
			return fmt.Errorf("their zones are %q, want %q", have, want)
		}
		return nil
	})
	return zones
}

// approve approves the requests of the certificates of Kip's kubelet ports, one for each node, as docs/serving-certificates.md says.
func (s *space) approve(nodes int) {
	s.Helper()
	s.Eventually("each virtual node has a certificate", func(ctx context.Context) error {
		all, err := world.Admin.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		issued := 0
		for _, r := range all.Items {
			switch {
			case r.Spec.SignerName != signer || r.Spec.Username != kipAccount:
			case len(r.Status.Certificate) > 0:
				issued++
			case !slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
				return c.Type == certificatesv1.CertificateApproved
			}):
				if out, code, errs := s.Attempt(ctx, "certificate", "approve", r.Name); code != 0 {
					return fmt.Errorf("approve %s: exit %d %s%s", r.Name, code, out, errs)
				}
			}
		}
		if issued != nodes {
			return fmt.Errorf("%d of %d have", issued, nodes)
		}
		return nil
	})
}

// onKip is the beginning of a pod template's spec.
const onKip = `    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 1
`

// serves is a container that serves a text which the shell makes, once prepared.
func serves(prepare string) string {
	return `      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, '` + prepare + `; exec httpd -f -p 8080 -h /data']
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
`
}

const job = `apiVersion: batch/v1
kind: Job
metadata: {name: hello}
spec:
  backoffLimit: 0
  template:
` + onKip + `      restartPolicy: Never
      containers: [{name: main, image: 'busybox:1.36', command: [echo, hello]}]
`

var web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
` + onKip + serves("echo from a cell > /data/index.html") + `      volumes: [{name: data, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

var database = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  podManagementPolicy: Parallel
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
` + onKip + `      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: db}}
` + serves("grep -q . /data/index.html || hostname > /data/index.html") + `  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: kip, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 8080}]}
`

// readerRole is that of a pod.
const readerRole = "arn:aws:iam::" + machines.Account + ":role/reader"

// reader is a pod whose service account has a role, with nothing of AWS in its own spec but where STS is.
func reader() string {
	return `apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, annotations: {eks.amazonaws.com/role-arn: '` + readerRole + `'}}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  nodeSelector: {type: virtual-kubelet}
  serviceAccountName: reader
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    env: [{name: AWS_ENDPOINT_URL_STS, value: '` + world.Ready["ec2-pods"] + `'}]
`
}

// asker is a pod of the ordinary node.
const asker = `apiVersion: v1
kind: Pod
metadata: {name: asker}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']}
`

// gets has a pod fetch a page.
func (s *space) gets(pod, url, want string) {
	s.Helper()
	s.Eventually("pod "+pod+" gets "+url, func(ctx context.Context) error {
		out, code, errs := s.Attempt(ctx, "exec", pod, "--", "timeout", "10", "wget", "-qO-", url)
		if code != 0 || out != want {
			return fmt.Errorf("it gets %q: exit %d: %s", out, code, errs)
		}
		return nil
	})
}

// database runs a StatefulSet whose pods are each in a zone of their own, with a volume there.
func (s *space) database(zones map[string]string) {
	s.Helper()
	world.SawDisk()
	s.Apply(database)
	var in []string
	for n := range 3 {
		name := fmt.Sprintf("db-%d", n)
		in = append(in, zones[s.WaitReady(name).Spec.NodeName])
		s.gets("asker", "http://"+name+".db:8080", name+"\n")
	}
	var disks []string
	for _, v := range s.state().Volumes {
		if v.Instance == "" {
			s.Errorf("volume %+v is attached to no instance", v)
		}
		disks = append(disks, v.Zone)
	}
	slices.Sort(in)
	slices.Sort(disks)
	want := []string{machines.Region + "a", machines.Region + "b", machines.Region + "c"}
	if !slices.Equal(in, want) || !slices.Equal(disks, want) {
		s.Errorf("the pods are in zones %q and their volumes in %q, want %q", in, disks, want)
	}
}

// assumes has a pod become the role of its service account.
func (s *space) assumes() {
	s.Helper()
	s.role(readerRole, "system:serviceaccount:"+s.NS+":reader", []byte(`{"Statement": [{"Sid": "T", "Effect": "Allow",
		"Action": "ecr:GetAuthorizationToken", "Resource": "*"}]}`))
	s.Apply(reader())
	s.WaitReady("reader")
	answer := s.Kubectl("exec", "reader", "--", "sh", "-c",
		`printf 'Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=web&RoleArn=%s&WebIdentityToken=%s' \
		"$AWS_ROLE_ARN" "$(cat "$AWS_WEB_IDENTITY_TOKEN_FILE")" >/tmp/asked && exec wget -q -O - --post-file /tmp/asked "$AWS_ENDPOINT_URL_STS"/`)
	var session struct {
		ARN     string `xml:"AssumeRoleWithWebIdentityResult>AssumedRoleUser>Arn"`
		Subject string `xml:"AssumeRoleWithWebIdentityResult>SubjectFromWebIdentityToken"`
	}
	err := xml.Unmarshal([]byte(answer), &session)
	if err != nil || session.Subject != "system:serviceaccount:"+s.NS+":reader" || !strings.HasPrefix(session.ARN, readerRole+"/") {
		s.Errorf("STS answers the pod %q (%v)", answer, err)
	}
}

// endPods ends all that runs on Kip.
func (s *space) endPods(nodes map[string]string) {
	s.Helper()
	s.Kubectl("delete", "job,deployment,statefulset,service,persistentvolumeclaim,pod", "--all", "--timeout=5m")
	s.Eventually("no cell is left", s.NoCells)
	for name := range nodes {
		if out := s.Kubectl("get", "pods", "--field-selector", "spec.nodeName="+name, "-A", "-o", "name"); out != "" {
			s.Errorf("on %s there are still\n%s", name, out)
		}
	}
}

// uninstall removes the Kip that was installed at a time, as docs/eks.md says.
func (s *space) uninstall(from time.Time) {
	s.Helper()
	s.Log(s.Kubectl("exec", "--namespace", kipNamespace, kipPod, "--", "/kipctl", "cleanup", "--yes"))
	s.deleteNamespace(from)
}

// deleteNamespace removes the Kip that was installed at a time, if it has worked as it is to, within its rights.
func (s *space) deleteNamespace(from time.Time) {
	s.Helper()
	if amiss := harness.Amiss([]byte(s.Kubectl("logs", "--namespace", kipNamespace, kipPod))); len(amiss) > 0 {
		s.Errorf("Kip's log has\n  %s", strings.Join(amiss, "\n  "))
	}
	if err := world.WithinItsRights(from); err != nil {
		s.Error(err)
	}
	s.Kubectl("delete", "namespace", kipNamespace, "--timeout=5m")
	s.Kubectl("delete", "persistentvolume", "kip-store")
}

var controller = regexp.MustCompile(`--controller (\S+) --yes`)

// removeLeft does what deploy.sh says of a Kip whose namespace was deleted without a cleanup.
func (s *space) removeLeft(image string) {
	s.Helper()
	said, err := s.tryDeploy(image)
	id := controller.FindStringSubmatch(said)
	if err == nil || id == nil {
		s.Fatalf("deploy.sh does not say what is left of the Kip before (%v)", err)
	}
	// That of docs/uninstall.md.
	provider := filepath.Join(s.TempDir(), "provider.yaml")
	if err := os.WriteFile(provider, []byte("apiVersion: v1\nkind: serverConfig\ncloud: {aws: {region: "+machines.Region+"}}\n"+
		"cells: {defaultInstanceType: t3.nano}\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	s.Eventually("what Kip has left in the account is ended, once its lease is old", func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, world.Tool("kipctl"), "cleanup", "-f", provider, "--controller", id[1], "--yes")
		cmd.Env = s.environment()
		out, errs, err := namespace.Run(cmd)
		if err != nil {
			return fmt.Errorf("%w: %s%s", err, out, errs)
		}
		s.Log(out)
		return nil
	})
	s.Kubectl("delete", "nodes", "-l", apiv1.LabelController+"="+id[1])
}

// nothingLeft looks for what Kip has left in the account and in the cluster.
func (s *space) nothingLeft() {
	s.Helper()
	s.Eventually("nothing of Kip is left in the account", func(context.Context) error {
		now, left := s.state(), []string{}
		for _, i := range now.Instances {
			if i.Ended.IsZero() {
				left = append(left, fmt.Sprintf("instance %s, which is %s", i.ID, i.State))
			}
		}
		for _, v := range now.Volumes {
			left = append(left, "volume "+v.ID)
		}
		for _, g := range now.Groups {
			if g.ID != machines.ClusterGroup {
				left = append(left, "security group "+g.Name)
			}
		}
		for _, p := range now.Interfaces {
			left = append(left, "network interface "+p.ID)
		}
		if len(left) > 0 {
			return fmt.Errorf("there are %s", strings.Join(left, ", "))
		}
		return nil
	})
	s.Eventually("nothing of Kip is left in the cluster", func(ctx context.Context) error {
		left := ""
		for _, args := range [][]string{
			{"clusterroles,clusterrolebindings,roles,rolebindings,storageclasses,mutatingwebhookconfigurations,validatingadmissionpolicies," +
				"validatingadmissionpolicybindings", "-A", "-l", "app.kubernetes.io/instance=kip-provider"},
			{"nodes", "-l", "type=virtual-kubelet"},
			{"storageclass", "kip-provider-store", "--ignore-not-found"}, // which has no label
		} {
			out, code, errs := s.Attempt(ctx, append([]string{"get", "-o", "name"}, args...)...)
			if code != 0 {
				return fmt.Errorf("get %s: %s", args[0], errs)
			}
			left += out
		}
		if left != "" {
			return fmt.Errorf("there are %s", left)
		}
		return nil
	})
}

// profiles has a profile in provider.yaml. The command that doctor prints makes its webhooks, and deploy.sh's stay as they are. Then
// deploy.sh makes them by itself, and leaves the profile.
func (s *space) profiles(image string) {
	s.Helper()
	configs := world.Admin.CoreV1().ConfigMaps(kipNamespace)
	config, err := configs.Get(s.Context(), "kip-provider-config", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	config.Data["provider.yaml"] += "\nadmission:\n  profiles:\n  - {name: batch, namespaces: [" + s.NS + "], mode: burst}\n"
	if _, err := configs.Update(s.Context(), config, metav1.UpdateOptions{FieldManager: "somebody"}); err != nil {
		s.Fatal(err)
	}
	examined := func() (found struct{ Check, Outcome, Message, Cure string }) {
		cmd := exec.CommandContext(s.Context(), world.Tool("kipctl"), "doctor", "--kubeconfig", world.Kubeconfig, "-o", "json")
		cmd.Env = s.environment()
		out, errs, _ := namespace.Run(cmd)
		var report struct {
			Results []struct{ Check, Outcome, Message, Cure string }
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			s.Fatalf("doctor: %v\n%s%s", err, out, errs)
		}
		for _, r := range report.Results {
			if r.Check == "profiles" {
				return r
			}
		}
		s.Fatalf("doctor does not check profiles:\n%s", out)
		return found
	}
	hooks := func() (names []string) {
		configured, err := world.Admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(s.Context(), kipPod, metav1.GetOptions{})
		if err != nil {
			s.Fatal(err)
		}
		for _, w := range configured.Webhooks {
			names = append(names, w.Name)
		}
		return names
	}
	before, found := hooks(), examined()
	if found.Outcome != "failed" {
		s.Fatalf("doctor finds %+v", found)
	}
	s.Logf("%s\n$ %s", found.Message, found.Cure)
	root, err := harness.Repository()
	if err != nil {
		s.Fatal(err)
	}
	home := s.TempDir()
	cmd := exec.CommandContext(s.Context(), "bash", "-euo", "pipefail", "-c", found.Cure)
	cmd.Dir = root
	cmd.Env = append(s.environment(), "PATH="+world.Bin+":"+os.Getenv("PATH"), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home,
		"HELM_DATA_HOME="+home)
	if out, errs, err := namespace.Run(cmd); err != nil {
		s.Fatalf("%s: %v\n%s%s", found.Cure, err, out, errs)
	}
	if found := examined(); found.Outcome != "ok" {
		s.Errorf("doctor finds %+v", found)
	}
	for _, by := range []string{"doctor", "deploy.sh"} {
		if by == "deploy.sh" {
			s.deploy(image)
		}
		after := hooks()
		for _, name := range append(slices.Clone(before), "profiles.kip.elotl.co", "bindings.kip.elotl.co") {
			if !slices.Contains(after, name) {
				s.Errorf("after %s there is no webhook %s: %v", by, name, after)
			}
		}
	}
	if found := examined(); found.Outcome != "ok" {
		s.Errorf("after deploy.sh doctor finds %+v", found)
	}
	s.Eventually("the API server asks Kip about pods of the profile", func(ctx context.Context) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "asked-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "busybox:1.36",
		}}}}
		pod, err := world.Admin.CoreV1().Pods(s.NS).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Annotations["pod.elotl.co/profile"] != "batch" {
			err = fmt.Errorf("the pod is made with annotations %v", pod.Annotations)
		}
		return err
	})
}

func TestDeployShGoesFromAnEmptyAccountToPodsAndBack(t *testing.T) {
	tier.All(t)
	s := &space{Space: namespace.New(t, world)}
	s.tag = s.imageTag()
	world.SawMachine()
	s.addons()
	policy, err := exec.CommandContext(t.Context(), world.Tool("kipctl"), "eks", "policy").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.role(kipRole, kipAccount, policy)
	image := s.bootImage()
	s.storeVolume("first")

	began := time.Now()
	if said := s.deploy(image); !strings.Contains(said, "has no boot image") || !strings.Contains(said, "Node kip-provider-0 is Ready.") {
		t.Errorf("deploy.sh does not say that it publishes the boot image, or that the node is Ready")
	}
	pod, generation := s.kip()
	if said := s.deploy(image); strings.Contains(said, "has no boot image") {
		t.Errorf("deploy.sh publishes the boot image twice")
	}
	if again, now := s.kip(); again != pod || now != generation {
		t.Errorf("the second run of deploy.sh has another pod of Kip, or generation %d of %d", now, generation)
	}
	zones := s.virtualNodes()
	s.approve(len(zones))
	stopKarpenter := s.StartKarpenter()

	s.Apply(job)
	s.Apply(web)
	s.Apply(asker)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	if text := s.Kubectl("logs", "job/hello"); text != "hello\n" {
		t.Errorf("the Job logged %q", text)
	}
	s.Kubectl("rollout", "status", "deployment/web", "--timeout=5m")
	s.WaitReady("asker")
	s.gets("asker", "http://web", "from a cell\n")
	s.database(zones)
	s.assumes()
	s.gets("reader", "http://web", "from a cell\n")
	s.karpenterBuysForOthers()
	stopKarpenter()
	s.profiles(image)

	s.endPods(zones)
	s.uninstall(began)
	s.nothingLeft()

	// As the documents of 2020 say it, without a cleanup.
	s.storeVolume("second")
	again := time.Now() // the Kip before was refused what its namespace took with it
	s.deploy(image)
	s.Apply(job)
	s.Kubectl("wait", "--for=condition=Complete", "job/hello", "--timeout=5m")
	s.endPods(s.virtualNodes())
	s.deleteNamespace(again)
	s.removeLeft(image)
	s.nothingLeft()
}
