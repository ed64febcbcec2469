package cellapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/watches"
)

const (
	// patience is how long a request waits for what Kip is about to learn,
	// before the client is asked to repeat it.
	patience = 10 * time.Second
	// freshness is how long a request waits for a resource version that Kip has
	// not seen; what the API server waits.
	freshness = 3 * time.Second
	// bookmarkEvery is how often a watch is told how far it has come, as from
	// the API server.
	bookmarkEvery = time.Minute
	// watchFor ends a watch whose client set no timeoutSeconds.
	watchFor = 30 * time.Minute
	// writeWithin is how long a client may take to accept what is written to it.
	// What it has not taken in that time is not kept for it.
	writeWithin = 30 * time.Second
	// maxRequirements bounds the selectors of a list or watch, which are compared with
	// every object. A kube-proxy's have two.
	maxRequirements = 16
)

// reader answers get, list and watch from a collection.
type reader struct {
	collection *watches.Collection
	clock      clock.Clock
	// namespace narrows a list and watch, "" does not.
	namespace string
	// missed explains, when the collection is not known in time, why not. It may
	// be nil or return nil.
	missed func() error
	// lifetime ends when what is read may no longer be read; watches end with it.
	lifetime context.Context
	// worked charges the time since began to the cell.
	worked func(began time.Time)
}

// await waits until the collection is known.
func (rd *reader) await(ctx context.Context) error {
	if rd.collection.Ready(ctx, rd.clock, patience) {
		return nil
	}
	if rd.missed != nil {
		if err := rd.missed(); err != nil {
			return err
		}
	}
	return notYet(rd.collection.Kind.Resource.Resource)
}

func (rd *reader) get(w http.ResponseWriter, r *http.Request, name string) error {
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	if err := rd.await(r.Context()); err != nil {
		return err
	}
	o := rd.collection.Get(watches.Key(rd.namespace, name))
	if o == nil {
		return apierrors.NewNotFound(rd.collection.Kind.GroupResource(), name)
	}
	e, err := formOf(o, f)
	if err != nil {
		return err
	}
	writePieces(w, f, http.StatusOK, e.Whole)
	return nil
}

// filter says which objects a list or watch is about.
type filter struct {
	kind      *watches.Kind
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	all       bool // neither namespace nor selectors: every object matches
}

func (rd *reader) filter(o *internalversion.ListOptions) (*filter, error) {
	fl := &filter{
		kind:      rd.collection.Kind,
		namespace: rd.namespace,
		labels:    labels.Everything(),
		fields:    fields.Everything(),
	}
	if o.LabelSelector != nil {
		fl.labels = o.LabelSelector
	}
	if o.FieldSelector != nil {
		fl.fields = o.FieldSelector
	}
	required, _ := fl.labels.Requirements()
	if n := len(required) + len(fl.fields.Requirements()); n > maxRequirements {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the selectors have %d requirements, the limit is %d", n, maxRequirements))
	}
	known := fl.kind.Fields(fl.kind.New())
	for _, q := range fl.fields.Requirements() {
		if _, ok := known[q.Field]; !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported for %s: %s", fl.kind.Resource.Resource, q.Field))
		}
		if q.Operator != selection.Equals && q.Operator != selection.DoubleEquals && q.Operator != selection.NotEquals {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("operator not supported in a field selector: %s", q.Operator))
		}
	}
	fl.all = fl.namespace == "" && fl.labels.Empty() && fl.fields.Empty()
	return fl, nil
}

func (fl *filter) matches(o *watches.Object) bool {
	switch {
	case o == nil:
		return false
	case fl.all:
		return true
	case fl.namespace != "" && fl.namespace != o.GetNamespace():
		return false
	case !fl.labels.Empty() && !fl.labels.Matches(labels.Set(o.GetLabels())):
		return false
	}
	return fl.fields.Empty() || fl.fields.Matches(fl.kind.Fields(o.APIObject))
}

// seen returns how an event looks through the filter; "" means not at all.
func (fl *filter) seen(e watches.Event) watch.EventType {
	if fl.all {
		return e.Kind
	}
	before := fl.matches(e.Previous)
	after := e.Kind != watch.Deleted && fl.matches(e.Object)
	switch {
	case before && after:
		return watch.Modified
	case after:
		return watch.Added
	case before:
		return watch.Deleted
	}
	return ""
}

// matching are the objects that match, and charges the time that they were compared.
func (rd *reader) matching(fl *filter, objects []*watches.Object) []*watches.Object {
	if fl.all {
		return objects
	}
	defer rd.worked(rd.clock.Now())
	var matching []*watches.Object
	for _, o := range objects {
		if fl.matches(o) {
			matching = append(matching, o)
		}
	}
	return matching
}

// change is an event as a watch sees it.
type change struct {
	seen watch.EventType
	of   watches.Event
}

// changes are the events that are seen through the filter, and charges the time that
// they were compared.
func (rd *reader) changes(fl *filter, events []watches.Event) []change {
	if !fl.all {
		defer rd.worked(rd.clock.Now())
	}
	var changes []change
	for _, e := range events {
		if t := fl.seen(e); t != "" {
			changes = append(changes, change{t, e})
		}
	}
	return changes
}

// decodeListOptions reads the options that a request has of a list or watch.
func decodeListOptions(r *http.Request) (*internalversion.ListOptions, error) {
	o := &internalversion.ListOptions{}
	if err := scheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, o); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return o, nil
}

// listOptions reads and checks the options of a list or watch.
func listOptions(r *http.Request, verb string) (*internalversion.ListOptions, error) {
	o, err := decodeListOptions(r)
	if err != nil {
		return nil, err
	}
	o.Watch = verb == "watch"
	if errs := validation.ValidateListOptions(o, true); len(errs) > 0 {
		return nil, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", errs)
	}
	return o, nil
}

