package cellca

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
)

func keyFile(t *testing.T, b byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	text := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) + "\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTheCAIsEncryptedInTheStoreAndItsKeyCanBeRotated(t *testing.T) {
	st := store.Memory(nil)
	first, second := keyFile(t, 1), keyFile(t, 2)
	var hash string
	for _, c := range []struct {
		says    string
		files   []string
		plain   bool
		rewrite bool
	}{
		{"made without a key", nil, true, true},
		{"started again", nil, true, false},
		{"a key is given", []string{first}, false, true},
		{"started again with it", []string{first}, false, false},
		{"another is put before it", []string{second, first}, false, true},
		{"the old one is dropped", []string{second}, false, false},
	} {
		sealer, err := OpenSealer(c.files)
		if err != nil {
			t.Fatal(err)
		}
		var before []byte
		was, err := st.Get(t.Context(), storeKey, &before)
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		loaded, err := Load(t.Context(), st, sealer, clock.RealClock{}, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatalf("%s: %v", c.says, err)
		}
		var stored []byte
		revision, err := st.Get(t.Context(), storeKey, &stored)
		if err != nil {
			t.Fatal(err)
		}
		plain := bytes.Contains(stored, []byte("PRIVATE KEY"))
		if said := strings.Count(log.String(), "not encrypted"); plain != c.plain || said > 1 || (said == 1) != plain {
			t.Errorf("%s: the key is stored in plain: %t, and the log says %q", c.says, plain, &log)
		}
		if said := strings.Contains(log.String(), "stored without encryption"); said != (c.says == "a key is given") {
			t.Errorf("%s: the log says %q", c.says, &log)
		}
		if (revision != was) != c.rewrite {
			t.Errorf("%s: it was written: %t", c.says, revision != was)
		}
		if hash != "" && loaded.Signing.Hash() != hash {
			t.Errorf("%s: it is another CA", c.says)
		}
		hash = loaded.Signing.Hash()
	}
	for _, files := range [][]string{nil, {first}} {
		sealer, err := OpenSealer(files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Load(t.Context(), st, sealer, clock.RealClock{}, slog.New(slog.DiscardHandler)); !errors.Is(err, pki.ErrSealed) {
			t.Errorf("with the keys %q: %v, want %v", files, err, pki.ErrSealed)
		}
	}
}

func TestAKeyFileThatOthersMayReadIsRefused(t *testing.T) {
	for mode, refused := range map[os.FileMode]bool{
		0o600: false, 0o400: false, 0o440: false, 0o644: true, 0o604: true, 0o660: true, 0o602: true,
	} {
		name := keyFile(t, 1)
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		_, err := OpenSealer([]string{name})
		if refused && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%04o", mode))) || !refused && err != nil {
			t.Errorf("%04o: %v", mode, err)
		}
	}
}
