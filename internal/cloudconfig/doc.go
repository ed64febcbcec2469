// Package cloudconfig owns the format of the operator's cloud-init file: which keys of
// cloud-init Kip carries out, and what they say. It reads bytes only, and touches no file
// and no machine.
package cloudconfig
