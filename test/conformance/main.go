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
	"kip":   {DevArgs: []string{"--kips=2", "--service-proxy", "--default-type=small", fmt.Sprintf("--cpus=%d", runtime.NumCPU())}},
	"nodes": {DevArgs: []string{"--nodes=2"}, ClusterOnly: true},
}

// restarts of a cluster that ended, before the run gives up.
const restarts = 5

type options struct {
	mode, bridge, cidr string
	choice             choice
	subset, publish    bool
	dump               bool
	procs              int
	root               string // of the repository
}

func (o options) dir(names ...string) string {
	return filepath.Join(append([]string{o.root, ".kip", "conformance"}, names...)...)
}
func (o options) results() string { return o.dir(o.mode, "results.json") }
func (o options) published(mode string) string {
	return filepath.Join(o.root, "test", "conformance", "results", mode+".json")
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
	fs.StringVar(&o.choice.only, "only", "", "`which` by the results so far: failed, missing or all; default: all that have not passed")
	focus := fs.String("focus", "", "only specs whose names match this `expression`")
	fs.Var(&o.choice.shard, "shard", "only the k-th of n `parts`, as k/n")
	fs.BoolVar(&o.subset, "subset", false, "only what subset.txt lists, afresh, with results of their own")
	fs.IntVar(&o.procs, "procs", 3, "how many specs at once; those that must be alone are")
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
		return fmt.Errorf("-only is %q: want failed, missing or all, or nothing", o.choice.only)
	}
	if o.procs < 1 {
		return fmt.Errorf("-procs is %d: it must be 1 or more", o.procs)
	}
	var err error
	if o.choice.focus, err = regexp.Compile(*focus); err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	if o.root, err = harness.Repository(); err != nil {
		return err
	}
	switch {
	case *writeSpecs:
		return o.writeSpecs(ctx)
	case o.publish:
		return o.publishResults()
	case *writePage:
		return o.writePage()
	}
	if o.subset {
		return o.runSubset(ctx)
	}
	results, err := loadResults(o.results(), o.mode)
	if err != nil {
		return err
	}
	chosen := o.choice.from(lines(specList), results)
	if *list {
		fmt.Println(strings.Join(chosen, "\n"))
		return nil
	}
	return o.run(ctx, chosen, results, o.results())
}

// runSubset runs the subset from its beginning, and keeps its results apart. What
// fails runs once more, on a new cluster and one at a time, and is named if it passes then: some of upstream's
// specs have time limits that a busy machine misses.
func (o options) runSubset(ctx context.Context) error {
	file := o.dir(o.mode, "subset.json")
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	results, err := loadResults(file, o.mode)
	if err != nil {
		return err
	}
	chosen := lines(subsetList)
	err = o.run(ctx, chosen, results, file)
	var failed *failedError
	if !errors.As(err, &failed) {
		return err
	}
	fmt.Printf("%v; once more, one at a time:\n", err)
	o.procs = 1
	if err := o.run(ctx, failed.specs, results, file); err != nil {
		return err
	}
	fmt.Printf("FLAKY: these passed only the second time:\n  %s\n", strings.Join(failed.specs, "\n  "))
	return nil
}

// failedError: the suite ran to its end, and these did not pass.
type failedError struct{ specs []string }

func (e *failedError) Error() string { return fmt.Sprintf("%d specs did not pass", len(e.specs)) }

