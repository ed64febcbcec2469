package cloudmodel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Page returns one page of a list, of at most so many, and the token of the next; "" if this is the last. A token is the ID of
// what was shown last, so that it says what is next also if the list has changed since. The list is put in the order of the IDs.
func Page[T any](all []T, id func(T) string, token string, most int) (some []T, next string) {
	slices.SortStableFunc(all, func(a, b T) int { return strings.Compare(id(a), id(b)) })
	for _, one := range all {
		if token != "" && id(one) <= token {
			continue
		}
		if len(some) == most {
			return some, id(some[most-1])
		}
		some = append(some, one)
	}
	return some, ""
}

// PageAt does so for a list that may have the same ID twice, and does not change. A token is a place in the list.
func PageAt[T any](all []T, token string, most int) (some []T, next string, err error) {
	first := 0
	if token != "" {
		if first, err = strconv.Atoi(token); err != nil || first < 0 {
			return nil, "", fmt.Errorf("the token of the page is %q: want that of an answer", token)
		}
	}
	last := min(len(all), first+most)
	if last < len(all) {
		next = strconv.Itoa(last)
	}
	return all[min(first, last):last], next, nil
}
