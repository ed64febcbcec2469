// Package examples owns the pods that a newcomer runs first. It holds them as
// bytes and talks to nothing.
package examples

import _ "embed"

// Hello is a Job that `make run` runs on a cell of its own.
//
//go:embed hello.yaml
var Hello []byte
