// Package keyed owns what those who share something may use of it: so much each, by a key such as a cell, a namespace or the
// address that they come from, and so much together. It must not know what that is. What has no key takes its
// limiter from golang.org/x/time/rate.
package keyed
