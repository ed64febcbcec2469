package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cleanup"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
)

// outside is what "kipctl cleanup -f" is asked for.
type outside struct {
	file, controller string
	yes, kipGone     bool
	timeout          time.Duration
}

// check refuses flags that do not go together.
func (o outside) check() error {
	switch {
	case o.file == "" && o.controller != "":
		return errors.New("--controller needs -f: the provider.yaml that names the cloud")
	case o.file == "" && o.kipGone:
		return errors.New("--kip-gone needs -f: the provider.yaml that names the cloud")
	case o.file != "" && o.yes && o.controller == "":
		return errors.New("--yes needs --controller: run this command without --yes, and it lists the IDs")
	case o.kipGone && !o.yes:
		return errors.New("--kip-gone needs --yes: without it nothing ends")
	}
	return nil
}

// readFile reads a file; "-" is standard input.
func (k *kipctl) readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(k.in)
	}
	return os.ReadFile(name)
}

// say writes a line about what goes on.
func (k *kipctl) say(line string) {
	fmt.Fprintf(k.err, "%s %s\n", k.waits.Now().Local().Format(time.TimeOnly), line)
}

// cleanupOutside shows or ends what a Kip has left in its cloud. It asks no Kip.
func (k *kipctl) cleanupOutside(ctx context.Context, o outside) error {
	data, err := k.readFile(o.file)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	cfg, _, err := config.Parse(o.file, data) // the files that it names are on Kip's machine
	if err != nil {
		return err
	}
	if cfg.Cloud.AWS != nil && cfg.Cloud.AWS.Region == "" {
		return cfg.Refuse(map[string]string{"cloud.aws.region": "there is no value: want the region of this Kip's instances, such as us-east-1. " +
			"AWS_REGION and the profile of this machine may name another"})
	}
	log := slog.New(slog.NewTextHandler(k.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	bare, closeIt, err := clouds.Shipped().Open(ctx, cfg, clouds.By{Owner: o.controller, EndsOnly: true}, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := closeIt(); err != nil {
			fmt.Fprintln(k.err, "Warning: close the cloud:", err)
		}
	}()
	machines := pipe.New(pipe.Config{Cloud: bare, Clock: clock.RealClock{}})
	where := "cloud " + machines.Name()
	if cfg.Cloud.AWS != nil {
		where += " in region " + cfg.Cloud.AWS.Region
	}
	k.say("asking the cluster of your kubeconfig, for at most " + askFor.String())
	c := k.lookAtCluster(ctx, o)
	if c.unknown != "" {
		fmt.Fprintf(k.err, "The cluster is not known: %s.\n", c.unknown)
	}
	k.say("asking " + where)
	if o.controller == "" {
		return k.listControllers(ctx, machines, where, c)
	}
	ends := cleanup.NewOutside(cleanup.OutsideConfig{Controller: o.controller, Cloud: machines, Watch: c, Clock: k.waits})
	if o.yes {
		return k.endOutside(ctx, o, ends, where, c)
	}
	names, err := ends.Names(ctx)
	if err != nil {
		return err
	}
	if err := k.printOutside(o, names, c); err != nil {
		return err
	}
	if !ends.Shown() {
		return nothingShown(where, o.controller)
	}
	if len(names.Left()) == 0 {
		fmt.Fprintf(k.err, "The %s shows nothing of controller %s that would end.\n", where, o.controller)
		return nil
	}
	return errors.New("nothing was done: --yes ends the instances, whatever they run, and removes their parts")
}

// nothingShown is the error for a controller of which no list has shown anything.
func nothingShown(where, controller string) error {
	return fmt.Errorf("%s shows nothing of controller %s, not even a disk. This is right only if the ID, and the region and the account of the cloud, "+
		"are those of this Kip", where, controller)
}

// endOutside ends what a Kip has in its cloud, if that Kip does not live.
func (k *kipctl) endOutside(ctx context.Context, o outside, ends *cleanup.Outside, where string, c *clusterOutside) error {
	if err := c.mayEnd(ctx, o); err != nil {
		return c.refused(ctx, fmt.Errorf("nothing was done: %w", err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not within %s", o.timeout))
	defer cancel()
	names, err := ends.End(ctx, k.say)
	if _, lives := errors.AsType[*cleanup.LivesError](err); lives {
		return c.refused(ctx, err)
	}
	if names.Instances != nil {
		if err := k.printOutside(o, names, c); err != nil {
			return err
		}
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted: run it again: %w", err)
	}
	if err != nil {
		return err
	}
	if !ends.Shown() {
		return nothingShown(where, o.controller)
	}
	fmt.Fprintf(k.err, "Clean: two complete lists of %s show nothing of controller %s but the disks of volumes.\n", where, o.controller)
	return nil
}

// outsideView is what "kipctl cleanup -f --controller" prints.
type outsideView struct {
	Controller string `json:"controller"`
	cleanup.Names
	// Cluster is what is left in the cluster, and Unknown what could not be asked of it.
	Cluster []leftover `json:"cluster"`
	Unknown []string   `json:"unknown"`
}

func (k *kipctl) printOutside(o outside, names cleanup.Names, c *clusterOutside) error {
	v := outsideView{Controller: o.controller, Names: names, Cluster: c.left, Unknown: c.notAsked}
	return k.print(v, func(w io.Writer) error {
		t := table(w, "WHAT", "COUNT", "NAMES")
		t.row("instances", strconv.Itoa(len(v.Instances)), cmp.Or(adminapi.Some(v.Instances), "-"))
		t.row("parts of instances", strconv.Itoa(len(v.Parts)), cmp.Or(adminapi.Some(v.Parts), "-"))
		if err := t.w.Flush(); err != nil {
			return err
		}
		if len(v.Disks) > 0 {
			fmt.Fprintf(w, "\nDisks of volumes, which stay with their data:\n  %s\nRemove them in the cloud, if nobody needs the data.\n",
				strings.Join(v.Disks, "\n  "))
		}
		if len(v.Cluster) > 0 {
			fmt.Fprint(w, "\nLeft in the cluster. You remove it:\n")
			for _, l := range v.Cluster {
				fmt.Fprintf(w, "  %s\n", l.Command)
			}
		}
		for _, what := range v.Unknown {
			if _, err := fmt.Fprintf(w, "Not known of the cluster: %s\n", what); err != nil {
				return err
			}
		}
		return nil
	})
}

// controllerView is one Kip that "kipctl cleanup -f" lists.
type controllerView struct {
	cleanup.Controller
	// Nodes are its virtual nodes in the cluster of the kubeconfig.
	Nodes []string `json:"nodes"`
}

// listControllers lists the Kips that have instances, parts or disks in the cloud.
func (k *kipctl) listControllers(ctx context.Context, machines cloud.Cloud, where string, c *clusterOutside) error {
	all, err := cleanup.Controllers(ctx, machines)
	if errors.Is(err, cleanup.ErrNoOwners) {
		return fmt.Errorf("%w: name one Kip with --controller: kubectl get nodes -L kip.elotl.co/controller shows the IDs", err)
	}
	if err != nil {
		return err
	}
	if len(all) == 0 {
		fmt.Fprintf(k.err, "The %s shows nothing with the tag %s. Its region and its account may not be those of your Kip.\n", where, cloud.TagOwner)
		return nil
	}
	views := make([]controllerView, len(all))
	for n, one := range all {
		views[n] = controllerView{Controller: one, Nodes: c.nodesOf(one.ID)}
	}
	if err := k.print(listOf(views), func(w io.Writer) error {
		t := table(w, "CONTROLLER", "INSTANCES", "PARTS", "DISKS", "YOUNGEST", "NODES", "NAMETAG", "CLUSTER", "NAMESPACES")
		for _, v := range views {
			age := "-"
			if !v.Newest.IsZero() {
				age = duration.HumanDuration(k.clock.Since(v.Newest))
			}
			t.row(v.ID, strconv.Itoa(v.Instances), strconv.Itoa(v.Parts), strconv.Itoa(v.Disks), age, orNone(adminapi.Some(v.Nodes)),
				orNone(adminapi.Some(slices.DeleteFunc(slices.Clone(v.Nametags), func(tag string) bool { return tag == v.ID }))),
				orNone(adminapi.Some(v.Clusters)), orNone(adminapi.Some(v.Namespaces)))
		}
		return t.w.Flush()
	}); err != nil {
		return err
	}
	return errors.New("nothing was done: --controller ID shows what one of these has, and with --yes ends it")
}