// run runs the chosen specs until each has ended, on a cluster that it starts, and
// again on another one if that ends. Each result is kept as it comes.
func (o options) run(ctx context.Context, chosen []string, results Results, file string) error {
	if len(chosen) == 0 {
		fmt.Printf("nothing to run: %d of %d have passed; ONLY=all runs them again\n", results.passing(lines(specList)), len(lines(specList)))
		return nil
	}
	tested, err := o.commit(ctx)
	if err != nil {
		return err
	}
	source, err := o.kubernetes(ctx)
	if err != nil {
		return err
	}
	dir, err := writeImages(ctx, images(o.dir("bin"), filepath.Join(o.root, "bin"), source), o.dir("images"))
	if err != nil {
		return err
	}
	began, left := time.Now(), slices.Clone(chosen)
	fmt.Printf("%d specs, mode %s, %d at once\n", len(left), o.mode, o.procs)
	tell := func(out outcome) {
		i := slices.Index(left, out.spec)
		if i < 0 {
			return // the suite told twice
		}
		left = slices.Delete(left, i, i+1)
		out.Kip = tested
		results.add(out.spec, out.Result)
		if err := results.save(file); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		fmt.Printf("%8s  %3d left  %-11s %5.0fs  %s\n", time.Since(began).Truncate(time.Second), len(left), out.State, out.Seconds, out.spec)
		if out.Failure != "" {
			fmt.Println("          " + shortened(out.Failure))
		}
	}
	for n := 1; len(left) > 0; n++ {
		before := len(left)
		err := o.round(ctx, left, dir, fmt.Sprintf("%s-%d", time.Now().Format("0102-150405"), n), tell)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted, with %d specs left; the next run goes on with them", len(left))
		case err != nil && (n > restarts || !errors.Is(err, errClusterEnded) && !errors.Is(err, errQuiet)):
			return err
		case err != nil:
			fmt.Fprintf(os.Stderr, "conformance: %v; going on with the %d specs that are left\n", err, len(left))
		case len(left) == before:
			return fmt.Errorf("the suite ended and left out %d specs, such as %q: is specs.txt of its release?", len(left), left[0])
		}
	}
	did := results.passing(chosen)
	all := lines(specList)
	fmt.Printf("%d of these %d passed, in %s; %d of %d so far; results: %s\n", did, len(chosen), time.Since(began).Truncate(time.Second), results.passing(all), len(all), file)
	if did < len(chosen) {
		return &failedError{slices.DeleteFunc(slices.Clone(chosen), func(spec string) bool { return results.passing([]string{spec}) == 1 })}
	}
	return nil
}

// round runs specs on one cluster, until they have ended or it has.
func (o options) round(ctx context.Context, specs []string, images, name string, tell func(outcome)) (err error) {
	h := modes[o.mode]
	h.Name, h.CIDR, h.Stderr = o.bridge, o.cidr, os.Stderr
	h.DevArgs = append([]string{"--images=" + images}, h.DevArgs...)
	world, err := harness.Start(ctx, h)
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := world.Stop(); !errors.Is(err, errClusterEnded) {
			err = errors.Join(err, stopErr)
		}
	}()
	s := suite{
		tools: o.dir("bin"), kubeconfig: world.Kubeconfig, kubectl: world.Tool("kubectl"), procs: o.procs, dump: o.dump,
		log: o.dir(o.mode, "logs", name+".log"), ended: world.Ended(),
	}
	fmt.Printf("all that the suite says: %s\n", s.log)
	// What fails while the cluster ends is not kept.
	return s.run(ctx, slices.Clone(specs), func(out outcome) {
		select {
		case <-world.Ended():
		default:
			tell(out)
		}
	})
}

// commit is what is tested.
func (o options) commit(ctx context.Context) (string, error) {
	out, err := o.output(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12")
	if err != nil {
		return "", fmt.Errorf("ask which commit this is: %w", err)
	}
	return out, nil
}

// kubernetes is the folder of the module k8s.io/kubernetes.
func (o options) kubernetes(ctx context.Context) (string, error) {
	out, err := o.output(ctx, "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return "", fmt.Errorf("find the sources of Kubernetes: %w", err)
	}
	version, dir, _ := strings.Cut(out, " ")
	if version != Release {
		return "", fmt.Errorf("go.mod has k8s.io/kubernetes %s, and these are the tests of %s: raise them in test/conformance too", version, Release)
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

// publishResults copies the results of all modes that have some, and writes the page.
func (o options) publishResults() error {
	for mode := range modes {
		o.mode = mode
		results, err := loadResults(o.results(), mode)
		if err != nil {
			return err
		}
		if len(results.Specs) == 0 {
			continue
		}
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
