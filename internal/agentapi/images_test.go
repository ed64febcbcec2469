package agentapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestCredentialsOfImagesAreSentAndNotShown(t *testing.T) {
	const password = "very-secret"
	c := ImageCredentials{Username: "AWS", Password: password, KeepFor: time.Minute}
	sent, err := json.Marshal(c)
	var got ImageCredentials
	if err != nil || json.Unmarshal(sent, &got) != nil || got != c {
		t.Errorf("sent %q, %v; %v came", sent, err, got)
	}
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&shown, verb, c)
		fmt.Fprintf(&shown, verb, &c)
	}
	slog.New(slog.NewJSONHandler(&shown, nil)).Info("x", "c", c, "p", &c)
	slog.New(slog.NewTextHandler(&shown, nil)).Info("x", "c", c, "p", &c)
	if strings.Contains(shown.String(), password) || !strings.Contains(shown.String(), "AWS") {
		t.Errorf("%s", shown.String())
	}
}