// version reads the resource version of o; 0 stands for "any".
func version(o *internalversion.ListOptions) (uint64, error) {
	if o.ResourceVersion == "" {
		return 0, nil
	}
	rv, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion %q is not a number", o.ResourceVersion))
	}
	return rv, nil
}

// listing is what a list or a watch asks for.
type listing struct {
	format  format
	options *internalversion.ListOptions
	filter  *filter
	version uint64 // 0 for any
}

// listing reads what a list or a watch asks for.
func (rd *reader) listing(r *http.Request, verb string) (listing, error) {
	f, ok := accepted(r.Header)
	if !ok {
		return listing{}, notAcceptable()
	}
	options, err := listOptions(r, verb)
	if err != nil {
		return listing{}, err
	}
	fl, err := rd.filter(options)
	if err != nil {
		return listing{}, err
	}
	rv, err := version(options)
	return listing{
		format:  f,
		options: options,
		filter:  fl,
		version: rv,
	}, err
}

// list answers a list. All objects are in one answer, whatever the limit: clients
// take more than they asked for, and no list of a cell is long.
func (rd *reader) list(w http.ResponseWriter, r *http.Request) error {
	a, err := rd.listing(r, "list")
	if err != nil {
		return err
	}
	if a.options.Continue != "" {
		return expired("continue token", "lists are never continued here")
	}
	if err := rd.await(r.Context()); err != nil {
		return err
	}
	if current, ok := rd.collection.Fresh(r.Context(), rd.clock, a.version, freshness); !ok {
		return tooLarge(a.version, current)
	}
	objects, current, _ := rd.collection.Snapshot()
	if a.options.ResourceVersionMatch == metav1.ResourceVersionMatchExact && a.version != current {
		return expired(a.options.ResourceVersion, strconv.FormatUint(current, 10))
	}
	objects = rd.matching(a.filter, objects)
	pieces, err := listPieces(a.format, rd.collection.Kind, objects, current)
	if err != nil {
		return err
	}
	writePieces(w, a.format, http.StatusOK, pieces...)
	return nil
}

// watch answers a watch. It returns an error only as long as nothing is written.
func (rd *reader) watch(w http.ResponseWriter, r *http.Request) error {
	a, err := rd.listing(r, "watch")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(rd.lifetime, cancel)()
	if err := rd.await(ctx); err != nil {
		return err
	}
	current, isFresh := rd.collection.Fresh(ctx, rd.clock, a.version, freshness)

	// What comes first: the objects, or the events since a.version.
	initial := a.version == 0
	if a.options.SendInitialEvents != nil {
		initial = *a.options.SendInitialEvents
		if initial && !isFresh {
			return tooLarge(a.version, current)
		}
	}
	var objects []*watches.Object
	var next uint64
	switch {
	case initial || a.version == 0:
		objects, current, next = rd.collection.Snapshot()
		if !initial {
			objects = nil
		}
	default:
		var ok bool
		if next, ok = rd.collection.Seek(a.version); !ok {
			return expired(a.options.ResourceVersion, strconv.FormatUint(current, 10))
		}
		current = a.version
	}

	out := &stream{
		w:       w,
		control: http.NewResponseController(w),
		format:  a.format,
		kind:    rd.collection.Kind,
	}
	w.Header().Set("Content-Type", a.format.watchMediaType())
	w.WriteHeader(http.StatusOK)
	out.begin()
	for _, o := range rd.matching(a.filter, objects) {
		out.object(watch.Added, o)
	}
	if a.options.SendInitialEvents != nil && initial && a.options.AllowWatchBookmarks {
		out.bookmark(current, true)
	}
	if !out.flush() {
		return nil
	}
	forget(r)
	rd.follow(ctx, out, a.filter, a.options, next, current)
	return nil
}

// forget lets go of what a request said. The server holds the request itself as long
// as its watch.
func forget(r *http.Request) {
	clear(r.Header)
	*r.URL, r.RequestURI = url.URL{Path: strings.Clone(r.URL.Path)}, ""
}

// follow writes events from next on until the client, its timeout or the end of
// what it may see ends it. told is the version that the client knows.
func (rd *reader) follow(ctx context.Context, out *stream, fl *filter, options *internalversion.ListOptions, next, told uint64) {
	lasts := watchFor
	if s := options.TimeoutSeconds; s != nil && *s > 0 {
		lasts = time.Duration(*s) * time.Second
	}
	end := rd.clock.NewTimer(lasts)
	defer end.Stop()
	var bookmarkDue <-chan time.Time
	var bookmarks clock.Timer
	if options.AllowWatchBookmarks {
		bookmarks = rd.clock.NewTimer(bookmarkEvery)
		defer bookmarks.Stop()
		bookmarkDue = bookmarks.C()
	}

	for {
		events, current, changed, ok := rd.collection.Since(next)
		if !ok {
			out.begin()
			out.failure(expired("the watch fell behind", strconv.FormatUint(current, 10)))
			out.flush()
			return
		}
		if len(events) > 0 {
			next += uint64(len(events))
			out.begin()
			for _, e := range rd.changes(fl, events) {
				// An object that no longer matches is shown as it is now: what
				// a client needs of a deletion is the name and the version.
				out.object(e.seen, e.of.Object)
				told = e.of.Object.RV
			}
			if !out.flush() {
				return
			}
			continue
		}
		select {
		case <-changed:
		case <-bookmarkDue:
			bookmarks.Reset(bookmarkEvery)
			if current > told {
				out.begin()
				out.bookmark(current, false)
				if !out.flush() {
					return
				}
				told = current
			}
		case <-end.C():
			return
		case <-ctx.Done():
			return
		}
	}
}
