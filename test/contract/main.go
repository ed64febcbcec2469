// Command contract runs the contract of clouds against any endpoint that speaks a cloud's
// API, and prints a line a check. It touches nothing that is not its own, and leaves nothing there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/elotl/kip/internal/cloud/cloudtest"
)

// options say what is checked, and where.
type options struct {
	cloud, endpoint, vpc string
	subnets              []string
	instanceType         string
	imageID, profile     string
	only                 string
	patience             time.Duration // how long the endpoint may take to show what was done
	pause                time.Duration // before what it throttled is sent again
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second one ends it at once
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "contract:", err)
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (o options, err error) {
	o.pause = time.Second // EC2 refills its buckets once a second
	fs := flag.NewFlagSet("contract", flag.ContinueOnError)
	fs.SetOutput(out)
	var subnets string
	fs.StringVar(&o.cloud, "cloud", "", "`name` of the cloud whose API the endpoint speaks: aws")
	fs.StringVar(&o.endpoint, "endpoint", "", "`URL` of the endpoint; keys and region are those of the environment")
	fs.StringVar(&o.vpc, "vpc", "", "`ID` of the VPC; default: that of the subnets, or the account's default VPC")
	fs.StringVar(&subnets, "subnets", "", "`IDs` of the subnets, separated by commas; default: all of the VPC")
	fs.StringVar(&o.instanceType, "type", "", "instance `type`; default: the cheapest of amd64")
	fs.StringVar(&o.imageID, "image", "", "`ID` of the image; default: the newest of Kip's, of Amazon's, or of the account")
	fs.StringVar(&o.profile, "instance-profile", "", "`name` of an instance profile: a launch with another one is another launch")
	fs.StringVar(&o.only, "only", "", "run only the checks that have this `text` in their names")
	fs.DurationVar(&o.patience, "patience", time.Minute, "how `long` the endpoint may take to show what was done; for EC2 itself 5m")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("there is the argument %q: want flags only", fs.Arg(0))
	case o.cloud != "aws":
		return o, fmt.Errorf("-cloud is %q: want aws", o.cloud)
	case o.endpoint == "":
		return o, errors.New("-endpoint is empty: want a URL such as http://127.0.0.1:5000")
	case o.patience <= 0:
		return o, fmt.Errorf("-patience is %v: want more than 0", o.patience)
	}
	if subnets != "" {
		o.subnets = strings.Split(subnets, ",")
	}
	return o, nil
}

// The three ends of a check.
const (
	passed = "passed"
	failed = "failed"
	cannot = "cannot"
)

// run runs all checks. Its error says that something failed, or is left.
func run(ctx context.Context, o options, out io.Writer) error {
	e, err := open(ctx, o)
	if err != nil {
		return err
	}
	removed, left := e.sweep(ctx)
	for _, what := range removed {
		fmt.Fprintln(out, "removed what an earlier run has left:", what)
	}
	if len(left) > 0 {
		return leftAt(o.endpoint, left)
	}
	err = e.find(ctx)
	if _, left = e.sweep(context.WithoutCancel(ctx)); len(left) > 0 { // of what was made to find all this
		err = errors.Join(err, leftAt(o.endpoint, left))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s at %s: %s in %s, subnet %s, image %v\n",
		o.cloud, o.endpoint, e.kind.Name, e.offering.Zone, e.offering.Subnet, e.image)
	count, err := e.all(ctx, out)
	_, left = e.sweep(context.WithoutCancel(ctx))
	fmt.Fprintf(out, "%d passed, %d failed, %d cannot be answered by this endpoint\n", count[passed], count[failed], count[cannot])
	fmt.Fprintln(out, "not asked for parameters of a store: Kip makes none, since user data holds no secret but one that joins once")
	for _, what := range slices.Sorted(maps.Keys(e.unseen)) {
		fmt.Fprintf(out, "could not look whether %s are left: this endpoint cannot answer %s\n", what, e.unseen[what])
	}
	if len(left) > 0 {
		return errors.Join(err, leftAt(o.endpoint, left))
	}
	if len(e.unseen) == 0 {
		fmt.Fprintln(out, "no instance, disk, interface or group is left there")
	}
	return err
}

// all runs the checks, and counts how they end.
func (e *endpoint) all(ctx context.Context, out io.Writer) (count map[string]int, err error) {
	count = map[string]int{}
	for _, check := range e.checks() {
		if ctx.Err() != nil {
			return count, fmt.Errorf("interrupted, so that not all was checked: %w", ctx.Err())
		}
		if !strings.Contains(check.name, e.only) {
			continue
		}
		outcome := e.check(ctx, check, out)
		count[outcome]++
		e.unable[check.name] = outcome != passed
	}
	switch {
	case count[failed] > 0:
		return count, fmt.Errorf("%d checks failed at %s", count[failed], e.endpoint)
	case count[passed] == 0:
		return count, errors.New("no check passed")
	}
	return count, nil
}

func leftAt(endpoint string, left []string) error {
	return fmt.Errorf("could not remove from %s:\n  %s", endpoint, strings.Join(left, "\n  "))
}

// named is a check of any kind.
type named struct {
	name string
	run  func(cloudtest.T)
}

// checks begin with those that say what the others can ask for.
func (e *endpoint) checks() (all []named) {
	checked := &asked{Cloud: e.cloud, endpoint: e}
	for _, c := range cloudtest.Checks() {
		all = append(all, named{c.Name, func(t cloudtest.T) { c.Of(t, e.subject(), checked) }})
	}
	all = append(all, named{"keeps the rules of the cells' group, and shows them as they were made", e.keepsRules})
	first := []string{cloudtest.PodAddresses, cloudtest.Batches}
	slices.SortStableFunc(all, func(a, b named) int { return slices.Index(first, b.name) - slices.Index(first, a.name) })
	return all
}

// maxWhy bounds what a line tells of a failure, in bytes.
const maxWhy = 600

// check runs one and prints its line. One in which the endpoint said that it does not have what
// was asked has not passed, whatever came of it.
func (e *endpoint) check(ctx context.Context, one named, out io.Writer) string {
	e.forget()
	a := try(ctx, one.run)
	no, why := e.cannot(), strings.ReplaceAll(a.failure(), "\n", "; ")
	if len(why) > maxWhy {
		why = why[:maxWhy] + "…"
	}
	if no == "" {
		no = a.skipped
	}
	outcome, text := passed, ""
	switch {
	case no != "":
		outcome, text = cannot, ": cannot be answered by this endpoint: "+no
		if why != "" {
			text += "; and so " + why
		}
	case why != "":
		outcome, text = failed, ": "+why
	}
	fmt.Fprintf(out, "%s  %s%s\n", outcome, one.name, text)
	if _, left := e.sweep(context.WithoutCancel(ctx)); len(left) > 0 {
		fmt.Fprintf(out, "        not removed yet: %s\n", strings.Join(left, "; "))
	}
	return outcome
}
