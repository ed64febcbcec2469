package layout

import (
	"fmt"
	"go/parser"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// rule is what some packages must not import.
type rule struct {
	says string // the rule, and why it is one
	// tests reports whether test files are held to it too.
	tests bool
	// breaks reports whether a file in dir may not import a package; of our own
	// packages it gets the folder, with ownPackage true.
	breaks func(dir, imports string, ownPackage bool) bool
}

// sdks are the clouds' libraries, and the only folder that may use each.
var sdks = map[string]string{
	"github.com/aws":                                             "internal/cloud/aws",
	"cloud.google.com/go":                                        "internal/cloud/gce",
	"google.golang.org/api":                                      "internal/cloud/gce",
	"github.com/Azure/azure-sdk-for-go":                          "internal/cloud/azure",
	"github.com/Azure/go-autorest":                               "internal/cloud/azure",
	"github.com/AzureAD/microsoft-authentication-library-for-go": "internal/cloud/azure",
}

// pure are the packages that compute and do nothing else.
var pure = []string{"internal/placement", "internal/catalog", "internal/capacity", "internal/daybook"}

// clients are libraries and packages by which a program reaches outside itself.
var clients = []string{
	"k8s.io/client-go", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime", "github.com/virtual-kubelet",
	"go.etcd.io", "google.golang.org/grpc", "github.com/containerd", "github.com/vishvananda/netlink",
	"net", "os", "syscall", "golang.org/x/sys",
}

// isClient tells net and net/http from net/netip and net/url,
// which only hold values.
func isClient(imports string) bool {
	return imports != "net/netip" && imports != "net/url" && withinAny(imports, clients...)
}

// rules of imports. All but the last come from other packages than our own.
var rules = append([]rule{
	{
		says: "only internal/agent/components, cmd/itzo, dev/, cmd/kip-dev and test/conformance/upstream, a module of its own, " +
			"import k8s.io/kubernetes: " +
			"it takes minutes to build and costs each process 10 MB and 35 ms before main, and its packages promise no stability",
		tests: true,
		breaks: func(dir, imports string, _ bool) bool {
			users := []string{"internal/agent/components", "cmd/itzo", "dev", "cmd/kip-dev", "test/conformance/upstream"}
			return within(imports, "k8s.io/kubernetes") && !withinAny(dir, users...)
		},
	},
	{
		says:  "only dev/ and cmd/kip-dev import k8s.io/kubectl: it is there for machines without kubectl, and does not ship",
		tests: true,
		breaks: func(dir, imports string, _ bool) bool {
			return within(imports, "k8s.io/kubectl") && !withinAny(dir, "dev", "cmd/kip-dev")
		},
	},
	{
		says: "only internal/cloud/NAME imports that cloud's SDK: what the rest needs of a cloud is in internal/cloud, " +
			"so that clouds stay exchangeable",
		tests: true,
		breaks: func(dir, imports string, _ bool) bool {
			for sdk, folder := range sdks {
				if within(imports, sdk) && !within(dir, folder) {
					return true
				}
			}
			return false
		},
	},
	{
		says: "placement, catalog and capacity import no client and do no I/O: a choice of an instance type is a pure function, " +
			"so that it can be tested by itself and explained afterwards",
		breaks: func(dir, imports string, ownPackage bool) bool {
			if !withinAny(dir, pure...) {
				return false
			}
			if ownPackage {
				return !withinAny(imports, append(pure, "internal/spelling")...)
			}
			if isClient(imports) {
				return true
			}
			for sdk := range sdks {
				if within(imports, sdk) {
					return true
				}
			}
			return false
		},
	},
	{
		says: "internal/policy imports no client and does no I/O: what a NetworkPolicy means is tested by itself, against an oracle",
		breaks: func(dir, imports string, ownPackage bool) bool {
			return within(dir, "internal/policy") && !ownPackage && isClient(imports)
		},
	},
	{
		says: "only cmd/kip imports internal/kip, which alone imports internal/cleanup and, with those who show it to people, " +
			"internal/explain: these three know all of Kip, so what they are made of must not lean on them",
		tests: true,
		breaks: func(dir, imports string, ownPackage bool) bool {
			for room, users := range knowAll {
				if ownPackage && within(imports, room) && !within(dir, room) && !withinAny(dir, users...) {
					return true
				}
			}
			return false
		},
	},
}, directions()...)

// knowAll are the packages that know all of Kip, and who may import each.
var knowAll = map[string][]string{
	"internal/kip":     {"cmd/kip"},
	"internal/cleanup": {"internal/kip"},
	"internal/explain": {"internal/kip", "cmd/kipctl"},
}

// direction says which of our own packages some of our own may import: all but
// those in not or, if only is set, none but those.
type direction struct {
	of, not, only []string
	why           string
}

// arrows are those between our packages: cmd → pods, node → cells → cloud, store.
func arrows() []direction {
	kipOnly := []string{
		"internal/pods", "internal/node", "internal/cells", "internal/cellapi", "internal/watches", "internal/cloud", "internal/store",
		"internal/placement", "internal/capacity", "internal/catalog", "internal/config", "internal/adminapi", "internal/podlogs", "image",
	}
	return []direction{
		{
			of: []string{"cmd/kip"}, only: []string{"internal/kip", "internal/version"},
			why: "a command is its flags; internal/kip puts the parts together",
		},
		{
			of: []string{"internal", "api", "deploy", "examples"}, not: []string{"cmd", "dev", "test"},
			why: "a package does not know which program it is in, and nothing that ships knows the development cluster",
		},
		{
			of: []string{"cmd/kip", "cmd/kipctl", "cmd/itzo", "cmd/itzo-containerd", "cmd/itzo-lite"}, not: []string{"dev", "test"},
			why: "what ships does not contain the development cluster",
		},
		{
			of: []string{"internal/node"},
			not: []string{
				"internal/pods", "internal/cells", "internal/cellapi", "internal/cloud", "internal/store", "internal/tunnel", "internal/placement",
			},
			why: "the virtual node is given the way to a pod's cell by its caller",
		},
		{
			of: []string{"internal/nodes"},
			not: []string{
				"internal/pods", "internal/cellapi", "internal/cloud", "internal/calls", "internal/tunnel", "internal/adminapi",
				"internal/cleanup",
			},
			why: "virtual nodes come and go by what is configured; what answers for their pods is handed to them",
		},
		{
			of: []string{"internal/admission"}, only: []string{"internal/pki", "internal/placement"},
			why: "what is changed of a pod follows from the pod and from what is known of nodes, which is handed to it",
		},
		{
			of: []string{"internal/pods"},
			not: []string{
				"internal/node", "internal/cloud", "internal/store", "internal/tunnel", "internal/pki", "internal/cellapi", "internal/agent",
			},
			why: "pods asks for cells and lets them go; only cells touches clouds, the store and the tunnel",
		},
		{
			of: []string{"internal/cells"},
			not: []string{
				"internal/pods", "internal/node", "internal/placement", "internal/capacity", "internal/config", "internal/podlogs",
				"internal/adminapi",
			},
			why: "cells decides nothing about pods: what to launch is handed to it",
		},
		{
			of: []string{"internal/cellapi", "internal/tunnel", "internal/pki", "internal/store", "internal/podlogs", "internal/adminapi"},
			not: []string{
				"internal/pods", "internal/node", "internal/cells", "internal/cloud", "internal/placement", "internal/capacity", "internal/config",
			},
			why: "these are parts that cells and internal/kip put together; a part does not know who uses it",
		},
		{
			of: []string{"internal/cellapi"}, not: []string{"internal/tunnel", "internal/store"},
			why: "the cell API speaks HTTP; how a request came is not its business",
		},
		{
			of: []string{"internal/tunnel", "internal/pki"}, not: []string{"internal/cellapi", "internal/store"},
			why: "the tunnel carries requests and decides nothing about them; what must be kept, its caller keeps",
		},
		{
			of: []string{"internal/lateness"}, not: []string{"internal", "api"},
			why: "how late this process is does not depend on what it does",
		},
		{
			of: []string{"internal/pulse"}, not: []string{"internal", "api"},
			why: "whether a loop moves does not depend on what it does",
		},
		{
			of: []string{"internal/watches"}, not: []string{"internal", "api"},
			why: "what is seen of the API server does not depend on who is shown it",
		},
		{
			of: []string{"internal/netdump"}, not: []string{"internal", "api"},
			why: "how a list is asked for does not depend on what is done with it",
		},
		{
			of: []string{"internal/cloud"}, only: []string{"internal/cloud", "internal/catalog", "internal/netdump"},
			why: "a cloud only translates; state, retries and selection live above it, once",
		},
		{
			of: []string{"internal/calls"}, only: []string{"internal/backoff", "internal/catalog", "internal/cloud", "internal/pulse"},
			why: "when a call is sent does not depend on why it is made",
		},
		{
			of: []string{"internal/backoff"}, not: []string{"internal", "api"},
			why: "how long to wait does not depend on for what",
		},
		{
			of: []string{"internal/agent"}, not: kipOnly,
			why: "itzo runs on another machine than Kip and shares with it only their contract (agentapi) and the tunnel",
		},
		{
			of: []string{"internal/policy"}, only: []string{"internal/agentapi"},
			why: "what a NetworkPolicy means is a pure function of the cluster, in the words of the contract with cells",
		},
		{
			of: []string{"internal/isolation"},
			not: []string{
				"internal/pods", "internal/node", "internal/cells", "internal/cellapi", "internal/cloud", "internal/store", "internal/tunnel",
				"internal/placement", "internal/config",
			},
			why: "a firewall is given its cell and the way to it",
		},
		{
			of:  []string{"internal/cleanup", "internal/explain"},
			not: []string{"internal/config", "internal/node", "internal/cellapi", "internal/tunnel", "internal/pki", "internal/podlogs"},
			why: "what they look at is handed to them",
		},
		{
			of: []string{"internal/explain"}, not: []string{"internal/cloud", "internal/store"},
			why: "it tells what Kip knows, and asks nobody but the agent of a cell; the way to a console is handed to it",
		},
		{
			of: []string{"internal/events"}, not: []string{"internal", "api"},
			why: "reasons are words; who reports them is not their business",
		},
		{
			of: []string{"internal/cloudconfig"}, only: []string{"internal/spelling"},
			why: "what a cloud-init file says is read alike by Kip and by the agent that carries it out",
		},
		{
			of: []string{"internal/agentapi"}, only: nil, not: []string{"internal", "api"},
			why: "both ends import the contract between Kip and itzo, it imports neither",
		},
		{
			of: []string{"internal/config"}, only: []string{"internal/cloud/local/sizes", "internal/spelling", "internal/volumes"},
			why: "provider.yaml is read by itself; what its keys do is the business of who is given them",
		},
		{
			of: []string{"internal/daybook"}, not: []string{"internal", "api"},
			why: "what was spent is sums of days and names, whoever spends",
		},
		{
			of: []string{"internal/quote"}, only: []string{"internal/admission", "internal/catalog", "internal/placement", "internal/spelling"},
			why: "what pods would cost is told without a cluster, by the choice that Kip makes itself",
		},
		{
			of: []string{"internal/leader"}, only: []string{"internal/store"},
			why: "who leads is decided by the store alone",
		},
		{
			of: []string{"internal/holder"}, only: []string{"internal/spelling", "internal/store"},
			why: "who holds the node is decided by a lease and the store alone",
		},
		{
			of: []string{"internal/metrics"},
			only: []string{
				"api", "internal/calls", "internal/catalog", "internal/cells", "internal/cloud", "internal/gate", "internal/stats", "internal/store",
				"internal/version",
			},
			why: "what is counted is handed to it, and it asks nobody for more",
		},
		{
			of: []string{"internal/gate"}, only: []string{"api", "internal/cloud"},
			why: "it knows only what it is told of the ends that it lets pass",
		},
		{
			of: []string{"internal/lanes"}, only: []string{"internal/pulse"},
			why: "who is asked and for what is its callers' business",
		},
		{
			of:   []string{"internal/provisioner"},
			only: []string{"internal/backoff", "internal/cloud", "internal/events", "internal/gate", "internal/volumes"},
			why:  "disks of claims outlive cells, and know none",
		},
		{
			of: []string{"internal/shop"},
			only: []string{
				"internal/capacity", "internal/catalog", "internal/cells", "internal/cloud", "internal/placement", "internal/store",
			},
			why: "what may be launched does not depend on for whom",
		},
		{
			of: []string{"internal/registries"}, only: []string{"internal/agentapi", "internal/cloud"},
			why: "what pulls an image is lent by the cloud for whoever may have it; who that is, is the cell API's business",
		},
		{
			of: []string{"internal/roster"}, only: []string{"internal/catalog", "internal/config", "internal/placement"},
			why: "which virtual nodes there are follows from what is configured and offered, and touches none",
		},
		{
			of: []string{"internal/stats", "internal/volumes"}, only: []string{"internal/agentapi"},
			why: "they speak of pods in Kubernetes' words and with agents in theirs; the way to a cell is handed to them",
		},
		{
			of: []string{"internal/spelling", "internal/version"}, not: []string{"internal", "api"},
			why: "anybody may use them, so they use nobody",
		},
	}
}

// directions are the arrows as rules.
func directions() []rule {
	var out []rule
	for _, d := range arrows() {
		out = append(out, rule{
			says: fmt.Sprintf("dependencies point one way (cmd → kip → pods, node → cells → cloud, store), so %s may not import this: %s",
				strings.Join(d.of, ", "), d.why),
			breaks: func(dir, imports string, ownPackage bool) bool {
				if !ownPackage || !withinAny(dir, d.of...) || withinAny(imports, dir) {
					return false
				}
				if d.only != nil {
					return !withinAny(imports, d.only...)
				}
				return withinAny(imports, d.not...)
			},
		})
	}
	return out
}

// breaches returns what breaks the rules of imports, in the order of files.
func breaches(all []source) []string {
	var out []string
	for _, s := range all {
		for _, i := range s.imports {
			name, ownPackage := own(i.path)
			if !ownPackage {
				name = i.path
			}
			for _, r := range rules {
				if (r.tests || !s.isTest()) && r.breaks(s.dir(), name, ownPackage) {
					out = append(out, fmt.Sprintf("%s:%d imports %s: %s", s.path, i.line, i.path, r.says))
				}
			}
		}
	}
	return out
}

// withoutArrow returns the rooms of internal that no arrow and no rule names.
func withoutArrow(rooms []string) []string {
	named := slices.Concat(pure, []string{"internal/kip"}) // the last knows all
	for _, d := range arrows() {
		named = append(named, d.of...)
	}
	return slices.DeleteFunc(rooms, func(r string) bool { return slices.Contains(named, r) })
}

func TestEachRoomHasADirection(t *testing.T) {
	entries, err := os.ReadDir(top(t) + "/internal")
	if err != nil {
		t.Fatal(err)
	}
	var rooms []string
	for _, e := range entries {
		if e.IsDir() {
			rooms = append(rooms, "internal/"+e.Name())
		}
	}
	for _, r := range withoutArrow(rooms) {
		t.Errorf("no direction names %s: say what it may import, or must not", r)
	}
	if left := withoutArrow([]string{"internal/cells", "internal/new"}); !slices.Equal(left, []string{"internal/new"}) {
		t.Errorf("of an old room and a new one, those without a direction are %v", left)
	}
}

func TestImportsPointTheRightWay(t *testing.T) {
	report(t, breaches(parsed(t, parser.ImportsOnly)))
}

func TestBreachesAreFound(t *testing.T) {
	const kip = module + "/"
	for name, tc := range map[string]struct {
		file, imports string
		want          string // of the violation; "" for none
	}{
		"the kubelet in the agent's own package": {
			"internal/agent/agent.go", "k8s.io/kubernetes/cmd/kubelet/app",
			"only internal/agent/components",
		},
		"also in a test": {
			"internal/cells/x_test.go", "k8s.io/kubernetes/pkg/apis/core",
			"only internal/agent/components",
		},
		"the kubelet where it belongs":       {"internal/agent/components/kubelet.go", "k8s.io/kubernetes/cmd/kubelet/app", ""},
		"upstream's tests where they belong": {"test/conformance/upstream/upstream.go", "k8s.io/kubernetes/test/e2e", ""},
		"upstream's tests beside that": {
			"test/conformance/main.go", "k8s.io/kubernetes/test/e2e",
			"only internal/agent/components",
		},
		"the control plane where it belongs": {"dev/cluster/components.go", "k8s.io/kubernetes/cmd/kube-apiserver/app", ""},
		"a folder whose name only begins alike": {
			"cmd/itzo-lite/main.go", "k8s.io/kubernetes/cmd/kubelet/app",
			"only internal/agent/components",
		},
		"a module whose name only begins alike": {"internal/cells/x.go", "k8s.io/kubernetes-csi/x", ""},
		"kubectl in what ships":                 {"cmd/kipctl/main.go", "k8s.io/kubectl/pkg/cmd", "k8s.io/kubectl"},
		"an SDK above the clouds": {
			"internal/cells/launch.go", "github.com/aws/aws-sdk-go-v2/service/ec2",
			"that cloud's SDK",
		},
		"an SDK in another cloud": {
			"internal/cloud/gce/gce.go", "github.com/Azure/azure-sdk-for-go/sdk/azcore",
			"that cloud's SDK",
		},
		"an SDK in its cloud":                        {"internal/cloud/aws/aws.go", "github.com/aws/aws-sdk-go-v2/service/ec2", ""},
		"a client in placement":                      {"internal/placement/placer.go", "k8s.io/client-go/tools/cache", "pure function"},
		"a file in placement":                        {"internal/placement/placer.go", "os", "pure function"},
		"HTTP in the catalogue":                      {"internal/catalog/refresh.go", "net/http", "pure function"},
		"an address in placement":                    {"internal/placement/annotations.go", "net/netip", ""},
		"the API's types in placement":               {"internal/placement/need.go", "k8s.io/api/core/v1", ""},
		"Kip's configuration in placement":           {"internal/placement/placer.go", kip + "internal/config", "pure function"},
		"the catalogue in placement":                 {"internal/placement/placer.go", kip + "internal/catalog", ""},
		"a file in a test of placement":              {"internal/placement/placer_test.go", "os", ""},
		"a command in a package":                     {"internal/adminapi/server.go", kip + "cmd/kip", "point one way"},
		"the development cluster in a package":       {"internal/store/open.go", kip + "dev/cluster", "point one way"},
		"the development cluster in kipctl":          {"cmd/kipctl/run.go", kip + "dev/cluster", "does not contain the development cluster"},
		"a part in the command":                      {"cmd/kip/main.go", kip + "internal/cells", "a command is its flags"},
		"the wiring in the command":                  {"cmd/kip/main.go", kip + "internal/kip", ""},
		"the wiring in a part":                       {"internal/node/node.go", kip + "internal/kip", "must not lean on them"},
		"the explainer in the wiring":                {"internal/kip/socket.go", kip + "internal/explain", ""},
		"the cleanup in another command":             {"cmd/kipctl/cleanup.go", kip + "internal/cleanup", "must not lean on them"},
		"provider.yaml in the cleanup":               {"internal/cleanup/cleanup.go", kip + "internal/config", "is handed to them"},
		"the cloud in the explainer":                 {"internal/explain/explain.go", kip + "internal/cloud", "asks nobody but the agent"},
		"anything in the reasons":                    {"internal/events/events.go", kip + "internal/cells", "reasons are words"},
		"the development cluster in kip-dev":         {"cmd/kip-dev/cluster.go", kip + "dev/cluster", ""},
		"cells in a cloud":                           {"internal/cloud/local/cloud.go", kip + "internal/cells", "a cloud only translates"},
		"the catalogue in a cloud":                   {"internal/cloud/local/cloud.go", kip + "internal/catalog", ""},
		"pods in cells":                              {"internal/cells/bind.go", kip + "internal/pods", "cells decides nothing about pods"},
		"cells in pods":                              {"internal/pods/controller.go", kip + "internal/cells", ""},
		"a cloud in pods":                            {"internal/pods/controller.go", kip + "internal/cloud", "only cells touches clouds"},
		"cells in the node":                          {"internal/node/port.go", kip + "internal/cells", "by its caller"},
		"the cell API in the watches":                {"internal/watches/follow.go", kip + "internal/cellapi", "who is shown it"},
		"the tunnel in the cell API":                 {"internal/cellapi/server.go", kip + "internal/tunnel", "how a request came"},
		"Kip's side in the agent":                    {"internal/agent/agent.go", kip + "internal/store", "another machine than Kip"},
		"the tunnel in the agent":                    {"internal/agent/agent.go", kip + "internal/tunnel", ""},
		"a test of the agent that launches machines": {"internal/agent/smoke_test.go", kip + "internal/cloud/local", ""},
		"cells in the configuration":                 {"internal/config/load.go", kip + "internal/cells", "provider.yaml is read by itself"},
		"cells in the choice of the leader":          {"internal/leader/leader.go", kip + "internal/cells", "by the store alone"},
		"pods in the metrics":                        {"internal/metrics/cells.go", kip + "internal/pods", "is handed to it"},
		"cells in the gate":                          {"internal/gate/gate.go", kip + "internal/cells", "only what it is told"},
		"cells in the provisioner":                   {"internal/provisioner/claims.go", kip + "internal/cells", "outlive cells"},
		"cells in the stats":                         {"internal/stats/stats.go", kip + "internal/cells", "the way to a cell is handed"},
		"anything in the spelling":                   {"internal/spelling/spelling.go", kip + "api/v1", "so they use nobody"},
		"anything in the contract":                   {"internal/agentapi/agentapi.go", kip + "internal/pki", "it imports neither"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := sources(fstest.MapFS{tc.file: {Data: fmt.Appendf(nil, "package x\n\nimport _ %q\n", tc.imports)}}, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			found := breaches(all)
			if tc.want == "" {
				expect(t, found)
				return
			}
			expect(t, found, tc.want)
			if !strings.HasPrefix(found[0], tc.file+":3 imports "+tc.imports) {
				t.Errorf("violation %q does not begin with the file, the line and the import", found[0])
			}
		})
	}
}

// linked is what a program must not contain, however indirectly.
type linked struct {
	of   []string // packages
	not  []string // import paths, with all below
	says string
}

var links = []linked{
	{
		of: []string{"cmd/kip", "cmd/kipctl", "cmd/itzo-lite"}, not: []string{"k8s.io/kubernetes", "k8s.io/kubectl", module + "/dev"},
		says: "what runs beside the cluster, and what a cell starts often, does not link Kubernetes' own code or the development cluster",
	},
	{
		of: []string{"cmd/itzo-containerd"}, not: []string{"k8s.io/kubernetes", "k8s.io/client-go/kubernetes", module + "/dev"},
		says: "a cell's containerd, and what asks it at each start, is without what Kubernetes' packages make before main",
	},
	{
		of: []string{"cmd/itzo-lite"}, not: []string{"k8s.io/client-go", "go.etcd.io"},
		says: "itzo-lite is started several times a pod and must start fast",
	},
	{
		of: pure, not: append([]string{"k8s.io/client-go", "go.etcd.io", "google.golang.org/grpc"}, keys(sdks)...),
		says: "placement, catalog and capacity import no client, also not by way of others",
	},
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// unwanted returns which of the dependencies are forbidden.
func unwanted(dependencies, forbidden []string) []string {
	var out []string
	for _, d := range dependencies {
		if withinAny(d, forbidden...) {
			out = append(out, d)
		}
	}
	return out
}

func TestProgramsDoNotLinkWhatTheyMustNot(t *testing.T) {
	for _, l := range links {
		for _, p := range l.of {
			cmd := exec.Command("go", "list", "-deps", "./"+p)
			cmd.Dir, cmd.Stderr = top(t), os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("list what %s links: %v", p, err)
			}
			dependencies := strings.Fields(string(out))
			if !slices.Contains(dependencies, module+"/"+p) {
				t.Fatalf("%s is not among what it links: %v", p, dependencies)
			}
			for _, d := range unwanted(dependencies, l.not) {
				t.Errorf("%s links %s: %s (go list -deps says through what)", p, d, l.says)
			}
		}
	}
}

func TestUnwantedDependenciesAreFound(t *testing.T) {
	dependencies := []string{"fmt", "k8s.io/kubernetes/pkg/kubelet", "k8s.io/kubernetes-csi", "k8s.io/client-go"}
	found := unwanted(dependencies, []string{"k8s.io/kubernetes", "k8s.io/client-go"})
	if want := []string{"k8s.io/kubernetes/pkg/kubelet", "k8s.io/client-go"}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}
