package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/elotl/kip/dev/cloudmodel"
)

// Model is the model of EC2 that Kip takes for its cloud.
type Model struct{ URL string }

// Model returns the world's model of EC2; one without a URL if its cloud is another.
func (w *World) Model() Model { return Model{w.Ready["ec2"]} }

// Ask sends a request to the model, whatever the status of the answer.
func (m Model) Ask(ctx context.Context, method, path string, body any) (status int, answer []byte, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, m.URL+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// Order changes what the model does.
func (m Model) Order(ctx context.Context, order string, body any) error {
	return m.control(ctx, http.MethodPost, order, body, nil)
}

// State reads what the account has, as ec2.State.
func (m Model) State(ctx context.Context, state any) error {
	return m.control(ctx, http.MethodGet, "", nil, state)
}

func (m Model) control(ctx context.Context, method, order string, body, answer any) error {
	status, text, err := m.Ask(ctx, method, cloudmodel.ControlPath+order, body)
	switch {
	case err != nil:
	case status != http.StatusOK:
		err = fmt.Errorf("status %d: %s", status, text)
	case answer != nil:
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return fmt.Errorf("%s %q of the model of EC2: %w", method, order, err)
	}
	return nil
}
