package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud/aws"
	awseks "github.com/elotl/kip/internal/cloud/aws/eks"
	"github.com/elotl/kip/internal/eks"
)

func onEKS(k *kipctl) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "eks",
		Short: "Install Kip into a cluster of Amazon EKS, or print the IAM policy that it needs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("say what to do: %q or %q", cmd.CommandPath()+" deploy", cmd.CommandPath()+" policy")
		},
	}
	cmd.AddCommand(eksDeploy(k), eksPolicy(k))
	return cmd
}

func eksDeploy(k *kipctl) *cobra.Command {
	var r eks.Request
	checkOnly := false
	cmd := &cobra.Command{
		Use:   "deploy",
		Short: "Check an account and a cluster of EKS, then install Kip there",
		Long: "Check an account and a cluster of EKS, then install Kip there. ./kustomize/deploy.sh runs this command.\n\n" +
			"It checks everything before it changes anything, and names what is in the way with its cure. It publishes Kip's boot image\n" +
			"if the account has none. It may run again: then it changes what differs. It uses the kubeconfig's cluster, and AWS\n" +
			"credentials as AWS's own tools find them. --namespace is Kip's (default: $" +
			eks.NamespaceVariable + ", else " + eks.DefaultNamespace + ").",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, v := range eks.Variables {
				if at := v.Value(&r); *at == "" {
					*at = os.Getenv(v.Name)
				}
			}
			if r.Namespace = k.namespace; r.Namespace == "" {
				r.Namespace = os.Getenv(eks.NamespaceVariable)
			}
			d := eks.Deployment{
				Request: r,
				Connect: k.kubernetesOfEKS,
				Say:     func(format string, args ...any) { fmt.Fprintf(k.err, format+"\n", args...) },
				Clock:   clock.RealClock{},
			}
			return d.Run(cmd.Context(), checkOnly)
		},
	}
	flags := cmd.Flags()
	for _, v := range eks.Variables {
		flags.StringVar(v.Value(&r), v.Flag, "", v.Usage())
	}
	flags.BoolVar(&checkOnly, "check", false, "check everything, and change nothing")
	flags.StringSliceVar(&r.Subnets, "subnets", nil, "`IDs` of the cells' subnets (default: the cluster's private ones)")
	flags.StringVar(&r.BootImage, "boot-image", eks.DefaultBootImage,
		"`name` of the cells' boot images, of which * may be a part, or the ID of one")
	flags.StringVar(&r.Folder, "image-folder", "bin/image", "`folder` of the boot image that is published if the account has none")
	flags.StringVar(&r.Type, "instance-type", "", "`type` of the cells of pods that name no resources (default: t3.micro, or t4g.micro)")
	flags.BoolVar(&r.SkipRights, "skip-rights", false, "leave out what the role may do, if its policy is narrower on purpose, and whether you may publish the boot image")
	return cmd
}

// kubernetesOfEKS is the API of the kubeconfig's cluster, with what tells that cluster from others.
func (k *kipctl) kubernetesOfEKS() (*eks.Kubernetes, error) {
	c, err := k.connect(k.config())
	if err != nil {
		return nil, err
	}
	config, err := k.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &eks.Kubernetes{Client: c.kube, Dynamic: c.dynamic, CRDs: c.crds, Host: config.Host, CA: config.CAData}, nil
}

// maxPolicy is far above what IAM takes of a policy.
const maxPolicy = 1 << 20

func eksPolicy(k *kipctl) *cobra.Command {
	file, all := "", false
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Print the IAM policy of Kip's role, or say what a policy lacks",
		Long: "Print the IAM policy of Kip's role. With -f, say which of its rights the policy in a file lacks, and fail if it lacks one " +
			"that Kip\n" +
			"needs. It asks nobody.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case file != "" && all:
				return errors.New("--features and -f exclude each other")
			case file != "":
				return k.lacks(file)
			case all:
				_, err := k.out.Write(aws.Policy())
				return err
			}
			_, err := k.out.Write(aws.CorePolicy())
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "`file` with a policy to compare, or - for standard input")
	cmd.Flags().BoolVar(&all, "features", false, "with all that only some configurations and pods need (docs/aws-permissions.md)")
	return cmd
}

// lacks says which rights the policy in a file lacks.
func (k *kipctl) lacks(file string) error {
	in := k.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPolicy))
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	needed, optional, err := awseks.Lacks(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(optional) > 0 {
		fmt.Fprintf(k.err, "It lacks rights that Kip can do without (docs/aws-permissions.md says what then happens):\n%s\n",
			awseks.Listed(optional))
	}
	if len(needed) > 0 {
		return fmt.Errorf("%s lacks rights that Kip needs:\n%s", file, awseks.Listed(needed))
	}
	return nil
}
