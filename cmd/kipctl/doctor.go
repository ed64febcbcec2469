package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/doctor"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/version"
)

// examination is what "kipctl doctor" is asked for.
type examination struct {
	file, bundle string
	limit        time.Duration
	// account has only the account checked. controller is the controller ID of its Kip, and role the ARN of its role; "" for what the
	// cluster says. Of instanceTypes launches are tried until the cloud takes one.
	account          bool
	controller, role string
	instanceTypes    []string
}

func doctorOf(k *kipctl) *cobra.Command {
	var e examination
	cmd := &cobra.Command{
		Use:   "doctor [-f provider.yaml]",
		Short: "Check a cluster and a cloud account, before and after Kip is installed, and print what fixes what is wrong",
		Long: "Check the cluster of your kubeconfig and the account of a provider.yaml, and print for each failure the command\n" +
			"that fixes it. It changes nothing: it reads, asks what you may, and makes dry runs.\n\n" +
			"Before Kip is installed it checks what Kip needs. If Kip is there it also checks its pods, nodes, webhook and\n" +
			"kubelet port, and reads its provider.yaml from the cluster, unless -f names another. It asks as you: what Kip\n" +
			"itself may do in the account is checked only with Kip's own credentials. What it could not ask is \"not\n" +
			"checked\". The exit status is 0 if nothing failed.\n\n" +
			"--bundle writes what was found, Kip's nodes, pods, cells, Events and log, and its provider.yaml into one file,\n" +
			"without Secrets, without values of variables, and without what looks like a secret. Read it before you share it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.limit <= 0 {
				return fmt.Errorf("--timeout is %s: it must be above 0", e.limit)
			}
			if e.account && e.file == "" {
				return errors.New("--account needs a provider.yaml: name it with -f")
			}
			if e.role != "" && strings.Count(e.role, ":") != 5 {
				return fmt.Errorf("--role is %q: it must be an ARN such as arn:aws:iam::123456789012:role/kip", e.role)
			}
			return k.doctor(cmd.Context(), e)
		},
	}
	cmd.Flags().StringVarP(&e.file, "provider-config", "f", "", "Kip's provider.yaml, a `file`, - for standard input: check its account")
	cmd.Flags().StringVar(&e.bundle, "bundle", "", "`file` to write with what a bug report needs, .tar.gz, without secrets")
	cmd.Flags().BoolVar(&e.account, "account", false, "check only the account of -f, and ask no cluster")
	cmd.Flags().StringVar(&e.controller, "controller", "", "`ID` that dry runs have as Kip's controller ID (default: that of the Kip in the cluster)")
	cmd.Flags().StringVar(&e.role, "role", "", "`ARN` of Kip's role, or of its user: what it may not do, Kip may not (default: the role of Kip's service account)")
	cmd.Flags().StringSliceVar(&e.instanceTypes, "instance-type", nil,
		"also ask the cloud, by dry runs, whether it would launch one of these `types`, the first that it offers before others")
	cmd.Flags().DurationVar(&e.limit, "timeout", 20*time.Second, "how `long` one check may take")
	return cmd
}

// examined is a Kip, or one that is to be, whose account is checked.
type examined struct {
	name     string         // of one of several Kips; else ""
	cfg      *config.Config // nil if none is known
	provider []byte         // the text of cfg
	kip      finding.Kip
}

// doctor checks the cluster, then the account of each Kip.
func (k *kipctl) doctor(ctx context.Context, e examination) error {
	var cfg *config.Config
	var data []byte
	if e.file != "" {
		var err error
		if data, err = k.readFile(e.file); err != nil {
			return fmt.Errorf("read the configuration: %w", err)
		}
		if cfg, _, err = config.Parse(e.file, data); err != nil { // the files that it names are on Kip's machine
			return err
		}
	}
	runner := &doctor.Runner{Limit: e.limit, Say: k.sayNow}
	var c *cluster
	var err error
	if !e.account {
		c, err = k.connect(k.config())
	}
	var d *doctor.Doctor
	kips := []examined{{}}
	switch {
	case e.account:
	case err != nil && k.kubeconfig != "":
		return err
	case err != nil:
		runner.Run(ctx, found("cluster", "API server", finding.Unchecked("%v", err)))
	default:
		d = k.doctorFor(c, cfg)
		kips = k.examineCluster(ctx, d, cfg, runner)
	}
	switch {
	case cfg != nil && len(kips) > 1:
		kips = []examined{{cfg: cfg, provider: data}} // whose it is nobody knows
	case cfg != nil:
		kips[0].cfg, kips[0].provider = cfg, data
	}
	for _, one := range kips {
		one.kip.Inside, one.kip.Owner = os.Getenv(envOfKip) != "", cmp.Or(e.controller, one.kip.Owner)
		one.kip.Role = cmp.Or(e.role, one.kip.Role)
		if err := k.examineAccount(ctx, e, one, runner); err != nil {
			return err
		}
	}
	report := doctor.NewReport(version.String(), k.clock.Now(), runner.Results)
	if e.bundle != "" && ctx.Err() == nil {
		if err := k.bundle(ctx, e.bundle, d, report, kips); err != nil {
			return fmt.Errorf("%s is not written: %w", e.bundle, err)
		}
	}
	if err := k.print(report, func(w io.Writer) error { return showReport(w, report) }); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
	if report.Failed > 0 {
		return fmt.Errorf("checks failed: %d; warnings: %d; not checked: %d", report.Failed, report.Warnings, report.NotChecked)
	}
	fmt.Fprintf(k.err, "No check failed; warnings: %d; not checked: %d.\n", report.Warnings, report.NotChecked)
	return nil
}

