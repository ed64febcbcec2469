package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/quote"
)

// priceFlags are those of kipctl price.
type priceFlags struct {
	files, beside        []string
	cloud, region, arch  string
	disk, reservedMemory string
	instanceData         string
	privateIPOnly        bool
	runTime              time.Duration
	compare              bool
}

func priceOf(k *kipctl) *cobra.Command {
	f := &priceFlags{}
	cmd := &cobra.Command{
		Use:   "price -f FILE --cloud CLOUD --region REGION",
		Short: "Tell what the pods of manifests would cost on Kip, before they run",
		Long: "Tell what the pods of manifests would cost on Kip, before they run: the instance type of each, its price,\n" +
			"and the prices of spot and Fargate beside it. It asks no cluster and no cloud: the prices are those that\n" +
			"kipctl was built with, whose dates kipctl version shows.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("manifests are named with -f: -f %s", args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return k.price(f) },
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.files, "filename", "f", nil, "`file` or folder with manifests, - for standard input; may be given several times")
	flags.StringVar(&f.cloud, "cloud", "", "`name` of the cloud: "+strings.Join(pricelists.Clouds(), ", "))
	flags.StringVar(&f.region, "region", "", "`name` of the cloud's region")
	flags.BoolVar(&f.compare, "compare", false, "compare all regions of all clouds, or of the one that --cloud names")
	flags.StringVar(&f.arch, "arch", "amd64", "`architecture` of pods that name none: amd64 or arm64")
	flags.StringVar(&f.disk, "disk", "5Gi", "`size` of the root disk, as cells.defaultVolumeSize")
	flags.StringVar(&f.reservedMemory, "reserved-memory", "128Mi", "`memory` that a cell needs beside its pod, as cells.reservedMemory")
	flags.BoolVar(&f.privateIPOnly, "private-ip-only", false, "cells have no public address, as cells.privateIPOnly")
	flags.StringSliceVar(&f.beside, "beside", nil, "`file` or folder with the DaemonSets that run beside each pod, as cells.daemonSets; may be given "+
		"several times")
	flags.StringVar(&f.instanceData, "instance-data-path", "", "`file` with types and prices of your own, as kip --instance-data-path")
	flags.DurationVar(&f.runTime, "run-time", 0, "how `long` a run of a Job or CronJob takes, for the price of a month")
	return cmd
}

func (f *priceFlags) options() (quote.Options, error) {
	o := quote.Options{Arch: f.arch, PrivateIPOnly: f.privateIPOnly, RunHours: f.runTime.Hours()}
	if f.arch != "amd64" && f.arch != "arm64" {
		return o, fmt.Errorf("--arch: %q is no architecture of cells: it must be amd64 or arm64", f.arch)
	}
	if f.runTime < 0 {
		return o, fmt.Errorf("--run-time: %s is no time that a run can take", f.runTime)
	}
	const most = 1 << 50
	for _, q := range []struct {
		flag, text string
		least      int64
		to         *int64
	}{{"disk", f.disk, 1 << 30, &o.DiskBytes}, {"reserved-memory", f.reservedMemory, 0, &o.ReservedMemoryBytes}} {
		if len(q.text) > 20 || strings.ContainsAny(q.text, "-+") {
			return o, fmt.Errorf("--%s: %q is no size", q.flag, q.text)
		}
		parsed, err := resource.ParseQuantity(q.text)
		if err != nil || parsed.Value() < q.least || parsed.Value() > most {
			return o, fmt.Errorf("--%s: %q is no size: it must be a quantity such as 5Gi, at least %d bytes", q.flag, q.text, q.least)
		}
		*q.to = parsed.Value()
	}
	if f.instanceData == "" {
		return o, nil
	}
	file, err := os.Open(f.instanceData)
	if err != nil {
		return o, err
	}
	defer file.Close()
	o.InstanceData, err = catalog.ReadInstanceData(f.instanceData, file)
	return o, err
}

