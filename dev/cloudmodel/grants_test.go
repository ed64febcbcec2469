package cloudmodel

import (
	"errors"
	"testing"
	"time"
)

func TestAGrantIsForWhoeverHasItsSecretUntilItsTime(t *testing.T) {
	var g Grants[string]
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := g.Of("key", now); !errors.Is(err, errNotGranted) {
		t.Errorf("before anything is granted: %v", err)
	}
	g.Give("key", "much", now.Add(time.Hour))
	for _, tc := range []struct {
		secret string
		after  time.Duration
		want   string
		err    error
	}{
		{"key", 0, "much", nil},
		{"key", time.Hour - 1, "much", nil},
		{"key", time.Hour, "", ErrGrantOver},
		{"another", 0, "", errNotGranted},
	} {
		if got, err := g.Of(tc.secret, now.Add(tc.after)); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s after %v grants %q, %v", tc.secret, tc.after, got, err)
		}
	}
}
