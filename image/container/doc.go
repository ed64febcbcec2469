// Package container owns the OCI images of Kip itself: their files, their configuration, their lists of software, where they are
// written, and how they are pushed. It compiles no program, and runs nothing of an image.
package container
