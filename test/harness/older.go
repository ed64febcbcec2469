package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Older returns the folder of the older Kip that hack/older has built, or why there is none.
func Older() (folder, why string, err error) {
	root, err := Repository()
	if err != nil {
		return "", "", err
	}
	folder = filepath.Join(root, ".kip", "older")
	text, err := os.ReadFile(filepath.Join(folder, "why"))
	if err == nil {
		return "", strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	// hack/older writes it last.
	if _, err := os.Stat(filepath.Join(folder, "commit")); err != nil {
		return "", "", fmt.Errorf("the older Kip is not built (make older-image builds it): %w", err)
	}
	return folder, "", nil
}
