//go:build !windows

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// followSize tells the size of a terminal, now and when it changes, until stop is called.
func followSize(fd int, tell func(rows, cols uint16)) (stop func()) {
	changed, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if cols, rows, err := term.GetSize(fd); err == nil {
				tell(uint16(rows), uint16(cols))
			}
			select {
			case <-changed:
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		close(done)
		<-ended
	}
}
