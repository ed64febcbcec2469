// Command networkpolicies enforces NetworkPolicies on one ordinary node of the end-to-end tests, in whose network namespace it runs. The
// verdicts are those of kube-network-policies of Kubernetes' SIG Network.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

const (
	// queue is the number of the queue of packets that wait for a verdict.
	queue = 100
	// cleanupTimeout is what the controller has to remove its own rules.
	cleanupTimeout = 5 * time.Second
)

func main() {
	klog.InitFlags(nil)
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of a user that may read pods, namespaces and NetworkPolicies")
	server := flag.String("server", "", "URL of the API server, as the node reaches it")
	node := flag.String("node", "", "name of the node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *kubeconfig, *node); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, server, kubeconfig, node string) error {
	config, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(client, factory.Networking().V1().NetworkPolicies(), factory.Core().V1().Namespaces(),
		factory.Core().V1().Pods(), nil, nil, nil, nil, networkpolicy.Config{QueueID: queue, NodeName: node})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if err := replaceRules(true); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(cleanupTimeout):
			err = errors.New("kube-network-policies did not stop")
		}
	}
	return errors.Join(err, replaceRules(false))
}

// replaceRules removes the rules by which new connections wait for a verdict, or makes them anew. Those of kube-network-policies need
// CONFIG_NFT_QUEUE, which some kernels lack. These use the target NFQUEUE of xtables, as iptables does.
func replaceRules(wanted bool) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Name: "networkpolicies", Family: nftables.TableFamilyIPv4}
	conn.AddTable(table)
	conn.DelTable(table)
	if wanted {
		conn.AddTable(table)
		// Before source addresses are translated, and where kube-network-policies has its own.
		chain := conn.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 6)})
		for _, rule := range [][]expr.Any{fromRoot(), established(), {&expr.Target{Name: "NFQUEUE", Rev: 3, Info: toQueue()}}} {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("change the rules that queue packets: %w", err)
	}
	return nil
}

// fromRoot accepts what the node's root sends, such as the kubelet's probes.
func fromRoot() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

func established() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: binaryutil.NativeEndian.PutUint32(0),
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// toQueue is the kernel's struct xt_NFQ_info_v3: the queue, how many there are, and that packets pass while nobody reads the queue.
func toQueue() *xt.Unknown {
	const bypass = 1
	info := xt.Unknown(nil)
	for _, v := range []uint16{queue, 1, bypass} {
		info = append(info, binaryutil.NativeEndian.PutUint16(v)...)
	}
	return &info
}
