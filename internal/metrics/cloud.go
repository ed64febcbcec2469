package metrics

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/elotl/kip/internal/calls"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// Kinds of calls to a cloud.
const (
	callCatalogue = string(cloud.CallCatalogue)
	callLaunch    = string(cloud.CallLaunch)
	callList      = string(cloud.CallList)
	callDescribe  = string(cloud.CallDescribe)
	callTerminate = string(cloud.CallTerminate)
	callStop      = string(cloud.CallStop)
	callStart     = string(cloud.CallStart)

	callCreateDisk = string(cloud.CallCreateDisk)
	callDeleteDisk = string(cloud.CallDeleteDisk)
	callListDisks  = string(cloud.CallListDisks)
	callAttachDisk = string(cloud.CallAttachDisk)
	callDetachDisk = string(cloud.CallDetachDisk)
	callCheckDisk  = string(cloud.CallCheckDisk)
	callGrowDisk   = string(cloud.CallGrowDisk)

	callRoute   = string(cloud.CallRoute)
	callUnroute = string(cloud.CallUnroute)

	callListParts   = string(cloud.CallListParts)
	callDeleteParts = string(cloud.CallDeleteParts)
	callTag         = string(cloud.CallTag)
	callAdmit       = string(cloud.CallAdmit)
	callResolve     = string(cloud.CallResolve)
	callConsole     = string(cloud.CallConsole)

	callInterruptions = string(cloud.CallInterruptions)
	callImpaired      = string(cloud.CallImpaired)
	callEndBoost      = string(cloud.CallEndBoost)
	callEgress        = string(cloud.CallEgress)
	callBounds        = string(cloud.CallBounds)

	callPullCredentials = string(cloud.CallPullCredentials)
)

// Cloud returns c with its calls, and those of its features, measured.
func (m *Metrics) Cloud(c cloud.Cloud) cloud.Cloud { return &measuredCloud{Cloud: c, m: m} }

type measuredCloud struct {
	cloud.Cloud
	m *Metrics
}

var (
	_ cloud.Cloud       = (*measuredCloud)(nil)
	_ cloud.Stopper     = measuredStopper{}
	_ cloud.Interrupter = measuredInterrupter{}
	_ cloud.Disks       = measuredDisks{}
	_ cloud.DiskChecker = measuredDiskChecker{}
	_ cloud.Router      = measuredRouter{}
	_ cloud.DiskGrower  = measuredDiskGrower{}
	_ cloud.Checkup     = measuredCheckup{}
	_ cloud.Booster     = measuredBooster{}
	_ cloud.Egress      = measuredEgress{}
	_ cloud.Bounder     = measuredBounder{}
	_ cloud.Owners      = measuredOwners{}
	_ calls.Meter       = (*Metrics)(nil)
	_ cloud.Parts       = measuredParts{}
	_ cloud.Tagger      = measuredTagger{}
	_ cloud.Admitter    = measuredAdmitter{}
	_ cloud.Resolver    = measuredResolver{}
	_ cloud.Console     = measuredConsole{}
	_ cloud.Registries  = measuredRegistries{}
)

func (c *measuredCloud) Features() cloud.Features {
	f := c.Cloud.Features()
	if f.Stopper != nil {
		f.Stopper = measuredStopper{f.Stopper, c.m}
	}
	if f.Interrupter != nil {
		f.Interrupter = measuredInterrupter{f.Interrupter, c.m}
	}
	if f.Disks != nil {
		f.Disks = measuredDisks{f.Disks, c.m}
	}
	if f.DiskChecker != nil {
		f.DiskChecker = measuredDiskChecker{f.DiskChecker, c.m}
	}
	if f.Router != nil {
		f.Router = measuredRouter{f.Router, c.m}
	}
	if f.DiskGrower != nil {
		f.DiskGrower = measuredDiskGrower{f.DiskGrower, c.m}
	}
	if f.Checkup != nil {
		f.Checkup = measuredCheckup{f.Checkup, c.m}
	}
	if f.Booster != nil {
		f.Booster = measuredBooster{f.Booster, c.m}
	}
	if f.Egress != nil {
		f.Egress = measuredEgress{f.Egress, c.m}
	}
	if f.Bounder != nil {
		f.Bounder = measuredBounder{f.Bounder, c.m}
	}
	if f.Owners != nil {
		f.Owners = measuredOwners{f.Owners, c.m}
	}
	if f.Console != nil {
		f.Console = measuredConsole{f.Console, c.m}
	}
	if f.Parts != nil {
		f.Parts = measuredParts{f.Parts, c.m}
	}
	if f.Tagger != nil {
		f.Tagger = measuredTagger{f.Tagger, c.m}
	}
	if f.Admitter != nil {
		f.Admitter = measuredAdmitter{f.Admitter, c.m}
	}
	if f.Resolver != nil {
		f.Resolver = measuredResolver{f.Resolver, c.m}
	}
	if f.Registries != nil {
		f.Registries = measuredRegistries{f.Registries, c.m}
	}
	return f
}

