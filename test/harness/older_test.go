package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheOlderKipIsThereOrItIsSaidWhyNot(t *testing.T) {
	for name, c := range map[string]struct {
		files    []string
		why, err string
	}{
		"built":         {files: []string{"commit"}},
		"not built":     {err: "make older-image"},
		"half built":    {files: []string{"bin"}, err: "make older-image"},
		"cannot be had": {files: []string{"why"}, why: "it is in why"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			older := filepath.Join(root, ".kip", "older")
			if err := os.MkdirAll(older, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, file := range append(c.files, "../../go.mod") {
				if err := os.WriteFile(filepath.Join(older, file), []byte("it is in "+file+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(root)
			folder, why, err := Older()
			if why != c.why || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("why %q, error %v: want %q, %q", why, err, c.why, c.err)
			}
			if ok := c.why+c.err == ""; ok != strings.HasSuffix(folder, filepath.Join(".kip", "older")) {
				t.Errorf("it is in %q", folder)
			}
		})
	}
}
