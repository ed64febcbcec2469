// Package cloudtest owns the tests that every cloud must pass: what the
// interface in package cloud promises to those who call it. It knows no cloud.
package cloudtest
