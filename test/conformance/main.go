package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elotl/kip/test/harness"
)

// modes, by what they are for the harness.
var modes = map[string]harness.Options{
	// Most pods of the specs ask for nothing. A small cell gives them less of this
	// machine than an ordinary node does, and enough to start in seconds.
	// A spec fills the nodes with one pod each, which then must fit a cell: a
	// virtual node says that it has the CPUs that an ordinary one has here.
	// Specs of DaemonSets need containers of their pods that run.
	"kip": {DevArgs: []string{"--virtual-nodes=2", "--service-proxy", "--daemonset-machines", "--default-type=small",
		fmt.Sprintf("--cpus=%d", runtime.NumCPU())}},
	"nodes": {DevArgs: []string{"--nodes=2"}, ClusterOnly: true},
}

// kipsOf says how many Kips a mode has.
var kipsOf = map[string]int{"kip": 1}

type options struct {
	mode, bridge, cidr string
	choice             choice
	beyond             *beyond // what is run in place of conformance
	subset, publish    bool
	beside             bool // a DaemonSet runs beside all pods of Kip
	dump               bool
	procs              int
	limit              time.Duration
	root               string // of the repository
}

func (o options) dir(names ...string) string {
	return filepath.Join(append([]string{o.root, ".kip", "conformance"}, names...)...)
}

// own is a path for what belongs to a suite and a mode.
func (o options) own(names ...string) string {
	if o.beyond != nil {
		return o.dir(append([]string{"beyond", o.mode}, names...)...)
	}
	return o.dir(append([]string{o.mode}, names...)...)
}

func (o options) results() string {
	if o.beside {
		return o.own("beside.json") // not to be published
	}
	return o.own("results.json")
}

func (o options) published(mode string) string {
	if o.beyond != nil {
		mode = "beyond-" + mode
	}
	return filepath.Join(o.root, "test", "conformance", "results", mode+".json")
}

// specs are all those of the suite.
func (o options) specs() []string {
	if o.beyond != nil {
		return o.beyond.specs
	}
	return lines(specList)
}

func init() {
	// Children get a death signal when the thread that started them ends: as long
	// as main is bound to it, that is the one that lives as long as the program.
	runtime.LockOSThread()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	o := options{choice: choice{shard: shard{1, 1}}}
	fs := flag.NewFlagSet("conformance", flag.ContinueOnError)
	fs.StringVar(&o.mode, "mode", "kip", "`nodes`: "+strings.Join(slices.Sorted(maps.Keys(modes)), " or "))
	fs.StringVar(&o.choice.only, "only", "",
		"`which` by the results so far: failed, missing, never or all; other: what did not pass in the other mode and not here; "+
			"default: all that have not passed on this commit")
	which := fs.String("suite", "conformance", "`which` of upstream's specs: conformance, or beyond, by beyond.yaml")
	focus := fs.String("focus", "", "only specs whose names match this `expression`")
	skip := fs.String("skip", "", "no specs whose names match this `expression`")
	fs.Var(&o.choice.shard, "shard", "only the k-th of n `parts`, as k/n")
	fs.BoolVar(&o.subset, "subset", false, "only what subset.txt lists, afresh, each once, with results of their own")
	fs.BoolVar(&o.beside, "beside", false, "a DaemonSet runs beside all pods of Kip, with results of their own")
	fs.IntVar(&o.procs, "procs", 3, "how many specs at once; those that must be alone are")
	fs.DurationVar(&o.limit, "limit", 24*time.Hour, "how long it may take before it fails")
	fs.StringVar(&o.bridge, "bridge", "kipconf0", "network `device` of the cluster; two runs need two")
	fs.StringVar(&o.cidr, "cidr", "10.113.0.0/16", "`addresses` on the bridge")
	fs.BoolVar(&o.publish, "publish", false, "copy the results into test/conformance/results and write the page, and run nothing")
	fs.BoolVar(&o.dump, "dump", false, "let the suite say much of the cluster where a spec fails; two minutes each")
	list := fs.Bool("list", false, "print the names of the specs that would run")
	writeSpecs := fs.Bool("specs", false, "write specs.txt as e2e.test lists them")
	writePage := fs.Bool("page", false, "write docs/conformance.md")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%q: want flags only", fs.Args())
	}
	if _, known := modes[o.mode]; !known {
		return fmt.Errorf("-mode is %q: want %s", o.mode, strings.Join(slices.Sorted(maps.Keys(modes)), " or "))
	}
	if choices[o.choice.only] == nil {
		return fmt.Errorf("-only is %q: want failed, missing, never, other or all, or nothing", o.choice.only)
	}
	if o.beside && (o.mode != "kip" || o.publish) {
		return errors.New("-beside: want -mode=kip, and no -publish")
	}
	if o.procs < 1 {
		return fmt.Errorf("-procs is %d: it must be 1 or more", o.procs)
	}
	if o.limit <= 0 {
		return fmt.Errorf("-limit is %s: it must be more than nothing, such as 30m", o.limit)
	}
	var err error
	if o.choice.focus, err = regexp.Compile(*focus); err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	if *skip != "" {
		if o.choice.skip, err = regexp.Compile(*skip); err != nil {
			return fmt.Errorf("-skip: %w", err)
		}
	}
	if o.root, err = harness.Repository(); err != nil {
		return err
	}
	if o.beyond, err = suiteNamed(*which); err != nil {
		return err
	}
	switch {
	case *writeSpecs:
		return o.writeSpecs(ctx)
	case o.beyond != nil && o.publish:
		return o.publishBeyond(ctx)
	case o.beyond != nil && *writePage:
		return o.writeBeyondPage()
	case o.publish:
		return o.publishResults()
	case *writePage:
		return o.writePage()
	}
	if o.subset {
		return o.runSubset(ctx)
	}
	return o.runChosen(ctx, *list)
}

