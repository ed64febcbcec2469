package kip

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/config"
)

func TestFilesOfRegistriesAreReadAndRefusedIfTheyAreNone(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := file("none.pem", "no PEM")
	for says, r := range map[string]config.Registry{
		"cells.registries[0].caFile: " + none + " has no certificate in PEM": {Host: "a", CAFile: none},
		"cells.registries[0]: " + none + " and " + none + ": tls:":           {Host: "a", ClientCertificateFile: none, ClientKeyFile: none},
		"no such file": {Host: "a", CAFile: filepath.Join(dir, "missing")},
	} {
		if _, err := readRegistries([]config.Registry{r}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	list, err := readRegistries([]config.Registry{{Host: "plain:5000", PlainHTTP: true}})
	if err != nil || len(list) != 1 || list[0].Host != "plain:5000" || !list[0].PlainHTTP || list[0].CA != "" {
		t.Errorf("%+v, %v", list, err)
	}
}
