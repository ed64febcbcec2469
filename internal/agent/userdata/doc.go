// Package userdata finds what a machine was launched with, wherever its cloud or its
// hypervisor has left it: in the firmware, on a disk, or at a metadata service. It does
// not read the document.
package userdata
