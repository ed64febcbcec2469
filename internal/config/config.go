package config

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/credentialproviders"
)

// Config is a provider.yaml, with defaults filled in, and valid.
//
// The tags of its fields are the reference: key is the name in the file, doc what
// it means, default (in YAML) what holds without it, clouds the only clouds that
// it matters to, renamed the key to use instead of it, deprecated why no key has taken its place.
type Config struct {
	APIVersion string    `key:"apiVersion" default:"v1" doc:"Version of this file's format: always v1."`
	Kind       string    `key:"kind" default:"serverConfig" doc:"Kind of this file: always serverConfig."`
	Cloud      Cloud     `key:"cloud" doc:"Where cells are launched: exactly one of the clouds below."`
	Etcd       Etcd      `key:"etcd" doc:"Where Kip keeps its state."`
	Cells      Cells     `key:"cells" doc:"The machines that pods run on."`
	Kubelet    Kubelet   `key:"kubelet" doc:"What the virtual node says of itself; with nodes, what each of them says that has nothing else."`
	Nodes      []Node    `key:"nodes" auto:"auto zones" doc:"The virtual nodes, at most 64. Or zones: one for all zones, which has the name itself, and, if the cloud offers machines in several zones, one for each, which pods with disks of a zone need. Or auto: one for each zone, architecture and capacity type (on-demand, spot). They are named after --nodename, with a number: kip-0-1, kip-0-2. Default: one node, which has the name itself. Changes take effect while Kip runs."`
	Admission  Admission `key:"admission" doc:"Which pods come to Kip although they do not select its nodes: docs/profiles.md."`
	Costs      Costs     `key:"costs" doc:"What Kip keeps of what cells have cost, which kipctl cost shows."`
	Testing    Testing   `key:"testing" doc:"For tests only."`

	ServingCertificate ServingCertificate `key:"servingCertificate" doc:"The certificate of the kubelet port, by which an API server that verifies kubelets knows a virtual node: see docs/serving-certificates.md. APISERVER_CERT_LOCATION and APISERVER_KEY_LOCATION name files instead."`

	// AutoNodes is auto or zones where nodes is one of these words. Nodes is empty then.
	AutoNodes string

	at positions
}

// Cloud has exactly one field set.
type Cloud struct {
	Local *Local `key:"local" doc:"Cells are namespaced machines on this host. Needs no account."`
	QEMU  *QEMU  `key:"qemu" doc:"Cells are virtual machines on this host. Needs no account."`
	AWS   *AWS   `key:"aws" doc:"Cells are EC2 instances."`
	GCE   *GCE   `key:"gce" doc:"Cells are Compute Engine instances."`
	Azure *Azure `key:"azure" doc:"Cells are Azure virtual machines."`
	Sim   *Sim   `key:"sim" doc:"For tests only: cells of a cloud that a test serves. The Kip that you install does not know this cloud and refuses it."`
}

// Name is the key of the cloud that is set: local, qemu, aws, gce, azure or sim.
func (c Cloud) Name() string {
	switch {
	case c.Local != nil:
		return "local"
	case c.QEMU != nil:
		return "qemu"
	case c.AWS != nil:
		return "aws"
	case c.GCE != nil:
		return "gce"
	case c.Azure != nil:
		return "azure"
	case c.Sim != nil:
		return "sim"
	}
	return ""
}

// Sim is a simulated cloud.
type Sim struct {
	Socket string `key:"socket" doc:"Unix socket on which the simulated cloud is served. Required."`
}

// Local is the cloud on this host.
type Local struct {
	StateDir    string       `key:"stateDir" default:"/opt/kip/local" doc:"Folder with the machines' records and disks."`
	RootDir     string       `key:"rootDir" default:"/opt/kip/cell-root" doc:"Folder with the root file system that all cells share, read-only."`
	Bridge      string       `key:"bridge" default:"kip0" doc:"Name of the network bridge that cells are attached to. Kip makes it."`
	CIDR        netip.Prefix `key:"cidr" default:"10.110.0.0/16" doc:"IPv4 addresses of cells and their pods; the first is the host's. Must not be in use elsewhere."`
	IPv6CIDR    netip.Prefix `key:"ipv6CIDR" doc:"IPv6 addresses of cells and their pods, which have both then: for clusters with Services of both families. Such as fd10:110::/64; from /16 to /96. Default: no IPv6."`
	Zones       []string     `key:"zones" default:"[local]" doc:"Names of zones, at most 16, to try what zones do: each machine and each disk is in one of them, and a disk is attached to machines of its zone only. They are all on this host. A zone may be added; one that has disks stays."`
	GPUs        int          `key:"gpus" default:"0" doc:"Stand-ins for GPUs of a machine of the type medium-gpu, at most 16, to try pods that ask for nvidia.com/gpu: device nodes that can compute nothing. 0 = there is no such type."`
	Nameservers []netip.Addr `key:"nameservers" doc:"Name servers of the cells, for images' registries and for pods with dnsPolicy Default. Without any, a look-up fails at once."`
}

