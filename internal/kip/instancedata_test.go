package kip

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKipDoesNotStartWithoutTheInstanceDataThatItIsGiven(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data.json")
	if data, err := instanceData(""); data != nil || err != nil {
		t.Errorf("without a file: %v, %v", data, err)
	}
	if _, err := instanceData(file); err == nil || !strings.HasPrefix(err.Error(), "--instance-data-path: open "+file) {
		t.Errorf("where it is missing: %v", err)
	}
	for _, c := range [][2]string{
		{`{"local": [{"instanceType": "nano", "price": 0.01, "memory": 0.25, "cpu": 0.25}]}`, ""},
		{"{\n\"local\": [{\"instanceType\": \"nano\"}]}",
			"--instance-data-path: " + file + ":2: local[0].cpu: it is missing"},
	} {
		text, want := c[0], c[1]
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := instanceData(file)
		if want == "" && (err != nil || len(data["local"]) != 1) || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, %v, want %q", text, data, err, want)
		}
	}
}