// runChosen runs what was chosen, or lists it.
func (o options) runChosen(ctx context.Context, list bool) error {
	if o.beyond != nil {
		if err := o.chooseBeyond(ctx); err != nil {
			return err
		}
	}
	results, err := loadResults(o.results(), o.mode)
	if err != nil {
		return err
	}
	specs := o.specs()
	if o.choice.only == "other" {
		if specs, err = o.differing(specs); err != nil {
			return err
		}
	}
	commit, warning := o.commit(ctx)
	o.choice.fine = o.fine
	chosen := o.choice.from(specs, results, commit)
	if list {
		fmt.Println(strings.Join(chosen, "\n"))
		return nil
	}
	if len(chosen) == 0 {
		if err := results.checkEnds(commit); err != nil {
			return fmt.Errorf("nothing to run of what was chosen, and %w", err)
		}
		fmt.Printf("nothing to run: %d of %d have passed; ONLY=all runs them again\n", results.passing(specs), len(specs))
		return nil
	}
	fmt.Print(warning)
	return o.run(ctx, commit, chosen, &results, o.results())
}

// runSubset runs the subset from its beginning, and keeps its results apart.
func (o options) runSubset(ctx context.Context) error {
	file := o.dir(o.mode, "subset.json")
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	results, err := loadResults(file, o.mode)
	if err != nil {
		return err
	}
	commit, warning := o.commit(ctx)
	fmt.Print(warning)
	return o.run(ctx, commit, lines(subsetList), &results, file)
}

// run runs the chosen specs on a cluster that it starts.
func (o options) run(ctx context.Context, commit string, chosen []string, results *Results, file string) error {
	source, err := o.kubernetes(ctx)
	if err != nil {
		return err
	}
	dir, err := writeImages(ctx, images(o.dir("bin"), filepath.Join(o.root, "bin"), source), o.dir("images"))
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("%w: %s", errLimit, o.limit))
	defer stop()
	return o.record(ctx, commit, chosen, results, file, func(ctx context.Context, specs []string, tell func(outcome)) error {
		return o.onCluster(ctx, specs, dir, tell)
	})
}

