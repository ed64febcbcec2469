// Package vm owns what QEMU is told: the command line of a machine that boots a cell's
// image, and the words of its monitor. It starts nothing and keeps nothing.
package vm
