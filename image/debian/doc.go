// Package debian owns which of Debian's packages the images are made of: the
// lock file that pins each by its digest, their download and their files. It runs
// nothing of them.
package debian
