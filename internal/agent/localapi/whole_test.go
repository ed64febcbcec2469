package localapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// A body that is still being sent when its request is refused hangs both ends:
// see whole.
func TestARequestReachesKipOnlyWithItsWholeBody(t *testing.T) {
	sent := bytes.Repeat([]byte("x"), 1<<20)
	source := &counting{Reader: bytes.NewReader(sent)}
	req, err := http.NewRequest(http.MethodPatch, "https://kip/", source)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := whole{kip: roundTrip(func(r *http.Request) (*http.Response, error) {
		if !source.ended || !source.closed {
			t.Error("it is sent on while the kubelet still sends")
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, sent) || r.ContentLength != int64(len(sent)) {
			t.Errorf("%d bytes arrive of %d, length %d, %v", len(got), len(sent), r.ContentLength, err)
		}
		return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody}, nil
	})}.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("answer %v, %v", resp, err)
	}
}

func TestARequestThatIsTooLargeIsNotSentOn(t *testing.T) {
	req, err := http.NewRequest(http.MethodPost, "https://kip/", strings.NewReader(strings.Repeat("x", maxBody+1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (whole{kip: roundTrip(func(*http.Request) (*http.Response, error) {
		t.Error("it was sent on")
		return nil, nil
	})}).RoundTrip(req); err == nil {
		t.Fatal("no error")
	}
}

// counting notes how its source ends.
type counting struct {
	io.Reader
	ended, closed bool
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.ended = c.ended || err == io.EOF
	return n, err
}

func (c *counting) Close() error { c.closed = true; return nil }

// A reflector that hears of an error lists all objects anew, one whose watch has ended
// watches on.
func TestAWatchThatBreaksOffEndsAndAListThatBreaksOffFails(t *testing.T) {
	p := newPKI(t)
	e := serve(t, p, roundTrip(func(r *http.Request) (*http.Response, error) {
		body := io.MultiReader(strings.NewReader("so far"), iotest.ErrReader(errors.New("the tunnel broke")))
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body), Request: r, Header: http.Header{}}, nil
	}))
	for query, fails := range map[string]bool{"?watch=true": false, "?watch=1&timeoutSeconds=300": false, "": true, "?watch=false": true} {
		resp, err := kubelet(t, p).Get(e.URL() + "/api/v1/services" + query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(got) != "so far" || (err != nil) != fails {
			t.Errorf("services%s: read %q, %v; should fail: %v", query, got, err, fails)
		}
	}
}