// QEMU is the cloud of virtual machines on this host.
type QEMU struct {
	StateDir    string       `key:"stateDir" default:"/opt/kip/qemu" doc:"Folder with the machines' records and disks, and a copy of the image. Each machine's console is in it: machines/INSTANCE/console.log."`
	Image       string       `key:"image" default:"/opt/kip/image/kip-cell-amd64.qcow2" doc:"Disk that cells start from, qcow2 or raw, as make image builds it: its EFI program and its manifest are beside it."`
	Accelerator string       `key:"accelerator" default:"auto" doc:"How machines run: kvm, tcg (emulated, some ten times slower), or auto, which is kvm where a machine runs with it."`
	Hugepages   bool         `key:"hugepages" default:"false" doc:"Take machines' memory from the host's hugepages (vm.nr_hugepages), whole at a machine's start: faster, and a machine for which there are too few is refused. Else it is taken as it is used, and what a machine frees goes back."`
	Bridge      string       `key:"bridge" default:"kip0" doc:"Name of the network bridge that cells are attached to. Kip makes it."`
	CIDR        netip.Prefix `key:"cidr" default:"10.110.0.0/16" doc:"IPv4 addresses of cells and their pods; the first is the host's. Must not be in use elsewhere."`
	IPv6CIDR    netip.Prefix `key:"ipv6CIDR" doc:"IPv6 addresses of cells and their pods, as with the local cloud. Default: no IPv6."`
	Zones       []string     `key:"zones" default:"[local]" doc:"Names of zones, at most 16, as with the local cloud: all are on this host."`
	Nameservers []netip.Addr `key:"nameservers" doc:"Name servers of the cells, for images' registries and for pods with dnsPolicy Default. Without any, a look-up fails at once."`
}

// Accelerators of the cloud of virtual machines.
var Accelerators = []string{"auto", "kvm", "tcg"}

// reservedMemory is the default of cells.reservedMemory. Of a machine with Kip's image and the
// kernel of its own some 85 MiB are in use without a page of cache: docs/performance.md.
func (c Cloud) reservedMemory() resource.Quantity {
	if c.Local != nil || c.Sim != nil {
		return resource.MustParse("64Mi")
	}
	return resource.MustParse("128Mi")
}

// hostZones are the zones of a cloud on this host, and their key; nil for another cloud.
func (c Cloud) hostZones() (key string, zones []string) {
	switch {
	case c.Local != nil:
		return "cloud.local.zones", c.Local.Zones
	case c.QEMU != nil:
		return "cloud.qemu.zones", c.QEMU.Zones
	}
	return "", nil
}

// AWS is Amazon EC2.
type AWS struct {
	Region                   string               `key:"region" doc:"Region such as us-east-1. It wins over AWS_REGION and AWS_DEFAULT_REGION. Default: theirs, then that of the instance that Kip runs on, by its metadata. Kip does not start while it has cells, or disks of claims, in another region."`
	AccessKeyID              Secret               `key:"accessKeyID" doc:"Access key. Default: the environment, the service account's role, the instance's role."`
	SecretAccessKey          Secret               `key:"secretAccessKey" doc:"The access key's secret."`
	VPCID                    string               `key:"vpcID" doc:"VPC of the cells; default means the account's default VPC. Default: that of subnetID, or the VPC that Kip runs in; with endpointURL, default."`
	SubnetID                 string               `key:"subnetID" list:"yes" doc:"Subnet of the cells, or several of one VPC, as a list or separated by commas, in one zone or several. Default: those with subnetTags, all of vpcID, or the subnet that Kip runs in; with endpointURL, all of the default VPC. A cell takes two addresses of it, or seventeen where EC2 gives no secondary addresses to a batch: give cells subnets of their own."`
	SubnetTags               map[string]string    `key:"subnetTags" doc:"Tags of the subnets of the cells, instead of subnetID: those of vpcID, or of the whole region, that have all of them. A * in a value stands for any characters. They are looked for anew with the types, every twelve hours."`
	CapacityReservations     CapacityReservations `key:"capacityReservations" doc:"Capacity reservations, and Capacity Blocks, into which cells are launched before all else: their machines are paid for already."`
	DedicatedHosts           DedicatedHosts       `key:"dedicatedHosts" doc:"Dedicated Hosts, onto which the cells of dedicated pods are launched before all else: their machines are paid for already."`
	VolumeInitializationRate int                  `key:"volumeInitializationRate" default:"0" doc:"How fast EBS fills the root disks of cells from their image, in MiB a second: 100 to 300, which AWS charges by the size of the image. 0 = no rate: blocks come when they are first read."`
	CPUCredits               string               `key:"cpuCredits" default:"boot" doc:"CPU credits of burstable cells (t3, t3a, t4g). boot: unlimited until the pod runs, then standard; Kip needs the right KipEndsBootCredits. standard: a cell starts with its type's baseline, a t3.nano with a tenth of a CPU, which takes minutes. unlimited: a pod may need more than the baseline, which AWS charges and placement counts; not in China."`
	KMSKeyID                 string               `key:"kmsKeyID" doc:"KMS key that encrypts the root disks of cells and the disks of Kip's StorageClasses: its ID, its ARN or an alias such as alias/cells. Kip's role needs KipGrantsKeysOfDisks and KipUsesKeysOfDisks. Default: the account's default key for EBS."`
	ECR                      ECR                  `key:"ecr" doc:"Images in ECR, which cells pull with credentials that Kip gets for them."`
	KipSources               []string             `key:"kipSources" doc:"Where Kip dials cells from: networks, and IDs of security groups. Nothing else reaches their agents. Default: the security groups of the instance that Kip runs on. If there are none: the VPC and cells.extraCIDRs. If Kip runs outside of the VPC: cells.extraCIDRs alone. Kip then dials public addresses, so security groups and private networks in this list have no effect, unless cells.privateIPOnly is true."`
	EndpointURL              string               `key:"endpointURL" doc:"Another address of the EC2 API, and of those of STS, ECR, the price list and Service Quotas, for private clouds that speak it. With it Kip asks no other service, nor the metadata of the instance that it runs on."`
	InsecureTLSSkipVerify    bool                 `key:"insecureTLSSkipVerify" default:"false" doc:"Do not verify the certificate of endpointURL's host and port; those of all others are verified."`
	PublicAddress            bool                 `key:"publicAddress" default:"false" doc:"Give cells a public address in each subnet with a route to an internet gateway. Default: as the subnet says (MapPublicIpOnLaunch), but for a Kip outside of the VPC, which dials public addresses and so asks for them. cells.privateIPOnly and the pod's annotation win over it. AWS charges for each. Standby cells are replaced when it changes."`
	UseFIPS                  bool                 `key:"useFIPS" default:"false" doc:"Ask the endpoints of AWS that are validated for FIPS 140. Not with endpointURL, nor in China, which has none. AWS_USE_FIPS_ENDPOINT=true does the same."`
	ClusterName              string               `key:"clusterName" doc:"Name of the Kubernetes cluster, for the tag kubernetes.io/cluster/NAME with the value owned on all that Kip makes but the cells' security group, which gets it by securityGroupTags. Default: no such tag."`
	SecurityGroupTags        map[string]string    `key:"securityGroupTags" doc:"Tags of the cells' security group, besides cells.tags: such as kubernetes.io/cluster/NAME, which the AWS Load Balancer Controller looks for if cells have several groups. Kip writes them also on a group that is there, and removes none."`
	ECSClusterName           string               `key:"ecsClusterName" deprecated:"Fargate is not supported" doc:"Ignored."`

	Endpoints AWSEndpoints `key:"endpoints" doc:"Where other services are asked, if not at endpointURL. AWS_ENDPOINT_URL_STS and its like win over them."`
}

