// Package spdx owns the lists of software that images have, as SPDX 2.3 in JSON. It reads no image: it lists the packages and
// programs that it is given.
package spdx
