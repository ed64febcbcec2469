// Package cellca owns the CA of the cells as it is stored: it makes it, seals it, and has it rotated. It must not touch a cell: package
// cells moves them from one CA to the next.
package cellca

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

// storeKey is where the CA is stored, and with it the one before while it is being
// rotated.
const storeKey = "ca"

// Stored is what the store has of the CA of the cells.
type Stored struct {
	pki.Authorities // without any, if there is none yet
	// stale says that it is stored otherwise than the sealer would, sealed that it is
	// encrypted.
	stale, sealed bool
	revision      int64
}

// OldHash returns the hash of the old CA; "" where there is none.
func (s Stored) OldHash() string {
	if s.Before == nil {
		return ""
	}
	return s.Before.Hash()
}

// Load returns the CA of the cells, which is made at the first start. It is
// stored as the sealer seals it now, also if it was stored otherwise.
func Load(
	ctx context.Context, st *store.Store, sealer *pki.Sealer, clock clock.PassiveClock, log *slog.Logger,
) (Stored, error) {
	if !sealer.Encrypts() {
		log.Warn("the CA's key is not encrypted in the store: who reads that, or a backup of it, can be Kip to its cells",
			"key", "etcd.encryptionKeyFiles")
	}
	is, err := Read(ctx, st, sealer, clock)
	if err != nil || is.Signing != nil && !is.stale {
		return is, err
	}
	switch {
	case is.Signing == nil:
		if is.Signing, err = pki.New(clock.Now); err != nil {
			return is, fmt.Errorf("make the CA of the cells: %w", err)
		}
	case !is.sealed:
		log.Warn("the CA of the cells was stored without encryption and is encrypted now: if no key was given for the"+
			" first time just now, somebody else writes the store", "key", "etcd.encryptionKeyFiles")
	}
	is.revision, err = write(ctx, st, sealer, is.Authorities, is.revision)
	return is, err
}

// write stores the CA of the cells, and returns the revision of the record.
func write(ctx context.Context, st *store.Store, sealer *pki.Sealer, authorities pki.Authorities, revision int64) (int64, error) {
	data, err := authorities.Encode()
	if err != nil {
		return 0, err
	}
	return st.Put(ctx, storeKey, sealer.Seal(data, storeKey), revision)
}

// Read returns the CA of the cells as it is stored; without any if there is none yet.
func Read(ctx context.Context, st *store.Store, sealer *pki.Sealer, clock clock.PassiveClock) (is Stored, err error) {
	var stored []byte
	if is.revision, err = st.Get(ctx, storeKey, &stored); err != nil || is.revision == 0 {
		return is, err
	}
	data, stale, err := sealer.Open(stored, storeKey)
	if err != nil {
		return is, fmt.Errorf("read the CA of the cells: %w", err)
	}
	is.stale, is.sealed = stale, pki.IsSealed(stored)
	is.Authorities, err = pki.DecodeAuthorities(data, clock.Now)
	return is, err
}

// keyFileLimit is more than a key takes, in bytes.
const keyFileLimit = 1 << 10

// OpenSealer reads the keys of etcd.encryptionKeyFiles. A group may read them, as that
// of a pod's Secret volume does.
func OpenSealer(files []string) (*pki.Sealer, error) {
	keys := make([][]byte, len(files))
	for i, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("etcd.encryptionKeyFiles[%d]: %w", i, err)
		}
		info, err := f.Stat()
		switch {
		case err != nil:
		case info.Mode().Perm()&^0o740 != 0:
			err = fmt.Errorf("%s has the mode %04o: others may read or change it, it must be 0400, or 0440 for a group", name, info.Mode().Perm())
		default:
			keys[i], err = io.ReadAll(io.LimitReader(f, keyFileLimit))
		}
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return nil, fmt.Errorf("etcd.encryptionKeyFiles[%d]: %w", i, err)
		}
	}
	sealer, err := pki.NewSealer(keys...)
	if err != nil {
		return nil, fmt.Errorf("etcd.encryptionKeyFiles: %w", err)
	}
	return sealer, nil
}