// record runs specs by run, and keeps each result as it comes. It fails when a spec
// does not pass or is left out.
func (o options) record(ctx context.Context, commit string, chosen []string, results *Results, file string,
	run func(context.Context, []string, func(outcome)) error) error {
	began, left := time.Now(), slices.Clone(chosen)
	results.Runs = append(results.Runs, Run{
		Commit: commit,
		Date:   began.UTC().Format(time.RFC3339),
		Flags:  o.flags(),
		Specs:  len(chosen),
		Ended:  interrupted,
	})
	n := len(results.Runs) - 1
	save := func() error {
		results.Runs[n].Left = left
		results.Runs[n].Seconds = time.Since(began).Truncate(time.Second).Seconds()
		return results.save(file)
	}
	if err := save(); err != nil {
		return err
	}
	fmt.Printf("%d specs, %s\n", len(left), o.flags())
	err := run(ctx, slices.Clone(chosen), func(out outcome) {
		i := slices.Index(left, out.spec)
		if i < 0 {
			return // the suite told twice
		}
		left = slices.Delete(slices.Clone(left), i, i+1)
		out.Run, out.Failure = n, o.fromRoot(out.Failure)
		results.add(out.spec, out.Attempt)
		if err := save(); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		fmt.Printf("%8s  %3d left  %-11s %5.0fs  %s\n", time.Since(began).Truncate(time.Second), len(left), out.State, out.Seconds, out.spec)
		if out.Failure != "" {
			fmt.Println("          " + shortened(out.Failure))
		}
	})
	switch {
	case errors.Is(context.Cause(ctx), errLimit):
		limit := fmt.Errorf("%w, with %d of %d specs left", context.Cause(ctx), len(left), len(chosen))
		if err != nil && !errors.Is(err, errLimit) {
			limit = errors.Join(limit, err)
		}
		err = limit
	case err == nil && ctx.Err() != nil:
		return errors.Join(fmt.Errorf("interrupted, with %d specs left; the next run goes on with them", len(left)), save())
	case err == nil && len(left) > 0:
		err = fmt.Errorf("the suite ended and left out %d of %d specs, such as %q", len(left), len(chosen), left[0])
	}
	results.Runs[n].Ended = complete
	if err != nil {
		results.Runs[n].Ended = shortened(o.fromRoot(err.Error()))
	}
	if err := errors.Join(err, save()); err != nil {
		return err
	}
	all := o.specs()
	fmt.Printf("%d of these %d passed, in %s; %d of %d so far; results: %s\n", results.passing(chosen), len(chosen),
		time.Since(began).Truncate(time.Second), results.passing(all), len(all), file)
	fine := func(spec string) bool { return o.fine(spec, results.Specs[spec].Attempt) }
	if failed := slices.DeleteFunc(slices.Clone(chosen), fine); len(failed) > 0 {
		return fmt.Errorf("%d of %d specs did not pass:\n  %s", len(failed), len(chosen), strings.Join(failed, "\n  "))
	}
	return nil
}

// fromRoot is a text in which the paths of the repository's own files, such as a suite's log,
// begin there: results are published.
func (o options) fromRoot(text string) string {
	return strings.ReplaceAll(text, o.root+string(filepath.Separator), "")
}

// flags are all that has an influence on a run.
func (o options) flags() string {
	args := []string{"-mode=" + o.mode}
	if o.beyond != nil {
		args = append(args, "-suite=beyond")
	}
	if o.subset {
		args = append(args, "-subset")
	}
	if o.beside {
		args = append(args, "-beside")
	}
	if o.choice.only != "" {
		args = append(args, "-only="+o.choice.only)
	}
	if f := o.choice.focus; f != nil && f.String() != "" {
		args = append(args, fmt.Sprintf("-focus=%q", f))
	}
	if o.choice.skip != nil {
		args = append(args, fmt.Sprintf("-skip=%q", o.choice.skip))
	}
	if o.choice.shard.n > 1 {
		args = append(args, "-shard="+o.choice.shard.String())
	}
	args = append(args, fmt.Sprintf("-procs=%d", o.procs), fmt.Sprintf("-dump=%t", o.dump))
	return strings.Join(args, " ") + "; kip-dev " + strings.Join(modes[o.mode].DevArgs, " ")
}

