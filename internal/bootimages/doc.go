// Package bootimages owns how the boot images of cells are stored in a registry of container images, beside Kip's own: what they are
// called there, how they are packed, and how one is found. It sends nothing, and knows no cloud.
package bootimages
