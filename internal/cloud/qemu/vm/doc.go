// Package vm owns what QEMU is told: the command line of a machine that boots a cell's
// image, what that boots without firmware, and the words of its monitor. It starts nothing
// and keeps nothing.
package vm
