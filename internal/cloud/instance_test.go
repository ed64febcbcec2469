package cloud

import "testing"

func TestAListingCoversTheZonesThatWereLookedAt(t *testing.T) {
	for _, tc := range []struct {
		missing []string
		zone    string
		covers  bool
	}{
		{nil, "a", true},
		{nil, "", true}, // nothing is missing, wherever the instance is
		{[]string{}, "", true},
		{[]string{"a"}, "a", false},
		{[]string{"a"}, "b", true},
		{[]string{"a", "b"}, "b", false},
		{[]string{"a"}, "", false}, // it may be in a
		{[]string{""}, "", false},
		{[]string{""}, "a", true},
	} {
		if got := (Listing{Missing: tc.missing}).Covers(tc.zone); got != tc.covers {
			t.Errorf("without %q it covers zone %q: %t, want %t", tc.missing, tc.zone, got, tc.covers)
		}
	}
}
