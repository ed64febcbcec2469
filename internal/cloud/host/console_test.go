package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConsoleKeepsItsEndAndGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	write := func(s string) {
		if _, err := writer.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := boundConsole(path); err != nil {
			t.Fatal(err)
		}
	}
	write("short")
	if b, err := os.ReadFile(path); err != nil || string(b) != "short" {
		t.Fatalf("a short log became %q, %v", b, err)
	}
	write(strings.Repeat("x", maxConsole) + "the end")
	write(", and on")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != keptConsole+len(", and on") || !strings.HasSuffix(string(b), "xthe end, and on") {
		t.Errorf("%d bytes, ending in %q", len(b), b[max(0, len(b)-20):])
	}
	if err := boundConsole(path + "-of-a-machine-that-is-gone"); err != nil {
		t.Error(err)
	}
}