// AWSEndpoints are other services than EC2. Only with an endpointURL: AWS' own are known, and where the
// SDK's environment names others it names them to all that it does.
type AWSEndpoints struct {
	STS     string `key:"sts" doc:"Another address of STS."`
	ECR     string `key:"ecr" doc:"Another address of ECR's API."`
	Pricing string `key:"pricing" doc:"Another address of the Price List API."`
}

// CapacityReservations are those that cells may use.
type CapacityReservations struct {
	IDs  []string          `key:"ids" doc:"Their IDs, such as cr-0123456789abcdef0."`
	Tags map[string]string `key:"tags" doc:"All that have all of these tags, besides those in ids."`
}

// MayBeDedicated says that a cell may be on hardware that no other account uses.
func (c Cells) MayBeDedicated() bool {
	g := c.Grants
	return g.Unrestricted || slices.ContainsFunc(g.Namespaces, func(n NamespaceGrants) bool { return n.Dedicated }) ||
		slices.ContainsFunc(c.StandbyCells, func(s StandbyCells) bool { return s.Dedicated })
}

// DedicatedHosts are those that cells may use.
type DedicatedHosts struct {
	IDs  []string          `key:"ids" doc:"Their IDs, such as h-0123456789abcdef0."`
	Tags map[string]string `key:"tags" doc:"All that have all of these tags, besides those in ids."`
}

// ECR is Amazon's registry of images.
type ECR struct {
	RoleARN string `key:"roleARN" doc:"Role that Kip assumes for a cell's credentials, each time limited to the repositories that its pod names. Without one no cell gets any, and a pod whose image is in ECR needs a pull secret."`

	PullThroughCache bool `key:"pullThroughCache" default:"false" doc:"Let these credentials fill ECR's pull through cache: the first pull of an image imports it from its upstream registry, and makes its repository. The role needs the statement KipFillsCaches. Only with roleARN."`
}

