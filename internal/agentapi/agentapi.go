// Package agentapi owns what Kip and itzo, the agent on a cell, agree on: user data,
// the port, the name of GPUs, the HTTP API that itzo serves to Kip on the tunnel, and the client by
// which all of Kip asks it. It must not touch either end: both import it.
package agentapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/credentialproviders"
)

// Port is where itzo listens on the management address, TCP, TLS 1.3 only.
const Port = 6421

// ResourceGPU is the resource by which the agent offers its machine's GPUs to the kubelet, and
// by which Kip sees that they are there.
const ResourceGPU = "nvidia.com/gpu"

// UserData is what a machine is told when it is launched, under the key "kip"
// of a #cloud-config document. It holds no key: whoever reads it after the join
// holds nothing.
type UserData struct {
	CellID string `json:"cellID"`
	// CAHash is the lower-case hex SHA-256 of Kip's CA certificate (DER).
	CAHash string `json:"caHash"`
	// Token is the one-time join token, 32 random bytes, base64url without padding.
	Token string `json:"token"`
}

// BatchVersion is the version of user data that the machines of a launch share.
const BatchVersion = 2

// BatchUserData is UserData in its second version, for all machines of a launch
// where the cloud has them share it. A machine that knows its place in the batch
// knows its cell ID (BatchCell) and its token (pki.BatchSecret.Token).
type BatchUserData struct {
	Version int `json:"version"` // BatchVersion
	// Batch is the launch's ID.
	Batch  string `json:"batch"`
	CAHash string `json:"caHash"`
	// Secret is the batch's, 32 random bytes, base64url without padding. It expires
	// when Kip drops it; nothing in it says when, since machines' clocks may be wrong.
	Secret string `json:"secret"`
}

// BatchCell is the cell ID under which a machine of a batch joins, by its place: the
// launch index in decimal.
func BatchCell(batch, place string) string { return batch + "-" + place }

// Paths of the HTTP API that itzo serves. The agent of an image is as old as the image: it answers 404 at a path that it does not
// know.
const (
	// PathConfig takes a Config by PUT. itzo answers 200 when it has written
	// the configuration and started containerd, kube-proxy and the kubelet; a second PUT
	// with an equal Config changes nothing. A different one restarts the
	// kubelet, never the pod. It says in a Configured what it knows of the machine's start.
	PathConfig = "/v1/config"
	// PathCloudInit takes a CloudInit by PUT, before the first Config. itzo begins to carry it
	// out, once in the machine's life. It answers 503 as long as that goes on, then 200 with a
	// CloudInitDone, however often it is asked; 400 for what it cannot carry out here, of
	// which it has done nothing. GET with ParamDigest is answered as PUT of the file with that
	// digest, and with 404 where none with it was begun.
	PathCloudInit = "/v1/cloud-init"
	// PathAgent takes an Agent by PUT, before the first Config. itzo answers 200 where it is
	// that agent. Else it fetches it, answers 503 meanwhile, and lets it take its place, which
	// breaks the tunnel; that agent then answers. No Config is taken meanwhile: its PUT is
	// answered with 503, too. 400 for one that this machine cannot have: nothing of it was
	// started.
	PathAgent = "/v1/agent"
	// PathDisks takes Disks by PUT. itzo answers 200 when each of them is at its
	// DiskPath and no other is mounted any more, and 503 as long as that is not so,
	// with the reason; the PUT is then to be repeated.
	PathDisks = "/v1/disks"
	// PathPlugins takes Plugins by PUT. itzo answers 200 when the kubelet has been
	// given each of them, and when no volume of a driver that is not among them is
	// there any more; 503 as long as one is. The PUT is then to be repeated.
	PathPlugins = "/v1/plugins"
	// PathKernel takes KernelSettings by PUT, before the pod is shown to the kubelet. itzo loads the
	// modules, sets the sysctls, and answers 200. It does both again when the machine was started anew. It answers
	// 503 before it has set what kube-proxy sets, which is to come first; the PUT is then to be
	// repeated. 400 for what the machine refuses, with its reason; what came before may be in
	// force.
	PathKernel = "/v1/kernel"
	// PathStatus returns a Status.
	PathStatus = "/v1/status"
	// PathFirewall takes a Firewall by PUT. itzo answers 200 when it is in force,
	// and with that the pod may start. GET returns a FirewallStatus.
	PathFirewall = "/v1/firewall"
	// PathAuthorities takes Authorities by PUT. The agent answers 200 when they are stored
	// and hold.
	PathAuthorities = "/v1/authorities"
	// PathKubelet is the prefix of the reverse proxy into the cell's kubelet:
	// GET /kubelet/containerLogs/… and so on, upgrades (SPDY, WebSocket)
	// included.
	PathKubelet = "/kubelet"
)

