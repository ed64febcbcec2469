// Package release owns the files of a release: archives of the programs that make has built, the chart, the manifests, krew's
// manifest and the checksums. It compiles nothing and publishes nothing.
package release