func (k *kipctl) price(f *priceFlags) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	switch {
	case len(f.files) == 0:
		return errors.New("say which manifests: -f FILE, or -f - for standard input")
	case !f.compare && (f.cloud == "" || f.region == ""):
		return errors.New("say where: --cloud and --region, or --compare")
	case f.compare && f.instanceData != "":
		return errors.New("--instance-data-path and --compare: want only one of them")
	case f.compare && f.region != "":
		return errors.New("--region and --compare: want only one of them")
	}
	workloads, err := k.workloads(f.files)
	if err != nil {
		return err
	}
	if len(f.beside) > 0 {
		sets, err := k.workloads(f.beside)
		if err != nil {
			return err
		}
		if o.Beside, err = quote.BesideEach(sets); err != nil {
			return fmt.Errorf("--beside: %w", err)
		}
	}
	if f.compare {
		clouds := pricelists.Clouds()
		if f.cloud != "" {
			clouds = []string{f.cloud}
		}
		all, err := quote.Compare(clouds, workloads, o)
		if err != nil {
			return err
		}
		return k.print(comparison{all}, comparison{all}.table)
	}
	list, err := pricelists.Open(f.cloud)
	if err != nil {
		return err
	}
	prices, err := quote.In(list, f.region, o)
	if err != nil {
		return err
	}
	q := prices.Of(workloads)
	title := fmt.Sprintf("%s in %s, prices of %s, in US dollars", f.cloud, f.region, list.AsOf)
	if err := k.print(q, func(w io.Writer) error { return quoteTable(w, title, q) }); err != nil {
		return err
	}
	var without []string
	for _, p := range q.Pods {
		if p.Failed {
			without = append(without, cmp.Or(p.Owner, "Pod/"+p.Name))
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("no instance type for %s", strings.Join(without, ", "))
	}
	return nil
}

// workloads reads manifests.
func (k *kipctl) workloads(names []string) (all []quote.Workload, err error) {
	var errs []error
	read := func(name string, from io.Reader) {
		data, err := io.ReadAll(io.LimitReader(from, quote.MostBytes+1))
		if err != nil {
			errs = append(errs, err)
			return
		}
		some, err := quote.Read(name, cmp.Or(k.namespace, metav1.NamespaceDefault), data)
		all, errs = append(all, some...), append(errs, err)
	}
	for _, name := range names {
		if name == "-" {
			read("STDIN", k.in)
			continue
		}
		files := []string{name}
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			entries, err := os.ReadDir(name)
			files, errs = nil, append(errs, err)
			for _, e := range entries {
				if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
					files = append(files, filepath.Join(name, e.Name()))
				}
			}
		}
		for _, file := range files {
			f, err := os.Open(file)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			read(file, f)
			f.Close()
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there are no pods in %s", strings.Join(names, ", "))
	}
	return all, nil
}

// dollars writes a price, times some pods; "unknown" where it is not known.
func dollars(price *float64, times float64) string {
	if price == nil {
		return "unknown"
	}
	return quote.Amount(*price * times)
}

func quoteTable(w io.Writer, title string, q quote.Quote) error {
	fmt.Fprintf(w, "%s\n\n", title)
	t := table(w, "NAMESPACE", "OWNER", "PODS", "TYPE", "ZONE", "LAUNCH", "POD/HOUR", "ALL/HOUR", "ALL/MONTH", "SPOT/HOUR", "FARGATE/HOUR")
	for _, p := range q.Pods {
		if p.Failed {
			p.Zone = "-"
		}
		owner, n := cmp.Or(p.Owner, "Pod/"+p.Name), float64(p.Replicas)
		if p.NotOnKip {
			t.row(p.Namespace, owner, "", "", "", "", "", "", "", "", "")
			continue
		}
		t.row(p.Namespace, owner, strconv.FormatInt(p.Replicas, 10), p.InstanceType, cmp.Or(p.Zone, "any"), p.LaunchType,
			dollars(p.PricePerHour, 1), dollars(p.PricePerHour, n), dollars(p.PricePerMonth, 1),
			dollars(p.SpotPricePerHour, n), dollars(p.FargatePricePerHour, n))
	}
	total := q.Total()
	t.row("", "all", "", "", "", "", "", dollars(total.PricePerHour, 1), dollars(total.PricePerMonth, 1),
		dollars(total.SpotPricePerHour, 1), dollars(total.FargatePricePerHour, 1))
	if err := t.w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, p := range q.Pods {
		if _, err := fmt.Fprintf(w, "%s: %s\n", cmp.Or(p.Owner, "Pod/"+p.Name), p.Reason); err != nil {
			return err
		}
	}
	return nil
}

// comparison is what kipctl price --compare prints.
type comparison struct {
	Regions []quote.RegionTotal `json:"regions"`
}

func (c comparison) table(w io.Writer) error {
	fmt.Fprint(w, "Machines in US dollars, without disks and public addresses, whose prices are not known everywhere\n\n")
	t := table(w, "CLOUD", "REGION", "PRICES OF", "ALL/HOUR", "ALL/MONTH", "SPOT/HOUR", "FARGATE/HOUR", "UNKNOWN")
	for _, r := range c.Regions {
		t.row(r.Cloud, r.Region, r.AsOf, dollars(r.PricePerHour, 1), dollars(r.PricePerMonth, 1), dollars(r.SpotPricePerHour, 1),
			dollars(r.FargatePricePerHour, 1), strconv.Itoa(r.Unknown))
	}
	return t.w.Flush()
}
