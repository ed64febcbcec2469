package cells

import "testing"

func TestEachPartHasItsOwnStateOfEachCell(t *testing.T) {
	var parts struct{ first, second perCell[int] }
	a, b := newEntry(Cell{ID: "a"}, 0), newEntry(Cell{ID: "b"}, 0)
	*parts.first.of(a)++
	*parts.first.of(a)++
	*parts.second.of(a) = 7
	if got := [...]int{*parts.first.of(a), *parts.second.of(a), *parts.first.of(b), *parts.second.of(b)}; got != [...]int{2, 7, 0, 0} {
		t.Errorf("held are %v", got)
	}
}
