// Package boot owns the boot image of cells in clouds and on virtual machines: a
// kernel with its first file system in one EFI program, a root that nobody writes, and
// the forms in which clouds take a disk. The same inputs make the same bytes. It runs
// none of what it packs, and touches no cloud.
package boot
