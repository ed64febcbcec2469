package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/sanitize"
)

const (
	// socketEnv names the socket where --socket does not.
	socketEnv = "KIP_SOCKET"
	// defaultSocket is in the data folder that Kip's manifests use.
	defaultSocket = "/opt/kip/data/" + adminapi.SocketName
)

// kipctl is what all commands share.
type kipctl struct {
	in       io.Reader
	out, err io.Writer
	clock    clock.PassiveClock
	// waits is the clock by which cleanup waits between two looks at a cloud.
	waits clock.Clock
	// connect makes the clients of the Kubernetes API.
	connect func(clientcmd.ClientConfig) (*cluster, error)
	// fallbackSocket is the socket to ask where nobody names one.
	fallbackSocket string
	// leaderWait is how long restore waits for its turn on an external etcd.
	leaderWait time.Duration
	// consolePause is between two looks at a console that is followed.
	consolePause time.Duration
	// releases is the registry of Kip's own releases.
	releases string

	kubeconfig, context, namespace string
	socket, output                 string
}

func newRoot(k *kipctl, name string) *cobra.Command {
	root := &cobra.Command{
		Use:           "kipctl",
		Short:         "Show what Kip does: cells, their pods, and why; back it up, and clean up after it",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		SilenceUsage:  true,
		SilenceErrors: false,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			switch k.output {
			case "table", "json", "yaml":
				return nil
			}
			return fmt.Errorf("--output: %q is not a format: it must be table, json or yaml", k.output)
		},
	}
	k.err = plain{k.err}
	root.SetOut(k.out)
	root.SetErr(k.err)
	flags := root.PersistentFlags()
	flags.StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: $KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&k.context, "context", "", "`name` of the kubeconfig's context to use")
	flags.StringVarP(&k.namespace, "namespace", "n", "", "`namespace` of the pods (default: the context's)")
	flags.StringVar(&k.socket, "socket", "", "Kip's local socket, a `file` (default: $"+socketEnv+", else "+k.fallbackSocket+")")
	flags.StringVarP(&k.output, "output", "o", "table", "`format` of the output: table, json or yaml")

	get := &cobra.Command{
		Use:   "get",
		Short: "List cells, the pods on virtual nodes, standby pools, or what is out of capacity",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []string
			for _, what := range cmd.Commands() {
				all = append(all, fmt.Sprintf("%q", what.CommandPath()))
			}
			return fmt.Errorf("say what to get: %s", strings.Join(all, ", "))
		},
	}
	get.AddCommand(getCells(k), getPods(k), getStandby(k), getCapacity(k))
	root.AddCommand(get, why(k), describe(k), consoleOf(k), logsOf(k), execOn(k))
	root.AddCommand(priceOf(k), costOf(k), showVersion(k), backup(k), restore(k), cleanupOf(k), allow(k), generation(k), ca(k))
	root.AddCommand(crds(k), uninstall(k), migrate(k), try(k), doctorOf(k), onEKS(k), imageOf(k))
	return root
}

// noArgs refuses arguments. cobra.NoArgs would take one for an unknown command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments: got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// config is the kubeconfig as the flags and the environment say.
func (k *kipctl) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: k.context}
	overrides.Context.Namespace = k.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// podNamespace is where to look for pods: what --namespace says, else the
// kubeconfig's context, else "default".
func (k *kipctl) podNamespace() (string, error) {
	namespace, _, err := k.config().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return cmp.Or(k.namespace, metav1.NamespaceDefault), nil
	}
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return namespace, nil
}

// socketPath is the socket to ask, and whether the user named it.
func (k *kipctl) socketPath() (path string, named bool) {
	path = cmp.Or(k.socket, os.Getenv(socketEnv))
	return cmp.Or(path, k.fallbackSocket), path != ""
}

// print writes v as --output says; table writes the table.
func (k *kipctl) print(v any, table func(io.Writer) error) error {
	switch k.output {
	case "json":
		b, err := json.MarshalIndent(v, "", "    ")
		if err != nil {
			return err
		}
		_, err = k.out.Write(append(escaped(b), '\n'))
		return err
	case "yaml":
		b, err := json.Marshal(v)
		if err == nil {
			b, err = yaml.JSONToYAML(escaped(b)) // which refuses control characters
		}
		if err != nil {
			return err
		}
		_, err = plain{k.out}.Write(b)
		return err
	}
	return table(plain{k.out})
}

// plain writes for a terminal: of what others said, only what can be printed.
type plain struct{ io.Writer }

func (p plain) Write(b []byte) (int, error) {
	shown := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || sanitize.Printable(string(r)) == string(r) {
			return r
		}
		return '?'
	}, string(b))
	if _, err := io.WriteString(p.Writer, shown); err != nil {
		return 0, err
	}
	return len(b), nil
}

// escaped is the same JSON, in which what a terminal would obey is escaped.
func escaped(b []byte) []byte {
	var out []byte
	for _, r := range string(b) {
		if r > unicode.MaxASCII && r <= math.MaxUint16 && !unicode.IsPrint(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// list is a List of the Kubernetes API, as kubectl prints several objects.
type list[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

func listOf[T any](items []T) list[T] {
	if items == nil {
		items = []T{}
	}
	return list[T]{APIVersion: "v1", Kind: "List", Items: items}
}

// orNone is s, or what kubectl shows for nothing.
func orNone(s string) string { return cmp.Or(strings.TrimSpace(s), "<none>") }
