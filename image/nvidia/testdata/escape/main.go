// Command escape does what a package's program would do to leave its root, and prints what it has got as JSON. The
// argument is a folder of the machine that only root may write to.
package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	var got struct {
		Devices, Interfaces []string
		PID                 int
		Wrote               bool
	}
	got.PID = os.Getpid()
	devices, err := os.ReadDir("/dev")
	if err != nil {
		panic(err)
	}
	for _, d := range devices {
		got.Devices = append(got.Devices, d.Name())
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		panic(err)
	}
	for _, i := range interfaces {
		got.Interfaces = append(got.Interfaces, i.Name)
	}
	if f, err := os.OpenFile("/dev/null", os.O_WRONLY, 0); err != nil {
		panic(err)
	} else if _, err := f.WriteString("x"); err != nil {
		panic(err)
	}
	got.Wrote = leave() == nil && os.WriteFile(filepath.Join(os.Args[1], "escaped"), nil, 0o600) == nil
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		panic(err)
	}
}

// leave gets out of a chroot: a folder that is open when the root changes is outside of it.
func leave() error {
	outside, err := os.Open("/")
	if err != nil {
		return err
	}
	err = errors.Join(os.Mkdir("/inner", 0o700), syscall.Chroot("/inner"), outside.Chdir())
	for range 64 {
		err = errors.Join(err, os.Chdir(".."))
	}
	return errors.Join(err, syscall.Chroot("."))
}
