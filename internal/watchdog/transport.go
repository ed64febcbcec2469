package watchdog

import (
	"io"
	"net/http"
)

// Transport declares a wait of the task of each request, for its answer and for the
// answer's body.
func Transport(next http.RoundTripper, on On) http.RoundTripper { return transport{next, on} }

type transport struct {
	next http.RoundTripper
	on   On
}

// WrappedRoundTripper is the transport below, for libraries that look for one.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	over := Wait(ctx, t.on)
	response, err := t.next.RoundTrip(r)
	over()
	if held, _ := ctx.Value(taskKey{}).(*task); held == nil || err != nil || response.StatusCode == http.StatusSwitchingProtocols {
		return response, err
	}
	response.Body = body{response.Body, r, t.on}
	return response, nil
}

// body is that of an answer.
type body struct {
	io.ReadCloser
	of *http.Request
	on On
}

func (b body) Read(p []byte) (int, error) {
	defer Wait(b.of.Context(), b.on)()
	return b.ReadCloser.Read(p)
}
