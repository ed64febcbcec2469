package readahead

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore says which pages of a mapping are in memory: bit 0 of each byte.
func mincore(mapping, pages []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(len(mapping)),
		uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
