package deviceplugin

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/gpus"
)

func TestTheModuleThatNoDeviceAsksForIsLoadedOnce(t *testing.T) {
	const driver, devices = "proc/driver/nvidia/gpus/0000:00:1e.0/information", "proc/devices"
	for name, c := range map[string]struct {
		files  map[string]string
		script string // modprobe; there is none when empty
		asked  string
		err    string
	}{
		"a driver without it": {map[string]string{driver: "", devices: "195 nvidia\n"}, "exit 0", "nvidia-uvm\n", ""},
		"it is there":         {map[string]string{driver: "", devices: "195 nvidia\n511 nvidia-uvm\n"}, "exit 1", "", ""},
		"no driver":           {map[string]string{devices: "1 mem\n"}, "exit 1", "", ""},
		"no modules":          {map[string]string{driver: "", devices: "195 nvidia\n"}, "", "", ""},
		"an image without it": {map[string]string{driver: "", devices: "195 nvidia\n"}, "echo no such module >&2; exit 1", "nvidia-uvm\n",
			"no such module"},
	} {
		t.Run(name, func(t *testing.T) {
			root, bin := t.TempDir(), t.TempDir()
			asked := filepath.Join(root, "asked")
			write := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for path, text := range c.files {
				write(filepath.Join(root, path), text)
			}
			if c.script != "" {
				write(filepath.Join(bin, "modprobe"), "#!/bin/sh\necho \"$@\" > "+asked+"\n"+c.script+"\n")
			}
			t.Setenv("PATH", bin)
			p := New(Options{Machine: gpus.Machine{Root: root}, Log: slog.New(slog.DiscardHandler)})
			err := p.loadUVM(t.Context())
			if got, _ := os.ReadFile(asked); string(got) != c.asked {
				t.Errorf("modprobe was asked for %q: want %q", got, c.asked)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v: want %q", err, c.err)
			}
			if name != "no driver" || t.Failed() {
				return
			}
			write(filepath.Join(root, driver), "")
			if err := p.loadUVM(t.Context()); err == nil {
				t.Error("the driver has come, and its module was not asked for")
			}
			if err := p.loadUVM(t.Context()); err != nil {
				t.Errorf("it was asked for again: %v", err)
			}
		})
	}
}
