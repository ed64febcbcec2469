package adminapi

import (
	"fmt"
	"os"
	"path/filepath"
)

// maxPath is how long the name of a unix socket may be on Linux: sun_path less
// its final zero.
const maxPath = 107

// withAddress calls f with a name by which the socket at path can be listened on
// or dialled: path itself or, if that is too long for a socket, one through this
// process's handle of its folder.
func withAddress(path string, f func(address string) error) error {
	if len(path) <= maxPath {
		return f(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
