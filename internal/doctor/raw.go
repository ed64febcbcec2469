package doctor

import (
	"context"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// maxRaw bounds what is read of an answer, in bytes.
const maxRaw = 1 << 20

// Raw returns what gets a path of an API server, with the status and the time of its answer, which clients of objects do not tell.
func Raw(config *rest.Config, server rest.Interface) (func(ctx context.Context, path string) (Answer, error), error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, path string) (Answer, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.Get().AbsPath(path).URL().String(), http.NoBody)
		if err != nil {
			return Answer{}, err
		}
		resp, err := client.Do(r)
		if err != nil {
			return Answer{}, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxRaw))
		if err != nil {
			return Answer{}, err
		}
		date, err := http.ParseTime(resp.Header.Get("Date"))
		if err != nil {
			date = time.Time{} // it does not tell
		}
		return Answer{Status: resp.StatusCode, Date: date, Body: body}, nil
	}, nil
}
