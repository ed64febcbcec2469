// Package image assembles the root tree of a cell's machine from static
// programs: itzo, runc, busybox and the pause image. No distribution is needed.
// It writes one tree under one directory, and nothing of a machine: those are
// the clouds'.
package image
