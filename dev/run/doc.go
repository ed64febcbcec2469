// Package run owns what a person sees of Kip on one machine: the progress of
// the start, the story of the example pod, what went wrong, and the end. What
// it shows is done by package stack.
package run