func (c *measuredCloud) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	return measured(ctx, c.m, callCatalogue, func() ([]catalog.InstanceType, error) { return c.Cloud.Catalogue(ctx) })
}

func (c *measuredCloud) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	began := c.m.cfg.Clock.Now()
	results := c.Cloud.Launch(ctx, r)
	// A launch in part is an answer: what it lacks is counted as a shortage.
	started := slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return r.Err == nil })
	short := slices.ContainsFunc(results, func(r cloud.LaunchResult) bool { return errors.Is(r.Err, cloud.ErrCapacity) })
	err := results.Err()
	if started && short {
		err = nil
	}
	c.m.called(ctx, callLaunch, began, err)
	if short {
		// By what was asked for, which comes from the catalogue: an error may
		// name less.
		c.m.cloudCapacity.WithLabelValues(r.InstanceType, r.Zone, launchTypeOf(r.Market)).Inc()
	}
	return results
}

func (c *measuredCloud) List(ctx context.Context, owner string) (cloud.Listing, error) {
	return measured(ctx, c.m, callList, func() (cloud.Listing, error) { return c.Cloud.List(ctx, owner) })
}

func (c *measuredCloud) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	return measured(ctx, c.m, callDescribe, func() ([]cloud.Instance, error) { return c.Cloud.Describe(ctx, ids...) })
}

func (c *measuredCloud) Terminate(ctx context.Context, ids ...string) cloud.Results {
	began := c.m.cfg.Clock.Now()
	results := c.Cloud.Terminate(ctx, ids...)
	c.m.called(ctx, callTerminate, began, results.Err())
	return results
}

type measuredStopper struct {
	stopper cloud.Stopper
	m       *Metrics
}

func (s measuredStopper) Stop(ctx context.Context, ids ...string) cloud.Results {
	began := s.m.cfg.Clock.Now()
	results := s.stopper.Stop(ctx, ids...)
	s.m.called(ctx, callStop, began, results.Err())
	return results
}

func (s measuredStopper) Start(ctx context.Context, ids ...string) cloud.Results {
	began := s.m.cfg.Clock.Now()
	results := s.stopper.Start(ctx, ids...)
	err := results.Err()
	s.m.called(ctx, callStart, began, err)
	if errors.Is(err, cloud.ErrCapacity) {
		short := cloud.ScopeOf(err)
		launchType := "" // which the error need not say
		switch {
		case short.Spot == nil:
		case *short.Spot:
			launchType = launchSpot
		default:
			launchType = launchOnDemand
		}
		s.m.cloudCapacity.WithLabelValues(short.InstanceType, short.Zone, launchType).Inc()
	}
	return results
}

type measuredInterrupter struct {
	interrupter cloud.Interrupter
	m           *Metrics
}

func (i measuredInterrupter) Interruptions(ctx context.Context, l cloud.Listener) error {
	counted := l
	counted.Notify = func(n cloud.Interruption) {
		i.m.cloudInterruptions.Inc()
		l.Notify(n)
	}
	counted.Send = func(ctx context.Context, call func(context.Context) error) error {
		return l.Look(ctx, func(ctx context.Context) error {
			return i.m.measure(ctx, callInterruptions, func() error { return call(ctx) })
		})
	}
	return i.interrupter.Interruptions(ctx, counted)
}