// ParamDigest is the SHA-256 of a file in lower-case hex digits.
const ParamDigest = "digest"

// PathNotice takes a Notice by PUT. It is Kip that serves it, to the agent of each cell, beside
// the Kubernetes API of the cell's kubelet. It answers 200 when it has noted it, 400 for what it
// cannot read, 503 for what it could not store, and 429 when it is told more than once within
// NoticePause; after these two it is to be told again.
const PathNotice = "/kip/v1/notice"

// IsNotice says that a request of a cell's gives a Notice.
func IsNotice(r *http.Request) bool { return r.Method == http.MethodPut && r.URL.Path == PathNotice }

// NoticePause is the least time between two notices of a cell.
const NoticePause = 2 * time.Second

// Notice is what the cloud says, on a machine, of the end of that machine.
type Notice struct {
	Kind NoticeKind `json:"kind"`
	// Left is how long the machine goes on, by the cloud's clock, in nanoseconds; of
	// NoticeTakenBack alone.
	Left time.Duration `json:"left,omitempty"`
}

// NoticeKind is one of the kinds below.
type NoticeKind string

const (
	// NoticeTakenBack: the cloud takes the machine back.
	NoticeTakenBack NoticeKind = "taken-back"
	// NoticeAtRisk: it is more likely than usual to be taken back. It may run on for long.
	NoticeAtRisk NoticeKind = "at-risk"
)

// Config is what Kip tells a cell after it has joined.
type Config struct {
	// NodeName is the virtual node that the kubelet registers as.
	NodeName      string       `json:"nodeName"`
	NodeIP        netip.Addr   `json:"nodeIP"` // the management address
	PodIP         netip.Addr   `json:"podIP"`
	NodeIPv6      netip.Addr   `json:"nodeIPv6,omitzero"` // these two together, or neither
	PodIPv6       netip.Addr   `json:"podIPv6,omitzero"`
	ClusterDNS    []netip.Addr `json:"clusterDNS,omitempty"`
	ClusterDomain string       `json:"clusterDomain"`
	// Routes are IPv4 networks behind the pod: what is for them goes to it, and it sends what is
	// from them.
	Routes []netip.Prefix `json:"routes,omitempty"`
	// ReservedMemoryBytes is kept from the pod for kernel and agent; the same
	// number that placement adds to a pod's need.
	ReservedMemoryBytes int64 `json:"reservedMemoryBytes"`
	// RegistryMirrors maps an image host (docker.io) to base URLs that are
	// asked before it. The key "_default" is for all hosts not named.
	RegistryMirrors map[string][]string `json:"registryMirrors,omitempty"`
	// Registries are those that the cell reaches otherwise than it would.
	Registries []Registry `json:"registries,omitempty"`
	// Plugins says that the cell may be given Plugins.
	Plugins bool `json:"plugins,omitempty"`
	// UnsafeSysctls are those that the kubelet lets the pod set in its own namespaces, besides the ones that Kubernetes
	// calls safe: names, all of them namespaced.
	UnsafeSysctls []string `json:"unsafeSysctls,omitempty"`
	// HugePages are those that the kernel reserves before the kubelet starts, at least, one entry a size. An agent of before this
	// key reserves none, and says nothing of them in Configured.
	HugePages []HugePages `json:"hugePages,omitempty"`
	// SwapBytes is the swap that the machine has before the kubelet starts, which shares it among its containers; 0 for none.
	// An agent of before this key makes none, and says nothing of it in Configured.
	SwapBytes int64 `json:"swapBytes,omitempty"`
	// ImagesOfCloud are patterns of the images, as a kubelet's matchImages, for which the
	// cell's kubelet asks Kip for credentials: see PathImageCredentials.
	ImagesOfCloud []string `json:"imagesOfCloud,omitempty"`
	// CredentialProviders are the operator's. An agent of before this key has none, and says nothing of them in Configured.
	CredentialProviders []credentialproviders.Provider `json:"credentialProviders,omitempty"`
}

