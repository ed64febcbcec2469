// Command tally counts the tests that ran against those that the sources have, so
// that no run passes which left some out: a test that no target runs, a package
// whose TestMain ran nothing, a skip that nobody knows of. It owns the list of
// tests that may be skipped, and of those in quarantine. It runs no test: it reads
// sources, and what `go test -json` wrote.
package main
