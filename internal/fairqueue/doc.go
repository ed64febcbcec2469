// Package fairqueue owns the order in which a work queue hands out its items: one of each share in turn, so that a share
// with many items delays the others by one item each. It must not know what the items are.
package fairqueue