// Registry is how a cell reaches a registry.
type Registry struct {
	Host string `json:"host"` // of images, with its port where they name one
	// CA are the authorities of its certificate, PEM; "" for those that the machine trusts.
	CA        string `json:"ca,omitempty"`
	PlainHTTP bool   `json:"plainHTTP,omitempty"`
	// Certificate and Key are what the cell shows, PEM; both or neither.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
}

// HugePages are huge pages of one size.
type HugePages struct {
	PageBytes int64 `json:"pageBytes"`
	Pages     int64 `json:"pages"`
}

// Resource is the name by which pods ask for pages of this size: hugepages-2Mi.
func (h HugePages) Resource() string {
	unit, size := "Ki", h.PageBytes>>10
	for _, larger := range []string{"Mi", "Gi"} {
		if size%1024 == 0 {
			unit, size = larger, size/1024
		}
	}
	return "hugepages-" + strconv.FormatInt(size, 10) + unit
}

// Agent is another agent than that of a cell's image: the program itzo, without the kubelet
// and containerd.
type Agent struct {
	Version string `json:"version"`
	// URL is the folder of its files, of http or https.
	URL string `json:"url"`
	// SHA256 are the digests of its files in 64 lower-case hex digits, by architecture as Go
	// names it.
	SHA256 map[string]string `json:"sha256"`
}