type measuredDiskChecker struct {
	checker cloud.DiskChecker
	m       *Metrics
}

func (d measuredDiskChecker) CheckDisk(ctx context.Context, id, zone string) error {
	return d.m.measure(ctx, callCheckDisk, func() error { return d.checker.CheckDisk(ctx, id, zone) })
}

type measuredRouter struct {
	router cloud.Router
	m      *Metrics
}

func (r measuredRouter) Route(ctx context.Context, instance string, to []netip.Prefix) error {
	return r.m.measure(ctx, callRoute, func() error { return r.router.Route(ctx, instance, to) })
}

func (r measuredRouter) Unroute(ctx context.Context, instance string, to []netip.Prefix) error {
	return r.m.measure(ctx, callUnroute, func() error { return r.router.Unroute(ctx, instance, to) })
}

type measuredDiskGrower struct {
	grower cloud.DiskGrower
	m      *Metrics
}

func (d measuredDiskGrower) GrowDisk(ctx context.Context, id string, bytes int64) (disk cloud.Disk, err error) {
	err = d.m.measure(ctx, callGrowDisk, func() error {
		disk, err = d.grower.GrowDisk(ctx, id, bytes)
		return err
	})
	return disk, err
}

type measuredCheckup struct {
	checkup cloud.Checkup
	m       *Metrics
}

func (u measuredCheckup) Impaired(ctx context.Context) ([]string, error) {
	return measured(ctx, u.m, callImpaired, func() ([]string, error) { return u.checkup.Impaired(ctx) })
}

type measuredEgress struct {
	egress cloud.Egress
	m      *Metrics
}

func (e measuredEgress) Ways(ctx context.Context, subnets ...string) (map[string]cloud.Way, error) {
	return measured(ctx, e.m, callEgress, func() (map[string]cloud.Way, error) { return e.egress.Ways(ctx, subnets...) })
}

type measuredBounder struct {
	bounder cloud.Bounder
	m       *Metrics
}

func (b measuredBounder) Bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	return measured(ctx, b.m, callBounds, func() (catalog.Bounds, error) { return b.bounder.Bounds(ctx, owner) })
}

type measuredOwners struct {
	owners cloud.Owners
	m      *Metrics
}

func (o measuredOwners) ListOwners(ctx context.Context) ([]cloud.Owner, error) {
	return measured(ctx, o.m, callList, func() ([]cloud.Owner, error) { return o.owners.ListOwners(ctx) })
}

type measuredDisks struct {
	disks cloud.Disks
	m     *Metrics
}

func (d measuredDisks) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	return measured(ctx, d.m, callCreateDisk, func() (cloud.Disk, error) { return d.disks.CreateDisk(ctx, r) })
}

func (d measuredDisks) DeleteDisk(ctx context.Context, id string) error {
	return d.m.measure(ctx, callDeleteDisk, func() error { return d.disks.DeleteDisk(ctx, id) })
}

func (d measuredDisks) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	return measured(ctx, d.m, callListDisks, func() ([]cloud.Disk, error) { return d.disks.ListDisks(ctx, owner) })
}

func (d measuredDisks) AttachDisk(ctx context.Context, id, instance string) error {
	return d.m.measure(ctx, callAttachDisk, func() error { return d.disks.AttachDisk(ctx, id, instance) })
}

func (d measuredDisks) DetachDisk(ctx context.Context, id, instance string) error {
	return d.m.measure(ctx, callDetachDisk, func() error { return d.disks.DetachDisk(ctx, id, instance) })
}

// CallWaits implements calls.Meter.
func (m *Metrics) CallWaits(kind cloud.Call) { m.callsWaiting.WithLabelValues(string(kind)).Inc() }

// CallWaited implements calls.Meter.
func (m *Metrics) CallWaited(kind cloud.Call, d time.Duration) {
	m.callsWaiting.WithLabelValues(string(kind)).Dec()
	m.callWaits.WithLabelValues(string(kind)).Observe(d.Seconds())
}

type measuredParts struct {
	parts cloud.Parts
	m     *Metrics
}

func (p measuredParts) ListParts(ctx context.Context, owner string) ([]cloud.Part, error) {
	return measured(ctx, p.m, callListParts, func() ([]cloud.Part, error) { return p.parts.ListParts(ctx, owner) })
}