// sayNow writes a line about what goes on.
func (k *kipctl) sayNow(line string) {
	fmt.Fprintf(k.err, "%s %s\n", k.clock.Now().Local().Format(time.TimeOnly), line)
}

// found is a check that has found something already.
func found(area, name string, f finding.Finding) finding.Check {
	return finding.Check{Area: area, Name: name, Run: func(context.Context) []finding.Finding { return []finding.Finding{f} }}
}

// examineCluster runs the checks of a cluster, by a configuration that is given, or else by that of each Kip there. It returns
// what it knows of each Kip, or of none.
func (k *kipctl) examineCluster(ctx context.Context, d *doctor.Doctor, given *config.Config, runner *doctor.Runner) (kips []examined) {
	runner.Run(ctx, d.First()...)
	for _, one := range d.Each() {
		kip := examined{name: one.Area(""), kip: one.Kip(ctx)}
		if given == nil && one.Installed() {
			kip.cfg, kip.provider = k.installedConfig(ctx, one, runner)
			one.Use(kip.cfg)
		}
		runner.Run(ctx, one.Rest()...)
		kips = append(kips, kip)
	}
	return kips
}

// installedConfig is the configuration of a Kip in the cluster, with its text; nil if it cannot be read.
func (k *kipctl) installedConfig(ctx context.Context, d *doctor.Doctor, runner *doctor.Runner) (cfg *config.Config, data []byte) {
	name, data, err := d.ProviderYAML(ctx)
	if err == nil {
		cfg, _, err = config.Parse(name, data)
	}
	if err != nil {
		runner.Run(ctx, found(d.Area("kip"), "provider.yaml", finding.Unchecked("%v", err)))
		return nil, data
	}
	runner.Run(ctx, found(d.Area("kip"), "provider.yaml", finding.Fine("it is that of the %s", name)))
	return cfg, data
}

// doctorFor is a Doctor of a cluster.
func (k *kipctl) doctorFor(c *cluster, cfg *config.Config) *doctor.Doctor {
	return doctor.New(doctor.Config{
		Cluster: doctor.Cluster{
			Kube: c.kube,
			CRDs: c.crds,
			Host: c.host,
			Raw:  c.raw,
			Cells: func(ctx context.Context) (all []apiv1.Cell, err error) {
				cells, err := c.cells(ctx)
				for _, one := range cells {
					all = append(all, one.Cell)
				}
				return all, err
			},
		},
		Namespace:    k.namespace,
		PodNamespace: "default",
		Provider:     cfg,
		Version:      version.String(),
		Clock:        k.clock,
	})
}

// envOfKip is in the environment of Kip's container: deploy/helm/kip/templates/_pod.tpl.
const envOfKip = "VKUBELET_POD_IP"

// examineAccount runs the checks of the account of a Kip.
func (k *kipctl) examineAccount(ctx context.Context, e examination, one examined, runner *doctor.Runner) error {
	area := strings.TrimSpace("account " + one.name)
	if one.cfg == nil {
		runner.Run(ctx, found(area, "credentials", finding.Unchecked("there is no provider.yaml: name one with -f")))
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opening, cancelOpening := context.WithTimeout(ctx, e.limit)
	defer cancelOpening()
	k.sayNow("looking for the credentials of the " + area)
	checks, err := clouds.AccountChecks(opening, one.cfg, one.kip, e.instanceTypes, slog.New(slog.DiscardHandler))
	if err != nil && e.file != "" {
		return err // of a key that is wrong
	}
	if err != nil {
		const cure = "kubectl edit configmap -n NAMESPACE NAME # that of provider.yaml"
		runner.Run(ctx, found(area, "provider.yaml", finding.Fail(cure, "%v", err)))
		return nil
	}
	if len(checks) == 0 {
		runner.Run(ctx, found(area, "credentials", finding.Fine("the cloud %s has no account", one.cfg.Cloud.Name())))
		if len(e.instanceTypes) > 0 {
			runner.Run(ctx, found(area, finding.DryRun, finding.Unchecked("a launch of %s: the cloud %s knows no dry runs",
				strings.Join(e.instanceTypes, ", "), one.cfg.Cloud.Name())))
		}
		return nil
	}
	for n := range checks {
		checks[n].Area = area
	}
	runner.Run(ctx, checks...)
	return nil
}

// showReport writes a line a finding, and below it the command that fixes it, or several in their order.
func showReport(w io.Writer, r doctor.Report) error {
	var errs []error
	for _, one := range r.Results {
		_, err := fmt.Fprintf(w, "%-12s %-28s %s\n", one.Outcome, one.Area+": "+one.Check, one.Message)
		errs = append(errs, err)
		for command := range strings.Lines(one.Cure) {
			_, err := fmt.Fprintf(w, "%-12s %-28s $ %s\n", "", "", strings.TrimSuffix(command, "\n"))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
