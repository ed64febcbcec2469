package main

import "golang.org/x/term"

// followSize tells the size of a terminal. Windows does not say when it changes.
func followSize(fd int, tell func(rows, cols uint16)) (stop func()) {
	if cols, rows, err := term.GetSize(fd); err == nil {
		tell(uint16(rows), uint16(cols))
	}
	return func() {}
}
