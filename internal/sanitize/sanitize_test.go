package sanitize

import (
	"strings"
	"testing"
)

func TestNoEscapeSequenceIsPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain, ünïcode 世界":            "plain, ünïcode 世界",
		"\x1b]0;title\x07\x1b[2Jgone":  "?]0;title??[2Jgone",
		"one\nlevel=INFO two\r\tthree": "one?level=INFO two??three",
		"\u009b31mC1 \u202eright":      "?31mC1 ?right",
		"\xff\xfe broken":              "?? broken",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}

func TestTheEndOfATextIsBoundedAndSteersNoTerminal(t *testing.T) {
	const most, bytesOfAll = 25, 4 << 10
	long := strings.Repeat("x", 2*bytesOfAll)
	for name, tc := range map[string]struct{ text, first, last string }{
		"an escape sequence": {"\x1b]0;title\x07\x1b[2Jclean\n", "?]0;title??[2Jclean", "?]0;title??[2Jclean"},
		"no UTF-8":           {"\xff\xfe\tok", "?? ok", "?? ok"},
		"many lines":         {strings.Repeat("old\n", 1000) + strings.Repeat("new\n", most), "new", "new"},
		"a long line":        {"old\n" + long + "\nnew", "new", "new"},
		"nothing but one":    {long, "", ""},
		"nothing":            {"", "", ""},
	} {
		got := append(LastLines([]byte(tc.text), most, bytesOfAll), "")
		last := got[max(0, len(got)-2)]
		if got[0] != tc.first || last != tc.last || len(got) > most+1 || len(strings.Join(got, "\n")) > bytesOfAll {
			t.Errorf("%s: %d lines, %.40q to %.40q", name, len(got)-1, got[0], last)
		}
	}
}
