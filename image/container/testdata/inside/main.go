// Command inside is what the tests put into an image in the place of Kip. It prints what Kip needs of an image.
package main

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"os/exec"
	"os/user"
	"time"
	_ "time/tzdata"
)

func main() {
	found := map[string]any{"uid": os.Getuid(), "args": os.Args[1:]}
	if u, err := user.Current(); err == nil {
		found["user"] = u.Username
	}
	roots, err := x509.SystemCertPool()
	found["roots"] = err == nil && !roots.Equal(x509.NewCertPool())
	_, err = time.LoadLocation("Europe/Berlin")
	found["zones"] = err == nil
	found["kipctl"], _ = exec.LookPath("kipctl")
	found["root"] = os.WriteFile("/x", nil, 0o600) == nil
	_ = json.NewEncoder(os.Stdout).Encode(found)
}
