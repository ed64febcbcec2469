// Package nvidia owns what of NVIDIA's driver is in a boot image. It builds the open kernel
// modules for the image's kernel, and chooses the firmware, libraries and programs that belong to
// them. All of it is of Debian's packages. It writes no image, and finds no GPU.
package nvidia
