package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// Paths of the protocol: JSON by POST, an answer each. Interruptions answers with
// a line for each notice, without an end.
const (
	pathCatalogue     = "/v1/catalogue"
	pathLaunch        = "/v1/launch"
	pathList          = "/v1/list"
	pathDescribe      = "/v1/describe"
	pathTerminate     = "/v1/terminate"
	pathInterruptions = "/v1/interruptions"
	pathCreateDisk    = "/v1/disks/create"
	pathDeleteDisk    = "/v1/disks/delete"
	pathListDisks     = "/v1/disks/list"
	pathAttachDisk    = "/v1/disks/attach"
	pathDetachDisk    = "/v1/disks/detach"
	pathGrowDisk      = "/v1/disks/grow"
)

// diskOf names a disk and an instance.
type diskOf struct {
	Disk     string `json:"disk"`
	Instance string `json:"instance"`
}

// sizeOf names a disk and its size.
type sizeOf struct {
	Disk  string `json:"disk"`
	Bytes int64  `json:"bytes"`
}

// failure is an error with what a caller decides on.
type failure struct {
	Message string `json:"message"`
	// Cause is a bare one where there is no Error.
	Cause cloud.Cause `json:"cause,omitempty"`
	Error *said       `json:"error,omitempty"`
	InUse *diskOf     `json:"inUse,omitempty"`
}

// said is a cloud.Error without its text.
type said struct {
	Cause       cloud.Cause
	Scope       cloud.Scope
	RetryAfter  time.Duration
	NothingDone bool
}

// failureOf returns nil for no error.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Message: err.Error(), Cause: cloud.CauseOf(err)}
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		f.Error = &said{e.Cause, e.Scope, e.RetryAfter, e.NothingDone}
	}
	if u, ok := errors.AsType[*cloud.InUseError](err); ok {
		f.InUse = &diskOf{u.Disk, u.Instance}
	}
	return f
}

// failed is an error that was heard over the socket: it says what the other side
// said, and no more.
type failed struct {
	text string
	is   error
}

func (e *failed) Error() string { return e.text }
func (e *failed) Unwrap() error { return e.is }

func (f *failure) error() error {
	switch {
	case f == nil:
		return nil
	case f.Error != nil:
		e := f.Error
		return &failed{f.Message, &cloud.Error{
			Cause:       e.Cause,
			Scope:       e.Scope,
			RetryAfter:  e.RetryAfter,
			NothingDone: e.NothingDone,
		}}
	case f.InUse != nil:
		return &failed{f.Message, &cloud.InUseError{Disk: f.InUse.Disk, Instance: f.InUse.Instance}}
	case f.Cause != "":
		return &failed{f.Message, f.Cause}
	}
	return errors.New(f.Message)
}

// launched and result are the answers by machine.
type launched struct {
	Instance cloud.Instance `json:"instance"`
	Failure  *failure       `json:"failure,omitempty"`
}

type result struct {
	ID      string   `json:"id"`
	Failure *failure `json:"failure,omitempty"`
}

func tell(results cloud.Results) ([]result, error) {
	all := make([]result, len(results))
	for n, r := range results {
		all[n] = result{r.ID, failureOf(r.Err)}
	}
	return all, nil
}

// Handler serves a cloud.
func Handler(c cloud.Cloud) http.Handler {
	mux := http.NewServeMux()
	serve(mux, pathCatalogue, func(ctx context.Context, _ struct{}) ([]catalog.InstanceType, error) { return c.Catalogue(ctx) })
	serve(mux, pathLaunch, func(ctx context.Context, r cloud.LaunchRequest) ([]launched, error) {
		results := c.Launch(ctx, r)
		all := make([]launched, len(results))
		for n, one := range results {
			all[n] = launched{one.Instance, failureOf(one.Err)}
		}
		return all, nil
	})
	serve(mux, pathList, c.List)
	serve(mux, pathDescribe, func(ctx context.Context, ids []string) ([]cloud.Instance, error) { return c.Describe(ctx, ids...) })
	serve(mux, pathTerminate, func(ctx context.Context, ids []string) ([]result, error) { return tell(c.Terminate(ctx, ids...)) })
	if d := c.Optional().Disks; d != nil {
		serve(mux, pathCreateDisk, d.CreateDisk)
		serve(mux, pathDeleteDisk, func(ctx context.Context, id string) (struct{}, error) { return struct{}{}, d.DeleteDisk(ctx, id) })
		serve(mux, pathListDisks, d.ListDisks)
		serve(mux, pathAttachDisk, func(ctx context.Context, of diskOf) (struct{}, error) {
			return struct{}{}, d.AttachDisk(ctx, of.Disk, of.Instance)
		})
		serve(mux, pathDetachDisk, func(ctx context.Context, of diskOf) (struct{}, error) {
			return struct{}{}, d.DetachDisk(ctx, of.Disk, of.Instance)
		})
	}
	if g := c.Optional().DiskGrower; g != nil {
		serve(mux, pathGrowDisk, func(ctx context.Context, of sizeOf) (cloud.Disk, error) { return g.GrowDisk(ctx, of.Disk, of.Bytes) })
	}
	if source := c.Optional().Interrupter; source != nil {
		mux.HandleFunc("POST "+pathInterruptions, func(w http.ResponseWriter, r *http.Request) {
			out := json.NewEncoder(w)
			_ = http.NewResponseController(w).Flush()
			_ = source.Interruptions(r.Context(), cloud.Listener{Notify: func(i cloud.Interruption) {
				if out.Encode(i) == nil {
					_ = http.NewResponseController(w).Flush()
				}
			}}) // its end is the end of the answer
		})
	}
	return mux
}