// onCluster runs specs on a cluster of their own. It fails when the cluster or a Kip
// does, and then keeps their logs.
func (o options) onCluster(ctx context.Context, specs []string, images string, tell func(outcome)) error {
	h := modes[o.mode]
	h.Name, h.CIDR, h.Stderr = o.bridge, o.cidr, os.Stderr
	h.DevArgs = append([]string{"--images=" + images}, h.DevArgs...)
	now := time.Now().UTC().Format("20060102-150405")
	state, crash := filepath.Join(o.root, ".kip", o.bridge), o.own("crash-"+now)
	world, err := harness.Start(ctx, h)
	unmoved := func(context.Context) error { return nil }
	if err == nil && o.beside {
		unmoved, err = besidePods(ctx, world)
	}
	if err == nil {
		err = o.onWorld(ctx, world, specs, o.own("logs", now+".log"), tell)
	}
	if err == nil && ctx.Err() == nil {
		err = unmoved(ctx)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // somebody asked for the end
	}
	if err != nil {
		// At once, since this process may be killed while the cluster stops.
		err = errors.Join(err, keepLogs(state, crash))
	}
	logs := 0 // of a cluster that did not start there may be fewer
	if world != nil {
		err = errors.Join(err, world.Stop())
		logs = kipsOf[o.mode]
	}
	if err = errors.Join(err, amiss(state, logs)); err != nil {
		err = errors.Join(err, keepLogs(state, crash))
		fmt.Fprintf(os.Stderr, "conformance: the logs of this cluster are kept in %s\n", crash)
	}
	return err
}

func (o options) onWorld(ctx context.Context, world *harness.World, specs []string, log string, tell func(outcome)) error {
	kips, err := readKips(world.State, kipsOf[o.mode])
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	crashed := make(chan struct{})
	var crash error
	var watch sync.WaitGroup
	watch.Go(func() {
		if crash = kips.watch(watching, world.Ended(), tick.C); crash != nil {
			close(crashed)
		}
	})
	s := suite{
		tools:      o.dir("bin"),
		kubeconfig: world.Kubeconfig,
		kubectl:    world.Tool("kubectl"),
		procs:      o.procs,
		dump:       o.dump,
		log:        log,
		crashed:    crashed,
	}
	fmt.Printf("all that the suite says: %s\n", s.log)
	err = s.run(ctx, specs, tell)
	stop()
	watch.Wait()
	if crash != nil {
		return crash
	}
	return err
}

// kubernetes is the folder of the module k8s.io/kubernetes.
func (o options) kubernetes(ctx context.Context) (string, error) {
	out, err := o.output(ctx, "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return "", fmt.Errorf("find the sources of Kubernetes: %w", err)
	}
	version, dir, _ := strings.Cut(out, " ")
	if version != Release {
		return "", fmt.Errorf("go.mod has k8s.io/kubernetes %s, and these are the tests of %s: raise them in test/conformance too", version,
			Release)
	}
	return dir, nil
}

func (o options) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = o.root, os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func (o options) writeSpecs(ctx context.Context) error {
	out, err := o.output(ctx, o.dir("bin", "e2e.test"), "--list-conformance-tests")
	if err != nil {
		return fmt.Errorf("ask e2e.test for its specs: %w", err)
	}
	names, err := listed([]byte(out))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.root, "test", "conformance", "specs.txt"), []byte(strings.Join(names, "\n")+"\n"), 0o644)
}

// publishResults copies the results of all modes that have some, and writes the
// page. It copies none when one mode's cannot be published.
func (o options) publishResults() error {
	publish := map[string]Results{}
	for mode := range modes {
		o.mode = mode
		results, err := loadResults(o.results(), mode)
		if err != nil {
			return err
		}
		same, err := results.isIn(o.published(mode))
		if err != nil {
			return err
		}
		if same || len(results.Specs) == 0 {
			continue
		}
		if err := results.checkAll(lines(specList)); err != nil {
			return fmt.Errorf("%w; or move %s away, to publish the other mode alone", err, o.results())
		}
		publish[mode] = results
	}
	for mode, results := range publish {
		if err := results.save(o.published(mode)); err != nil {
			return err
		}
	}
	return o.writePage()
}

func (o options) page() (string, error) {
	specs := lines(specList)
	nodes, err := loadResults(o.published("nodes"), "nodes")
	if err != nil {
		return "", err
	}
	kip, err := loadResults(o.published("kip"), "kip")
	if err != nil {
		return "", err
	}
	if err := errors.Join(nodes.check(), kip.check()); err != nil {
		return "", err
	}
	reasons, err := readReasons(reasonList, specs)
	if err != nil {
		return "", err
	}
	return page(specs, nodes, kip, reasons), nil
}

func (o options) writePage() error {
	text, err := o.page()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.root, "docs", "conformance.md"), []byte(text), 0o644)
}
