package cloudmodel

import (
	"slices"
	"testing"
)

func TestPagesGoOnWhereTheLastEndedAlsoInAListThatHasChanged(t *testing.T) {
	id := func(s string) string { return s }
	some, next := Page([]string{"d", "a", "c"}, id, "", 2)
	if !slices.Equal(some, []string{"a", "c"}) || next != "c" {
		t.Fatalf("the first page is %v, the next %q", some, next)
	}
	for _, tc := range []struct{ all, want []string }{
		{[]string{"d", "a", "c"}, []string{"d"}},
		{[]string{"d", "a"}, []string{"d"}},           // what the token names has gone
		{[]string{"d", "b", "c", "a"}, []string{"d"}}, // one has come before it
		{[]string{"c", "a"}, nil},
	} {
		if some, last := Page(tc.all, id, next, 2); !slices.Equal(some, tc.want) || last != "" {
			t.Errorf("the next page of %v is %v, then %q", tc.all, some, last)
		}
	}
}

func TestPagesByPlaceShowEachOnceAndRefuseOtherTokens(t *testing.T) {
	all := []int{7, 7, 8, 9, 7}
	var got []int
	token := ""
	for range all {
		some, next, err := PageAt(all, token, 2)
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, some...); next == "" {
			break
		}
		token = next
	}
	if !slices.Equal(got, all) {
		t.Errorf("the pages have %v, want %v", got, all)
	}
	for _, bad := range []string{"x", "-1"} {
		if _, _, err := PageAt(all, bad, 2); err == nil {
			t.Errorf("the token %q was taken", bad)
		}
	}
	if some, next, err := PageAt(all, "9", 2); len(some) != 0 || next != "" || err != nil {
		t.Errorf("beyond the end: %v, %q, %v", some, next, err)
	}
}