func serve[In, Out any](mux *http.ServeMux, path string, call func(context.Context, In) (Out, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := call(r.Context(), in)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(failureOf(err)) // whoever asked is gone
			return
		}
		_ = json.NewEncoder(w).Encode(out)
	})
}

// Cloud is the client of a Handler.
type Cloud struct {
	name   string
	client *http.Client
}

var (
	_ cloud.Cloud       = (*Cloud)(nil)
	_ cloud.Interrupter = (*Cloud)(nil)
	_ cloud.Disks       = (*Cloud)(nil)
	_ cloud.DiskGrower  = (*Cloud)(nil)
)

// Dial returns the cloud that is served on a unix socket. It connects when it is
// first asked something.
func Dial(name, socket string) *Cloud {
	return &Cloud{name: name, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 16,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// Name is what Dial was given.
func (c *Cloud) Name() string { return c.name }

// Catalogue is as in cloud.Cloud.
func (c *Cloud) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	return ask[[]catalog.InstanceType](ctx, c, pathCatalogue, struct{}{})
}

// Capabilities are those of a cloud that is far away: its list lags, and is not asked
// for more often than once a second.
func (c *Cloud) Capabilities() cloud.Capabilities {
	return cloud.Capabilities{ListLag: 20 * time.Second, Poll: time.Second}
}

// Optional are those that cross the socket: what is behind it must have them.
func (c *Cloud) Optional() cloud.Optional {
	return cloud.Optional{Interrupter: c, Disks: c, DiskGrower: c}
}

// Launch is as in cloud.Cloud.
func (c *Cloud) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	all, err := ask[[]launched](ctx, c, pathLaunch, r)
	if err != nil {
		return cloud.NotLaunched(len(r.Machines), err)
	}
	results := make(cloud.LaunchResults, len(all))
	for n, one := range all {
		results[n] = cloud.LaunchResult{Instance: one.Instance, Err: one.Failure.error()}
	}
	return results
}

// List is as in cloud.Cloud.
func (c *Cloud) List(ctx context.Context, owner string) (cloud.Listing, error) {
	return ask[cloud.Listing](ctx, c, pathList, owner)
}

// Describe is as in cloud.Cloud.
func (c *Cloud) Describe(ctx context.Context, ids ...string) ([]cloud.Instance, error) {
	return ask[[]cloud.Instance](ctx, c, pathDescribe, ids)
}

// Terminate is as in cloud.Cloud.
func (c *Cloud) Terminate(ctx context.Context, ids ...string) cloud.Results {
	all, err := ask[[]result](ctx, c, pathTerminate, ids)
	if err != nil {
		return cloud.Each(err, ids...)
	}
	results := make(cloud.Results, len(all))
	for n, one := range all {
		results[n] = cloud.Result{ID: one.ID, Err: one.Failure.error()}
	}
	return results
}

// Interruptions is as in cloud.Interrupter.
func (c *Cloud) Interruptions(ctx context.Context, l cloud.Listener) error {
	resp, err := c.post(ctx, pathInterruptions, struct{}{})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for in := json.NewDecoder(resp.Body); ; {
		var i cloud.Interruption
		if err := in.Decode(&i); err != nil {
			return fmt.Errorf("hear the interruptions of cloud %s: %w", c.name, err)
		}
		l.Notify(i)
	}
}

// CreateDisk is as in cloud.Disks.
func (c *Cloud) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	return ask[cloud.Disk](ctx, c, pathCreateDisk, r)
}

// DeleteDisk is as in cloud.Disks.
func (c *Cloud) DeleteDisk(ctx context.Context, id string) error {
	_, err := ask[struct{}](ctx, c, pathDeleteDisk, id)
	return err
}

// ListDisks is as in cloud.Disks.
func (c *Cloud) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	return ask[[]cloud.Disk](ctx, c, pathListDisks, owner)
}

// AttachDisk is as in cloud.Disks.
func (c *Cloud) AttachDisk(ctx context.Context, id, instance string) error {
	_, err := ask[struct{}](ctx, c, pathAttachDisk, diskOf{id, instance})
	return err
}

// DetachDisk is as in cloud.Disks.
func (c *Cloud) DetachDisk(ctx context.Context, id, instance string) error {
	_, err := ask[struct{}](ctx, c, pathDetachDisk, diskOf{id, instance})
	return err
}

// GrowDisk is as in cloud.DiskGrower.
func (c *Cloud) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	return ask[cloud.Disk](ctx, c, pathGrowDisk, sizeOf{id, bytes})
}

func ask[Out any](ctx context.Context, c *Cloud, path string, in any) (out Out, err error) {
	resp, err := c.post(ctx, path, in)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

func (c *Cloud) post(ctx context.Context, path string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cloud"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask cloud %s: %w", c.name, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusUnprocessableEntity:
		defer resp.Body.Close()
		var f failure
		if err := json.NewDecoder(resp.Body).Decode(&f); err != nil {
			return nil, fmt.Errorf("read the answer of cloud %s: %w", c.name, err)
		}
		return nil, f.error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return nil, fmt.Errorf("cloud %s answered %s: %s", c.name, resp.Status, bytes.TrimSpace(text))
}

// Close drops the connections.
func (c *Cloud) Close() error {
	c.client.CloseIdleConnections()
	return nil
}
