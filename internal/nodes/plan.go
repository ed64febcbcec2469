package nodes

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/nodeplan"
)

// plan is which nodes there are, as it is stored.
type plan struct {
	c        Config
	nodes    *registry
	objects  *objects
	revision int64 // of the record; of Controller.Keep, once it runs
	seen     sum   // of the file that the configuration in force is of; the same
}

// open finds out, of what is configured now and what is stored, which nodes are served
// first, and stores that: the file may have changed since this process began, and another have led.
func (p *plan) open(ctx context.Context) ([]nodeplan.Entry, error) {
	var stored []nodeplan.Entry
	var err error
	if p.revision, err = p.c.Store.Get(ctx, Key, &stored); err != nil {
		return nil, err
	}
	entries, err := p.first(stored)
	if err != nil {
		return nil, err
	}
	return entries, p.keep(ctx, stored, entries)
}

// first are of the file as it is. Where that is wrong, they are those of before,
// or of the configuration that this process began with.
func (p *plan) first(stored []nodeplan.Entry) ([]nodeplan.Entry, error) {
	seen, err := fileSum(p.c.File)
	cfg := p.nodes.cfg
	if err == nil {
		cfg, _, err = config.Load(p.c.File)
	}
	if err == nil {
		var entries []nodeplan.Entry
		if entries, err = p.assign(cfg, stored); err == nil {
			p.nodes.cfg, p.seen = cfg, seen
			p.sayWhatWaits(cfg)
			return entries, nil
		}
	}
	if len(stored) == 0 {
		return p.assign(p.nodes.cfg, nil)
	}
	p.c.Log.Error("the configuration is wrong: the virtual nodes are those of before", "err", err)
	for i := range stored {
		stored[i].Index = -1
	}
	return stored, nil
}

func (p *plan) assign(cfg *config.Config, before []nodeplan.Entry) ([]nodeplan.Entry, error) {
	wanted, err := nodeplan.Wanted(cfg, p.c.InstanceTypes.Types(), before)
	if err != nil {
		return nil, err
	}
	entries, err := nodeplan.Assign(before, wanted)
	if err != nil {
		return nil, fmt.Errorf("%s: nodes: %w", p.c.File, err)
	}
	if _, err := p.c.Flags.Addresses(); err != nil { // not for the file to mend, as the next
		return nil, err
	}
	if _, err := p.c.Flags.Taint(); err != nil {
		return nil, err
	}
	for _, e := range entries { // what is stored stays: nothing is that no node can be made of
		s, err := p.nodes.newServed(e)
		if err != nil {
			return nil, err
		}
		if _, err := p.objects.of(cfg, s, e); err != nil {
			return nil, cfg.Problem(keyOf(cfg, e), "%v", err)
		}
	}
	return entries, nil
}

// keep stores the plan before anything is made of it. The one node of a Kip
// that names none needs no record.
func (p *plan) keep(ctx context.Context, before, now []nodeplan.Entry) (err error) {
	same := func(a, b nodeplan.Entry) bool {
		a.Index, b.Index = 0, 0
		return reflect.DeepEqual(a, b)
	}
	if slices.EqualFunc(before, now, same) || p.revision == 0 && len(now) == 1 && now[0].Plain() {
		return nil
	}
	p.revision, err = p.c.Store.Put(ctx, Key, now, p.revision)
	if err != nil {
		return fmt.Errorf("store the virtual nodes: %w", err)
	}
	return nil
}

// keyOf is where an entry is configured.
func keyOf(cfg *config.Config, e nodeplan.Entry) string {
	if e.Index < 0 || e.Index >= len(cfg.Nodes) { // by auto, or the one node without a list
		return "nodes"
	}
	return fmt.Sprintf("nodes[%d]", e.Index)
}

// sayWhatWaits warns of what has changed beside the nodes.
func (p *plan) sayWhatWaits(cfg *config.Config) {
	others := func(c *config.Config) string {
		rest := *c
		rest.Nodes, rest.AutoNodes, rest.Kubelet = nil, "", config.Kubelet{}
		data, err := json.Marshal(rest)
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	if others(cfg) != others(p.c.Config) {
		p.c.Log.Warn("the configuration has changed in more than nodes and kubelet: the rest takes effect when Kip is started again")
	}
}

type sum = [sha256.Size]byte

func fileSum(path string) (sum, error) {
	data, err := os.ReadFile(path)
	return sha256.Sum256(data), err
}
