package suggest

import "testing"

func TestNearestFindsSlipsAndNothingElse(t *testing.T) {
	known := []string{"region", "subnetID", "vpcID", "cidr", "dataDir"}
	for word, want := range map[string]string{
		"regoin":   "region", // swapped
		"subnetId": "subnetID",
		"SUBNETID": "subnetID",
		"vpc":      "",
		"cdir":     "cidr",
		"datadirs": "dataDir",
		"bridge":   "",
		"":         "",
		"x":        "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestDistanceCountsEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"Spot", "spot", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := distance(c.b, c.a); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d: it must be symmetric", c.b, c.a, got, c.want)
		}
	}
}
