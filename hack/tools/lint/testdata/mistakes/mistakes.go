// Package mistakes has what make lint must find: hack/lint-works.
package mistakes

import "fmt"

// Vet has a mistake that vet finds.
func Vet() { fmt.Printf("%d", "no number") }
