// Package images owns the boot images that an account has in a region of EC2: it uploads,
// registers and removes them. It knows nothing of what is in one, nor of cells.
package images
