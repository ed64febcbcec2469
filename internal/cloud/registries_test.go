package cloud

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestNothingThatPrintsPullCredentialsShowsThePassword(t *testing.T) {
	const password = "very-secret"
	c := NewPullCredentials("AWS", password, time.Hour)
	if c.Reveal() != password || c.Username != "AWS" || c.Lifetime != time.Hour {
		t.Errorf("%q, %q, %v", c.Username, c.Reveal(), c.Lifetime)
	}
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&shown, verb, c)
		fmt.Fprintf(&shown, verb, &c)
		fmt.Fprintf(&shown, verb, struct{ C PullCredentials }{c})
	}
	slog.New(slog.NewJSONHandler(&shown, nil)).Info("x", "c", c, "p", &c)
	slog.New(slog.NewTextHandler(&shown, nil)).Info("x", "c", c, "p", &c)
	if err := json.NewEncoder(&shown).Encode(c); err != nil {
		t.Error(err)
	}
	for _, form := range []string{password, fmt.Sprintf("%x", password)} {
		if strings.Contains(shown.String(), form) {
			t.Errorf("%s", shown.String())
		}
	}
	if !strings.Contains(shown.String(), "AWS") {
		t.Errorf("nothing was printed: %q", shown.String())
	}
}