// Subnets are the IDs in SubnetID.
func (a *AWS) Subnets() (ids []string) {
	for id := range strings.SplitSeq(a.SubnetID, ",") {
		if id = strings.TrimSpace(id); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// GCE is Google Compute Engine.
type GCE struct {
	ProjectID       string          `key:"projectID" doc:"Project. Default: by the metadata of the instance that Kip runs on, as for the next three."`
	Zone            string          `key:"zone" doc:"Zone of the cells, such as us-west1-a."`
	VPCName         string          `key:"vpcName" doc:"Network of the cells."`
	SubnetName      string          `key:"subnetName" doc:"Subnet of the cells."`
	CredentialsFile string          `key:"credentialsFile" doc:"File with a service account's key, JSON. Default: the instance's service account."`
	Credentials     *GCECredentials `key:"credentials" doc:"A service account's key, instead of credentialsFile."`
}

// GCECredentials are a service account's key.
type GCECredentials struct {
	ClientEmail string `key:"clientEmail" doc:"E-mail address of the service account. Required."`
	PrivateKey  Secret `key:"privateKey" doc:"Its private key, PEM. Required."`
}

// Azure is Microsoft Azure.
type Azure struct {
	SubscriptionID     string `key:"subscriptionID" doc:"Subscription. Required."`
	Location           string `key:"location" doc:"Location by its display name, such as East US. Required."`
	ResourceGroup      string `key:"resourceGroup" doc:"Resource group of the virtual network. Required."`
	VirtualNetworkName string `key:"virtualNetworkName" doc:"Network of the cells."`
	SubnetName         string `key:"subnetName" doc:"Subnet of the cells."`
	TenantID           string `key:"tenantID" doc:"Tenant. AZURE_TENANT_ID wins over it."`
	ClientID           string `key:"clientID" doc:"Application. AZURE_CLIENT_ID wins over it."`
	ClientSecret       Secret `key:"clientSecret" doc:"The application's secret. AZURE_CLIENT_SECRET wins over it."`
}

// Etcd is embedded unless Client has endpoints.
type Etcd struct {
	Internal EtcdInternal `key:"internal" doc:"The etcd that Kip embeds."`
	Client   EtcdClient   `key:"client" doc:"An etcd cluster of yours, instead of the embedded one."`

	EncryptionKeyFiles []string `key:"encryptionKeyFiles" doc:"Files with the keys that encrypt the CA's key, and those of serving certificates, in etcd: in each 32 random bytes in base64, as openssl rand -base64 32 gives. The first encrypts, all decrypt: to change it, put a new one first, and drop the old one after Kip has started. Default: these keys are not encrypted."`
}

// EtcdInternal is the embedded etcd.
type EtcdInternal struct {
	DataDir    string `key:"dataDir" default:"/opt/kip/data" doc:"Folder with Kip's state, on a persistent volume."`
	ConfigFile string `key:"configFile" doc:"An etcd configuration file (YAML), for what dataDir does not say."`
}

// EtcdClient is an etcd cluster that runs elsewhere.
type EtcdClient struct {
	Endpoints []string `key:"endpoints" doc:"Addresses such as https://etcd-0:2379: all with https, which is TLS, or, with allowPlainText, all with http."`
	CertFile  string   `key:"certFile" doc:"Client certificate, PEM. With keyFile, and https endpoints."`
	KeyFile   string   `key:"keyFile" doc:"The client certificate's key, PEM."`
	CAFile    string   `key:"caFile" doc:"CA of the cluster's certificates, PEM. With https endpoints. Default: the host's CAs."`

	AllowPlainText bool `key:"allowPlainText" default:"false" doc:"Take http endpoints too: whoever is on the way reads and changes all that Kip stores."`
}

// Cells are the machines that pods run on.
type Cells struct {
	BootImageSpec          map[string]string   `key:"bootImageSpec" clouds:"aws,gce,azure" doc:"Which image cells boot, in the cloud's own terms. With aws imageID, or what the newest is taken of: name, of which * may be a part, imageIDs, filters of DescribeImages (NAME=VALUE,VALUE with spaces between them), owner or owners (accounts; else your own), with those also executableUsers. Required with aws."`
	DefaultInstanceType    string              `key:"defaultInstanceType" doc:"Instance type of pods that name neither resources nor a type. Required."`
	DefaultVolumeSize      resource.Quantity   `key:"defaultVolumeSize" default:"5Gi" clouds:"aws,gce,azure" doc:"Size of a cell's root disk, at least 1Gi."`
	ReservedMemory         resource.Quantity   `key:"reservedMemory" doc:"What a cell's kernel and agent need of its memory: added to what the pod needs when an instance type is chosen. Default: 128Mi; with local and sim, whose cells have no kernel of their own, 64Mi."`
	StandbyCells           []StandbyCells      `key:"standbyCells" doc:"Pools of cells that are kept for the next pods. Two pools that differ in nothing but their count are an error."`
	MaxAttempts            int                 `key:"maxAttempts" default:"5" doc:"How many cells in a row may fail to start for one pod before the pod is marked Failed; 0 = no bound."`
	MaxAge                 time.Duration       `key:"maxAge" default:"0" doc:"How old a cell may become, at least 3600: then its pod is evicted, within disruption budgets and a few pods at a time, and the pod that replaces it gets a new cell with the current image. Standby cells are replaced at half of it. 0 = any age. See docs/cells.md."`
	InterruptionPenalty    int                 `key:"interruptionPenalty" default:"10" doc:"By how many percent a spot offering counts as dearer for each time in the last day that the cloud took such an instance back, at most 100; 0 = not at all."`
	SpotSpread             int                 `key:"spotSpread" default:"10" doc:"By how many percent spot offerings may cost more than the cheapest and still share the pods, at most 100: so fewer cells are taken back at once; 0 = always the cheapest. See docs/placement.md."`
	CloudInitFile          string              `key:"cloudInitFile" doc:"A cloud-init file that each new cell carries out once, before its pod: users, groups, ssh_authorized_keys, hostname, write_files, runcmd; at most 64 KiB. Read again when it changes, for the next cell; one that has become wrong changes nothing. Users, groups and keys need an image of your own. See docs/cells.md."`
	Itzo                   Itzo                `key:"itzo" doc:"Another agent than that of the cells' image, which fetches it, checks its digest and hands over to it. All three keys, or none. See docs/own-image.md."`
	ExtraCIDRs             []netip.Prefix      `key:"extraCIDRs" clouds:"aws,gce,azure" doc:"Networks that may reach cells, besides the cells' own."`
	ExtraSecurityGroups    []string            `key:"extraSecurityGroups" clouds:"aws,gce,azure" doc:"Security groups that are attached to each cell."`
	Tags                   map[string]string   `key:"tags" clouds:"aws" doc:"Tags of all that Kip makes in the cloud, in the call that makes it: instances, root disks, network interfaces and spot requests of cells, disks of Kip's StorageClasses, and the cells' security group. Keys of at most 128 characters, values of at most 256: letters, digits, spaces and + - = . _ : / @. Kip's own tags are Name and those that begin with Kip, in any case. Standby cells are replaced when these tags change."`
	Nametag                string              `key:"nametag" doc:"Word in the names of all that Kip makes in the cloud: at most 24 lower-case letters, digits and dashes, a letter first. Default: the controller ID."`
	StatusInterval         time.Duration       `key:"statusInterval" default:"5" doc:"How often Kip looks for cells that it has not heard of. It asks them nothing: changes of a pod's status arrive by themselves, at once."`
	Healthcheck            Healthcheck         `key:"healthcheck" doc:"When a cell counts as lost: by status or by cloudAPI, not both. Default: status."`
	EndLimit               EndLimit            `key:"endLimit" doc:"How many ends that may be a mistake there may be in a time: of cells that count as lost while they run a pod, and of instances with Kip's tags that no cell has. More are held back until the time is over, or until kipctl allow."`
	CAOverlap              time.Duration       `key:"caOverlap" default:"300" doc:"How long the old CA is kept at least when the cells' CA is rotated: 10 or more. A replica needs two minutes to show the API server a certificate of the new one."`
	Masquerade             bool                `key:"masquerade" default:"true" clouds:"aws" doc:"Cells with a public address send what their pods send to the internet from their own address, since EC2 drops it from a pod's. What goes to the VPC, to networks that its route tables lead to by another way, and to other private networks keeps the pod's address. false = all of it does: such pods reach the internet only if something on the way translates their addresses."`
	PrivateIPOnly          bool                `key:"privateIPOnly" default:"false" clouds:"aws,gce,azure" doc:"Cells get no public address."`
	CellConfig             map[string]string   `key:"cellConfig" doc:"Settings of cells of earlier releases. None has an effect any more: each is an error that names what to use instead."`
	DefaultIAMPermissions  string              `key:"defaultIAMPermissions" clouds:"aws" doc:"Instance profile (name or ARN) of cells whose pod has pod.elotl.co/allow-metadata and names none. Other cells have no role."`
	UseCloudParameterStore bool                `key:"useCloudParameterStore" default:"false" clouds:"aws" doc:"Of earlier releases: true is an error, since user data holds no secret but one that joins once."`
	CSIDrivers             []CSIDriver         `key:"csiDrivers" doc:"CSI drivers whose volumes work on cells: those that need no attaching (attachRequired: false in their CSIDriver). Their node plugins, privileged containers as a rule, run on the cells of pods that have such volumes."`
	DaemonSets             []DaemonSet         `key:"daemonSets" doc:"DaemonSets that run beside pods: the cell of each pod of a virtual node runs a copy of the set's pod on that node, with all that its manifest says. Their requests count in the choice of instance types. See docs/daemonsets.md."`
	DaemonSetMachines      bool                `key:"daemonSetMachines" default:"false" doc:"Give the pods of all DaemonSets cells, as other pods. false: such a pod gets a cell only if it has pod.elotl.co/machine and its namespace may use that (cells.grants); else it stands on the virtual node without a machine. See docs/nodes.md."`
	Grants                 Grants              `key:"grants" doc:"Which annotations of pods that are money or rights are granted to which namespaces. What is not granted makes a pod wait, with the Event NotGranted; a pod of a DaemonSet that asks for a machine stands without one."`
	Budgets                []Budget            `key:"budgets" doc:"What namespaces may cost. Pods of one that has no money left for them wait, with the Event BudgetExceeded; no pod that has a cell is ended."`
	Prices                 []Price             `key:"prices" doc:"Your own prices, and types that are preferred or left out. Of several with a price for a type the first counts."`
	RegistryMirrors        map[string][]string `key:"registryMirrors" doc:"For an image host such as docker.io, the URLs that cells ask first. The host _default stands for all that are not named. Cells send a mirror the credentials for the images that they pull: pull secrets, and those of ECR. Use https if these matter."`
	Registries             []Registry          `key:"registries" doc:"How cells reach registries that they would not trust or reach as they are: with a CA of their own, by plain HTTP, or with a client certificate. Kip reads the files when it starts and gives them to new cells. Whoever is root on a cell can read them, a client's key too."`

	CredentialProviders []CredentialProvider `key:"credentialProviders" doc:"Credential provider plugins that the cells' kubelets ask for what pulls images, with the keys of the kubelet's CredentialProviderConfig. Their programs are files on the cells, in /opt/kip/credential-providers. See docs/compatibility.md."`
}

// Registry is how cells reach one registry.
type Registry struct {
	Host                  string `key:"host" doc:"The image host, with its port where images name one, such as registry.example.com:5000. Required."`
	CAFile                string `key:"caFile" doc:"File with the certificates of the authorities that may have issued the registry's certificate, PEM. Default: those that the cells' image trusts."`
	PlainHTTP             bool   `key:"plainHTTP" default:"false" doc:"Reach it by HTTP, without TLS: whoever is between reads the credentials and changes the images."`
	ClientCertificateFile string `key:"clientCertificateFile" doc:"File with the certificate, PEM, that cells show the registry; with clientKeyFile."`
	ClientKeyFile         string `key:"clientKeyFile" doc:"File with the key of that certificate, PEM."`
}

// CredentialProvider is a program that the cells' kubelets ask for what pulls images.
type CredentialProvider struct {
	Name                 string           `key:"name" doc:"Name of the program's file in /opt/kip/credential-providers of the cells. Required."`
	APIVersion           string           `key:"apiVersion" default:"credentialprovider.kubelet.k8s.io/v1" doc:"What the program speaks: v1, v1beta1 or v1alpha1 of that group."`
	MatchImages          []string         `key:"matchImages" doc:"Images for which the kubelet asks it: hosts, with a port and the beginning of a path if wanted. * stands for a part of the host, as in *.registry.example.com. Required."`
	DefaultCacheDuration time.Duration    `key:"defaultCacheDuration" default:"0" doc:"How long the kubelet keeps an answer that does not say for how long."`
	Args                 []string         `key:"args" doc:"Arguments of the program. They are no place for secrets: processes on the cell see them."`
	Env                  []EnvVar         `key:"env" doc:"Variables of its environment, besides those of the agent. Who is root on a cell reads them."`
	TokenAttributes      *TokenAttributes `key:"tokenAttributes" doc:"Which token of the pod's service account the program is given. Without it, none."`
}

// EnvVar is a variable of a credential provider's environment.
type EnvVar struct {
	Name  string `key:"name" doc:"Name of the variable. Required."`
	Value string `key:"value" doc:"Its value."`
}

// TokenAttributes say which token of the pod's service account a credential provider is given.
type TokenAttributes struct {
	ServiceAccountTokenAudience string   `key:"serviceAccountTokenAudience" doc:"Audience of the token. Required. The API server gives it to nodes only by a ClusterRole: see docs/compatibility.md."`
	CacheType                   string   `key:"cacheType" default:"Token" doc:"For whom the kubelet keeps the answer: Token, for who has the same token, or ServiceAccount, for pods of the same service account."`
	RequireServiceAccount       bool     `key:"requireServiceAccount" default:"true" doc:"Ask the program only for pods with a service account."`
	RequiredKeys                []string `key:"requiredServiceAccountAnnotationKeys" doc:"Annotations of the service account that the program is given. It is not asked for a service account that lacks one."`
	OptionalKeys                []string `key:"optionalServiceAccountAnnotationKeys" doc:"Annotations of the service account that it is given where they are there."`
}

// Of returns the provider as agents are told of it.
func (p CredentialProvider) Of() credentialproviders.Provider {
	is := credentialproviders.Provider{
		Name:                 p.Name,
		APIVersion:           p.APIVersion,
		MatchImages:          p.MatchImages,
		DefaultCacheDuration: p.DefaultCacheDuration,
		Args:                 p.Args,
	}
	for _, e := range p.Env {
		is.Env = append(is.Env, credentialproviders.EnvVar{Name: e.Name, Value: e.Value})
	}
	if t := p.TokenAttributes; t != nil {
		is.TokenAttributes = &credentialproviders.TokenAttributes{
			Audience:              t.ServiceAccountTokenAudience,
			CacheType:             t.CacheType,
			RequireServiceAccount: t.RequireServiceAccount,
			RequiredAnnotations:   t.RequiredKeys,
			OptionalAnnotations:   t.OptionalKeys,
		}
	}
	return is
}

// Grants are what the pods of namespaces may ask for by annotation.
type Grants struct {
	Unrestricted    bool              `key:"unrestricted" default:"false" doc:"Grant every annotation to every namespace: where an admission policy decides, such as that of deploy/manifests/rights/policies.yaml, or where everybody who makes pods may."`
	MaxPricePerHour resource.Quantity `key:"maxPricePerHour" default:"0" doc:"Most that an instance may cost in an hour, in US dollars, whatever a pod asks for; 0 = no bound. A namespace may have a higher one."`
	MaxVolumeSize   resource.Quantity `key:"maxVolumeSize" default:"100Gi" doc:"Largest root disk that a pod may get, by pod.elotl.co/volume-size, for its ephemeral-storage or for its swap, in whole Gi; 0 = no bound. A namespace may have a larger one. What is no larger than cells.defaultVolumeSize needs no grant."`
	MaxKeepFailed   time.Duration     `key:"maxKeepFailed" default:"0" doc:"Longest time for which pod.elotl.co/keep-failed may keep the cell of a failed pod, at most 604800; 0 = not at all, also with grants.unrestricted. The cell is paid meanwhile, and neither a ResourceQuota nor the node's capacity counts it. A namespace may have a longer one."`
	MaxKeptCells    int               `key:"maxKeptCells" default:"3" doc:"How many cells of failed pods one namespace may keep at the same time, at least 1. Kip ends the cell of a further one at once, and reports it."`
	UnsafeSysctls   []string          `key:"unsafeSysctls" doc:"Namespaced sysctls that pods may set by securityContext.sysctls besides those that Kubernetes calls safe, as allowedUnsafeSysctls of a kubelet: kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* and net.*, or names and patterns within. For all namespaces, also with unrestricted, which does not grant them. Default: none, and the cell's kubelet rejects such a pod."`
	Namespaces      []NamespaceGrants `key:"namespaces" doc:"What namespaces are granted. One that is named several times has all of it."`
}

// NamespaceGrants are what the pods of one namespace may ask for.
type NamespaceGrants struct {
	Namespace         string            `key:"namespace" doc:"Name of the namespace, or * for every one. Required."`
	InstanceProfiles  []string          `key:"instanceProfiles" doc:"Values that pod.elotl.co/instance-profile may have. One that ends with * stands for all that begin like it."`
	SecurityGroups    []string          `key:"securityGroups" doc:"Values that pod.elotl.co/security-groups may have, likewise."`
	CloudRoutes       []netip.Prefix    `key:"cloudRoutes" doc:"Networks within which pod.elotl.co/cloud-route may be."`
	AllowMetadata     bool              `key:"allowMetadata" default:"false" doc:"Whether pod.elotl.co/allow-metadata may be true."`
	InstanceTypes     []string          `key:"instanceTypes" doc:"Instance types that the pods may get, however they are chosen, likewise. Without a list that is for the namespace, all."`
	PublicAddress     bool              `key:"publicAddress" default:"false" doc:"Whether pod.elotl.co/private-ip-only may be false where cells.privateIPOnly is true."`
	Dedicated         bool              `key:"dedicated" default:"false" doc:"Whether the pods may be on dedicated instances, however they are chosen: by pod.elotl.co/launch-type, or by a node that offers them."`
	DaemonSetMachines bool              `key:"daemonSetMachines" default:"false" doc:"Whether pod.elotl.co/machine may be true in the pods of a DaemonSet."`
	BesidePods        bool              `key:"besidePods" default:"false" doc:"Whether pod.elotl.co/beside-pods may be true in the pods of a DaemonSet: it then runs beside the pods of all namespaces, as privileged as its manifest says. See docs/daemonsets.md."`
	HostSysctls       []string          `key:"hostSysctls" doc:"Sysctls of the machine that pod.elotl.co/host-sysctls may set. One that ends with * stands for all that begin like it. kernel.core_pattern and others name programs that the kernel runs as root of the machine, so grants.unrestricted does not grant them."`
	HostModules       []string          `key:"hostModules" doc:"Modules of the kernel that pod.elotl.co/host-modules may load, likewise: not granted by grants.unrestricted either."`
	UnsafeSysctls     []string          `key:"unsafeSysctls" doc:"Namespaced sysctls that the pods may set besides those of grants.unsafeSysctls, likewise."`
	MaxVolumeSize     resource.Quantity `key:"maxVolumeSize" default:"0" doc:"Largest root disk that pods may ask for, in whole Gi, where it is more than grants.maxVolumeSize."`
	MaxKeepFailed     time.Duration     `key:"maxKeepFailed" default:"0" doc:"Longest time for which pod.elotl.co/keep-failed may keep the cell of a failed pod, where it is more than grants.maxKeepFailed."`
	MaxPricePerHour   resource.Quantity `key:"maxPricePerHour" default:"0" doc:"Most that an instance may cost in an hour, in US dollars, where it is more than grants.maxPricePerHour."`
}

// Budget is what the cells of one namespace may cost together.
type Budget struct {
	Namespace       string            `key:"namespace" doc:"Name of the namespace, or * for each one that has none of its own. Required."`
	MaxCostPerHour  resource.Quantity `key:"maxCostPerHour" default:"0" doc:"Most that its cells may cost in an hour, in US dollars; 0 = no bound."`
	MaxCostPerMonth resource.Quantity `key:"maxCostPerMonth" default:"0" doc:"Most that it may cost in a calendar month (UTC), in US dollars; 0 = no bound."`
}

// Price is what an operator says of the prices of some types.
type Price struct {
	InstanceTypes []string          `key:"instanceTypes" doc:"Names of types, or patterns such as c5.*. Default: all."`
	Regions       []string          `key:"regions" doc:"Regions in which it holds. Default: all."`
	Spot          bool              `key:"spot" default:"false" doc:"The discount, or the price, is of spot. Else it is of all others: savings plans and reservations are not for spot."`
	Dedicated     bool              `key:"dedicated" default:"false" doc:"They are of dedicated instances alone. Not with spot."`
	Discount      resource.Quantity `key:"discount" default:"0" doc:"Percentage that is off the price: above 0, less than 100."`
	PricePerHour  resource.Quantity `key:"pricePerHour" default:"0" doc:"A price in US dollars an hour, instead of the cloud's."`
	Prefer        resource.Quantity `key:"prefer" default:"0" doc:"Percentage that such a type may be dearer than another and is chosen still: above 0, at most 1000."`
	Exclude       bool              `key:"exclude" default:"false" doc:"Such types are not launched."`
}

// CSIDriver is a CSI driver whose node plugin runs on cells.
type CSIDriver struct {
	Name      string `key:"name" doc:"Name of the driver, such as nfs.csi.k8s.io. Required."`
	DaemonSet string `key:"daemonSet" doc:"The DaemonSet with its node plugin, as namespace/name. Required."`
	Beside    bool   `key:"beside" default:"false" doc:"Run the plugin as a copy of the DaemonSet's own pod, as cells.daemonSets does, with its service account, Secrets and ConfigMaps: for plugins that ask the Kubernetes API. false: as a static pod, without these."`
}

// DaemonSet names DaemonSets that run beside pods on their cells.
type DaemonSet struct {
	Namespace  string        `key:"namespace" doc:"Namespace of the DaemonSets. Required: who may make DaemonSets in another one could give one this name."`
	Name       string        `key:"name" doc:"Name of the DaemonSet. Default: all of the namespace."`
	Selector   string        `key:"selector" doc:"Label selector of the DaemonSets' pods, such as app=fluent-bit. Default: all."`
	Pods       string        `key:"pods" doc:"Label selector of the pods that they run beside, such as logs!=none. Default: all pods of Kip's nodes."`
	Namespaces []string      `key:"namespaces" doc:"Names of the namespaces of these pods. Default: all. Who writes a pod writes its labels, but not its namespace."`
	MaxDelay   time.Duration `key:"maxDelay" default:"0" doc:"How long a pod waits until these beside it are Ready, at most 600 seconds; then it starts without, and an Event says so. So long it also waits for a machine with room for them where the cloud is out of these and has others. 0 = it starts beside them."`
	Linger     time.Duration `key:"linger" default:"0" doc:"How long a cell goes on after its pod has ended, at most 60 seconds: these beside it are told to end, and a log shipper sends what it has. 0 = they end with the machine."`
}

// StandbyCells is a pool of cells that wait for pods.
type StandbyCells struct {
	InstanceType string `key:"instanceType" doc:"Instance type. Required."`
	Count        int    `key:"count" default:"0" doc:"How many are kept, 0 or more."`
	Zone         string `key:"zone" doc:"Zone of the pool. Default: wherever the type is cheapest and available."`
	Spot         bool   `key:"spot" default:"false" doc:"Launch as spot."`
	Dedicated    bool   `key:"dedicated" default:"false" doc:"Launch dedicated instances. Not with spot."`
	Stopped      bool   `key:"stopped" default:"false" doc:"Keep them stopped, where the cloud can: they cost their disks only, take a boot to start, and hold no capacity. Not with spot: EC2 cannot stop the spot instances that cells are."`
}

// Itzo is another agent than that of the cells' image: all keys or none.
type Itzo struct {
	Version string            `key:"version" doc:"Version of the agent, a part of the name of its file: itzo-VERSION-ARCHITECTURE."`
	URL     string            `key:"url" doc:"The folder of its files, of http or https: each cell asks there for the file of its architecture."`
	SHA256  map[string]string `key:"sha256" doc:"The SHA-256 of the file, by architecture, amd64 or arm64, as sha256sum prints it. A cell of an architecture that is not there cannot start."`
}

// Is says that there is another agent.
func (i Itzo) Is() bool { return i.Version != "" }

// Healthcheck has exactly one field set.
type Healthcheck struct {
	Status   *HealthcheckStatus   `key:"status" doc:"By the lease that the cell's kubelet renews."`
	CloudAPI *HealthcheckCloudAPI `key:"cloudAPI" doc:"By the cloud's list of instances: for links to cells that break often."`
}

// HealthcheckStatus believes the cell.
type HealthcheckStatus struct {
	HealthyTimeout time.Duration `key:"healthyTimeout" default:"90" doc:"A cell that was not heard of for so long is lost. A healthy one is heard of every 10 seconds: less than 15 loses it too."`
}

// HealthcheckCloudAPI believes the cloud.
type HealthcheckCloudAPI struct {
	Interval       time.Duration `key:"interval" default:"60" doc:"How often the cloud is asked at least; 10 or more."`
	HealthyTimeout time.Duration `key:"healthyTimeout" default:"180" doc:"A cell that the cloud does not show for so long is lost: more than interval."`
}

// EndLimit bounds what a mistake of the cloud or of Kip can destroy.
type EndLimit struct {
	Percent int           `key:"percent" default:"10" doc:"Percentage of the cells that run a pod and of the instances without a cell, together, as many as there were when the time began: 0 to 100."`
	Least   int           `key:"least" default:"10" doc:"How many there may be however few cells there are; 0 or more. With 0 for both, each waits for kipctl allow."`
	Window  time.Duration `key:"window" default:"300" doc:"The time: 60 or more."`
}

// Kubelet is what the virtual node says of itself.
type Kubelet struct {
	Capacity corev1.ResourceList `key:"capacity" auto:"auto" default:"{cpu: 20, memory: 100Gi, ephemeral-storage: 100Gi, pods: 20}" doc:"What the scheduler may place on the virtual node. auto, for all or as the value of cpu, memory, ephemeral-storage or pods: as much as can be launched, see docs/nodes.md. Huge pages such as hugepages-2Mi, and extended resources such as nvidia.com/gpu, can be added, those of devices and huge pages also with auto; what is not named keeps its default, ephemeral-storage too."`
	Labels   map[string]string   `key:"labels" doc:"Labels of the virtual node, besides Kip's own."`

	// AutoCapacity are the resources whose capacity is auto, sorted. Capacity has their defaults.
	AutoCapacity []corev1.ResourceName

	// Of the following, Capacity has the values.

	CPU    *resource.Quantity `key:"cpu" renamed:"kubelet.capacity.cpu" doc:"Same as kubelet.capacity.cpu."`
	Memory *resource.Quantity `key:"memory" renamed:"kubelet.capacity.memory" doc:"Same as kubelet.capacity.memory."`
	Pods   *resource.Quantity `key:"pods" renamed:"kubelet.capacity.pods" doc:"Same as kubelet.capacity.pods."`
}

// Node is one virtual node: what it offers, and what it says of itself. What is empty
// is not limited.
type Node struct {
	Suffix        *int                `key:"suffix" doc:"Number in the node's name, 1 to 64; 0 for the name itself, without a number. The node is then known by its number, whatever else changes. Default: the lowest number that is free; the node is then known by what it offers (the next four keys), and keeps its number as long as that is the same."`
	Zones         []string            `key:"zones" doc:"Zones of its cells. Default: all."`
	Architectures []string            `key:"architectures" doc:"Architectures of its cells: amd64, arm64. Default: all, and pods that name none get Kip's own."`
	LaunchTypes   []string            `key:"launchTypes" doc:"How its cells are bought: on-demand, spot, dedicated. Pods that do not say get the first that serves them, in this order. Default: all, and pods that do not say get on-demand."`
	InstanceTypes []string            `key:"instanceTypes" doc:"Instance types of its cells, by name or by pattern: c5.large, g*. Default: all."`
	Labels        map[string]string   `key:"labels" doc:"Its labels, besides kubelet.labels and Kip's own."`
	Taints        []Taint             `key:"taints" doc:"Its taints, besides Kip's own."`
	Capacity      corev1.ResourceList `key:"capacity" auto:"auto" doc:"What the scheduler may place on it, or auto, as in kubelet.capacity, which holds for what is not named."`

	// AutoCapacity are the resources whose capacity is auto, sorted.
	AutoCapacity []corev1.ResourceName `json:",omitempty"`
}

// Taint is one of a virtual node.
type Taint struct {
	Key    string `key:"key" doc:"Key of the taint. Required."`
	Value  string `key:"value" doc:"Its value."`
	Effect string `key:"effect" default:"NoSchedule" doc:"NoSchedule, PreferNoSchedule or NoExecute."`
}

// Who may request the certificate of a kubelet port.
const (
	RequesterNode = "node"
	RequesterKip  = "kip"
)

// ServingCertificate is the certificate of the kubelet port.
type ServingCertificate struct {
	SignerName string `key:"signerName" doc:"Signer of which Kip requests the certificate: kubernetes.io/kubelet-serving, on EKS beta.eks.amazonaws.com/app-serving, or another that signs serving certificates. Kip renews the certificate in time. Default: no request; the kubelet port serves Kip's own certificate, which an API server that verifies kubelets refuses."`
	Requester  string `key:"requester" doc:"Who makes the request: node, the virtual node itself as a kubelet would, or kip, Kip's service account, which needs deploy/manifests/rights/csr.yaml. GKE denies requests of nodes that are no instances: kip there. Default: node for kubernetes.io/kubelet-serving, kip for other signers."`
	Approve    bool   `key:"approve" default:"false" doc:"Kip approves its own requests. It needs deploy/manifests/rights/csr-approve.yaml, which lets Kip's service account approve every request to that signer: see docs/threat-model.md. Without it Kip prints the command with which you approve, also at renewals."`
}

// RequestedByNode reports whether the virtual node makes the requests.
func (c ServingCertificate) RequestedByNode() bool {
	if c.Requester == "" {
		return c.SignerName == certificatesv1.KubeletServingSignerName
	}
	return c.Requester == RequesterNode
}

// Costs say what the ledger of costs is kept by.
type Costs struct {
	Labels []string `key:"labels" doc:"Keys of labels of pods that costs are kept by too, at most 5: such as team. Those that a pod has when its cell is requested count. On AWS they are tags of the cell as well, so name none that cells.tags has, in any case, none of Kip's own, and none that a policy trusts."`
}

// Testing is for tests only.
type Testing struct {
	ControllerID string `key:"controllerID" doc:"A fixed controller ID: lower-case letters, digits and dashes. Default: derived from the cluster and the node's name."`
}