func (p measuredParts) DeleteParts(ctx context.Context, ids ...string) cloud.Results {
	began := p.m.cfg.Clock.Now()
	results := p.parts.DeleteParts(ctx, ids...)
	p.m.called(ctx, callDeleteParts, began, results.Err())
	return results
}

type measuredTagger struct {
	tagger cloud.Tagger
	m      *Metrics
}

func (t measuredTagger) Tag(ctx context.Context, taggings ...cloud.Tagging) cloud.Results {
	began := t.m.cfg.Clock.Now()
	results := t.tagger.Tag(ctx, taggings...)
	t.m.called(ctx, callTag, began, results.Err())
	return results
}

type measuredBooster struct {
	booster cloud.Booster
	m       *Metrics
}

func (b measuredBooster) EndBoost(ctx context.Context, ids ...string) cloud.Results {
	began := b.m.cfg.Clock.Now()
	results := b.booster.EndBoost(ctx, ids...)
	b.m.called(ctx, callEndBoost, began, results.Err())
	return results
}

type measuredAdmitter struct {
	admitter cloud.Admitter
	m        *Metrics
}

func (a measuredAdmitter) Admit(ctx context.Context, owner string) error {
	return a.m.measure(ctx, callAdmit, func() error { return a.admitter.Admit(ctx, owner) })
}

type measuredResolver struct {
	resolver cloud.Resolver
	m        *Metrics
}

func (r measuredResolver) Resolve(ctx context.Context, s cloud.LaunchSpec) (cloud.Resolved, error) {
	return measured(ctx, r.m, callResolve, func() (cloud.Resolved, error) { return r.resolver.Resolve(ctx, s) })
}

type measuredConsole struct {
	console cloud.Console
	m       *Metrics
}

func (k measuredConsole) Console(ctx context.Context, id string) ([]byte, error) {
	return measured(ctx, k.m, callConsole, func() ([]byte, error) { return k.console.Console(ctx, id) })
}

type measuredRegistries struct {
	cloud.Registries // its patterns are known without a call
	m                *Metrics
}

func (r measuredRegistries) PullCredentials(ctx context.Context, registry string, repositories ...string) (cloud.PullCredentials, error) {
	return measured(ctx, r.m, callPullCredentials, func() (cloud.PullCredentials, error) {
		return r.Registries.PullCredentials(ctx, registry, repositories...)
	})
}

// measured makes a call that returns something.
func measured[T any](ctx context.Context, m *Metrics, call string, send func() (T, error)) (answer T, err error) {
	err = m.measure(ctx, call, func() (err error) {
		answer, err = send()
		return err
	})
	return answer, err
}

// measure makes a call.
func (m *Metrics) measure(ctx context.Context, call string, send func() error) error {
	began := m.cfg.Clock.Now()
	err := send()
	m.called(ctx, call, began, err)
	return err
}

func (m *Metrics) called(ctx context.Context, call string, began time.Time, err error) {
	m.cloudCalls.WithLabelValues(call, errorClass(ctx, err)).Observe(m.cfg.Clock.Since(began).Seconds())
}

// errorClass sorts the errors of a cloud into those that a caller tells apart.
func errorClass(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return errorNone
	case errors.Is(err, cloud.ErrCapacity), errors.Is(err, cloud.ErrTogether):
		return errorCapacity
	case errors.Is(err, cloud.ErrQuota):
		return errorQuota
	case errors.Is(err, cloud.ErrThrottled):
		return errorThrottled
	case errors.Is(err, cloud.ErrUnauthorised):
		return errorUnauthorised
	case errors.Is(err, cloud.ErrMismatch):
		return errorMismatch
	case errors.Is(err, cloud.ErrInUse):
		return errorInUse
	case errors.Is(err, cloud.ErrNotFound):
		return errorNotFound
	case errors.Is(err, cloud.ErrRefused), errors.Is(err, cloud.ErrStale), errors.Is(err, cloud.ErrNotYet), errors.Is(err, cloud.ErrUnfit):
		return errorRefused
	case errors.Is(ctx.Err(), context.Canceled):
		return errorCancelled
	}
	return errorUnknown
}
