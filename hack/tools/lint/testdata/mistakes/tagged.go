//go:build e2e

package mistakes

// Staticcheck has one that staticcheck finds, in a file that wants a tag.
func Staticcheck(n int) bool { return n == n }