// SHA256Of returns the digest of a file as Agent.SHA256 has it.
func SHA256Of(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Source is the URL of the agent's file for an architecture.
func (a Agent) Source(arch string) string {
	return strings.TrimRight(a.URL, "/") + "/itzo-" + a.Version + "-" + arch
}

// CloudInit is the operator's cloud-init file.
type CloudInit struct {
	// Document is the file as it is, of at most 64 KiB. It may hold secrets.
	Document []byte `json:"document"`
}

// CloudInitDone says that a CloudInit was carried out.
type CloudInitDone struct {
	// Failures are what of it could not be done, for people: at most twenty lines.
	Failures []string `json:"failures,omitempty"`
}

// Configured is the answer to a Config.
type Configured struct {
	Boot Boot `json:"boot,omitzero"`
	// Agent is the one that answers.
	Agent RunningAgent `json:"agent,omitzero"`
	// HugePages are how many the kernel has of each size of Config.HugePages. NoHugePages is why the machine can have none of a
	// size; "" where it has them, or might.
	HugePages   []HugePages `json:"hugePages,omitempty"`
	NoHugePages string      `json:"noHugePages,omitempty"`
	// CredentialProviders has for each of Config.CredentialProviders why the kubelet does without it; "" for one that it asks.
	CredentialProviders map[string]string `json:"credentialProviders,omitempty"`
	// SwapBytes is Config.SwapBytes where the machine has that swap. NoSwap is why it cannot have it; "" where it has.
	SwapBytes int64  `json:"swapBytes,omitempty"`
	NoSwap    string `json:"noSwap,omitempty"`
}

// RunningAgent is the agent that runs on a cell, as it says itself: for people, and for nothing
// that is decided.
type RunningAgent struct {
	Version string `json:"version"`
	// SHA256 is the digest of its program in 64 lower-case hex digits; "" where it was not asked
	// which agent it is, since that costs the reading of the program.
	SHA256 string `json:"sha256,omitempty"`
}

// maxVersion bounds the bytes of a version that is shown.
const maxVersion = 128

// shown is what may be shown of it: the zero one where that is nothing that can be.
func (a RunningAgent) shown() RunningAgent {
	if len(a.Version) > maxVersion || a.SHA256 != "" && !isSHA256(a.SHA256) {
		return RunningAgent{}
	}
	a.Version = printable(a.Version)
	return a
}

func isSHA256(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// Boot are moments of a machine's start, each in nanoseconds since its kernel started. It
// is the zero Boot where no kernel was started for the machine.
type Boot struct {
	// Kernel is when the kernel started the first process.
	Kernel time.Duration `json:"kernel,omitempty"`
	// UserSpace is when that process had the root that the agent runs in.
	UserSpace time.Duration `json:"userSpace,omitempty"`
	// Network is when the machine had its address.
	Network time.Duration `json:"network,omitempty"`
	// Joined is when Kip gave the agent its first configuration.
	Joined time.Duration `json:"joined,omitempty"`
}

// maxBoot is longer than Kip waits for any machine to start.
const maxBoot = 24 * time.Hour

// Plausible says that the moments that are known are in their order, within a day, and that
// the machine has joined.
func (b Boot) Plausible() bool {
	at := []time.Duration{b.Kernel, b.UserSpace, b.Network, b.Joined, maxBoot}
	known := slices.DeleteFunc(at, func(d time.Duration) bool { return d == 0 })
	return b.Joined > 0 && known[0] > 0 && slices.IsSorted(known)
}

// Authorities are by which a cell knows Kip, and the certificate by which Kip knows the
// cell.
type Authorities struct {
	// Trusted are the CAHashes of the authorities whose Kip the cell is to trust: that of
	// the Kip that asks among them, and no others from then on.
	Trusted []string `json:"trusted"`
	// Certificate is the cell's (DER), for the key that it has, and CA that of the
	// authority that issued it, one of Trusted.
	Certificate []byte `json:"certificate"`
	CA          []byte `json:"ca"`
}

// Disks are all that the cell is to have, by their IDs.
type Disks struct {
	Disks []string `json:"disks"`
}

// DiskDir is where a cell has the devices of its disks.
const DiskDir = "/dev/kip"

// DiskPath is the device of a disk on its cell.
func DiskPath(id string) string { return DiskDir + "/" + id }

// Plugins are all node plugins of CSI drivers that the cell is to run.
type Plugins struct {
	Plugins []Plugin `json:"plugins"`
}

// Plugin is the node plugin of one CSI driver.
type Plugin struct {
	Driver string `json:"driver"`
	// Pod is a static pod in PluginNamespace, of the name that PluginPod says.
	Pod json.RawMessage `json:"pod"`
}

// KernelSettings are what the pod of a cell asks of the machine's kernel.
type KernelSettings struct {
	// Modules are loaded first, since they bring sysctls along.
	Modules []string `json:"modules,omitempty"`
	// Sysctls are set in their order.
	Sysctls []Sysctl `json:"sysctls,omitempty"`
}

// Sysctl is a setting of the kernel.
type Sysctl struct {
	// Name has dots between its parts; a / in it is a dot of a part, such as eth0/100.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// PluginPriority is the priority of plugins' pods: they end after all others, of which none is above
// system-node-critical's, 2000001000.
const PluginPriority = 2000001001

// PluginNamespace is where the pods of plugins are. Nobody but the cell's kubelet
// knows of them.
const PluginNamespace = "kube-system"

// PluginPod is the name of a driver's static pod; the kubelet appends the node's.
func PluginPod(driver string) string { return pluginPrefix + driver }

const pluginPrefix = "csi-plugin-"

// IsPluginPod says whether a pod that a kubelet speaks of is that of a plugin.
func IsPluginPod(namespace, name string) bool {
	return namespace == PluginNamespace && strings.HasPrefix(name, pluginPrefix)
}

// Status is how a cell's parts fare.
type Status struct {
	CellID     string      `json:"cellID"`
	Version    string      `json:"version"`
	Components []Component `json:"components"`
}

// Component is one process that itzo supervises.
type Component struct {
	Name     string `json:"name"` // containerd, kubelet, and device-plugin where there are GPUs
	PID      int    `json:"pid"`  // 0 when it does not run
	Restarts int    `json:"restarts"`
	// Waiting says what a component that does not run waits for.
	Waiting string `json:"waiting,omitempty"`
}

// Firewall is what the pod of a cell may send and receive. It names the pod by its
// addresses; a second PUT replaces the first as a whole.
type Firewall struct {
	// Pod is whose rules these are, namespace/name, for people who look.
	Pod   string     `json:"pod"`
	PodIP netip.Addr `json:"podIP"`
	// PodIPv6 is the pod's IPv6 address; without one no IPv6 packet of the pod's passes.
	PodIPv6 netip.Addr `json:"podIPv6,omitzero"`
	// AllowMetadata lets the pod reach the cloud's metadata service.
	AllowMetadata bool      `json:"allowMetadata,omitempty"`
	Ingress       Direction `json:"ingress"`
	Egress        Direction `json:"egress"`
	// Masquerade changes the source of what the pod sends; nil for nothing.
	Masquerade *Masquerade `json:"masquerade,omitempty"`
	// Beside says that other pods run beside the pod; nil for none. Send it only to an agent that knows it
	// (FirewallStatus.Beside): others refuse unknown keys.
	Beside *Beside `json:"beside,omitempty"`
}

// Beside is by what a cell tells its pod from the pods of DaemonSets that run beside it. These get
// addresses of BesideNetwork, which nobody reaches but from within the cell, and send from the cell's own.
type Beside struct {
	// PodUID is the UID of the cell's pod.
	PodUID string `json:"podUID"`
	// HostPorts are those at which pods of the machine's network listen. The pod may connect to them.
	HostPorts []Ports `json:"hostPorts,omitempty"`
}

// OwnPorts are those of the agent, and on loopback of the kubelet and kube-proxy. None of them is a HostPort.
var OwnPorts = []uint16{Port, 10249, 10250, 10256}

// BesideNetwork has the addresses of pods of DaemonSets on their cell. They are link-local, so no address of a
// cluster or of a VPC is one of them.
var BesideNetwork = netip.MustParsePrefix("169.254.66.0/24")

// Masquerade has the cell send the pod's IPv4 packets with another source address. The
// rules of Ingress and Egress see the pod's own address all the same.
type Masquerade struct {
	// As is that address, one of the cell's.
	As netip.Addr `json:"as"`
	// Except are the IPv4 networks that the pod reaches from its own address, disjoint and
	// sorted.
	Except []netip.Prefix `json:"except,omitempty"`
}

// Direction is what may come to the pod, or what it may reach.
type Direction struct {
	// Isolated says that only what Allowed lists may pass; else everything may.
	Isolated bool      `json:"isolated,omitempty"`
	Allowed  []Allowed `json:"allowed,omitempty"`
}

// Allowed are connections that may be made, those of each address with each port.
type Allowed struct {
	// Any is true for every address; Addresses are those otherwise, disjoint
	// and sorted.
	Any       bool           `json:"any,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// AnyPort is true for every port of every protocol; Ports are those
	// otherwise, disjoint and sorted.
	AnyPort bool    `json:"anyPort,omitempty"`
	Ports   []Ports `json:"ports,omitempty"`
}

// Ports are the ports of one protocol from First to Last, of the destination.
type Ports struct {
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	First    uint16 `json:"first"`
	Last     uint16 `json:"last"`
}

// FirewallStatus is what a cell's firewall has in force.
type FirewallStatus struct {
	// Digest is of the Firewall in force, "" before the first: nothing of the
	// pod's passes then.
	Digest string `json:"digest"`
	// Beside reports whether the agent knows Firewall.Beside. A cell of one that does not runs its pod alone.
	Beside bool `json:"beside,omitempty"`
	// PodUID is that of Firewall.Beside in force; "" for none.
	PodUID string `json:"podUID,omitempty"`
}

// Digest tells one encoded Firewall from another.
func Digest(firewall []byte) string {
	sum := sha256.Sum256(firewall)
	return hex.EncodeToString(sum[:])
}
