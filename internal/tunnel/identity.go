package tunnel

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/elotl/kip/internal/pki"
)

// Files of a cell's identity, in its state folder.
const (
	keyFile         = "cell.key"
	certificateFile = "cell.crt"

	blockKey         = "PRIVATE KEY"
	blockCertificate = "CERTIFICATE"
	// headerCell in each of them names the cell, so that a machine made from
	// another's disk does not take that one's identity for its own.
	headerCell = "Kip-Cell"
)

// identity is a cell's key and, once it has joined, its certificate, on disk.
type identity struct {
	dir, cellID string
	key         *ecdsa.PrivateKey
	// unsigned is shown before there is a certificate by Kip's authority: it
	// says which key, and nothing else.
	unsigned *tls.Certificate
	joined   chan struct{} // closed when signed is set

	mu     sync.Mutex
	signed *tls.Certificate
}

// openIdentity reads a cell's identity, or makes and stores a key for it. What
// belongs to another cell is removed.
func openIdentity(dir, cellID string) (*identity, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { // it may have been there
		return nil, fmt.Errorf("close the state folder to others: %w", err)
	}
	id := &identity{dir: dir, cellID: cellID, joined: make(chan struct{})}
	if err := id.loadKey(); err != nil {
		return nil, err
	}
	// Not by Kip's authority, so neither name nor dates matter.
	template := &x509.Certificate{NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, id.key.Public(), id.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for joining: %w", err)
	}
	id.unsigned = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: id.key}
	return id, id.loadCertificate()
}

func (id *identity) loadKey() error {
	der, err := id.read(keyFile, blockKey)
	if errors.Is(err, fs.ErrNotExist) {
		// A certificate without its key is of no use, and if it were kept it
		// would be taken for a fault at the next start.
		if err := os.Remove(filepath.Join(id.dir, certificateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a certificate that has no key: %w", err)
		}
		return id.makeKey()
	}
	if err != nil {
		return err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return fmt.Errorf("read %s: it is not a PKCS #8 private key", filepath.Join(id.dir, keyFile))
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return fmt.Errorf("read %s: it is not an ECDSA key on P-256", filepath.Join(id.dir, keyFile))
	}
	id.key = key
	return nil
}

func (id *identity) makeKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the cell's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the cell's key: %w", err)
	}
	id.key = key
	return id.write(keyFile, blockKey, der)
}

func (id *identity) loadCertificate() error {
	der, err := id.read(certificateFile, blockCertificate)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(id.dir, certificateFile), err)
	}
	if !id.key.PublicKey.Equal(leaf.PublicKey) {
		return fmt.Errorf("read %s: it is for another key than %s", filepath.Join(id.dir, certificateFile), keyFile)
	}
	id.use(leaf)
	return nil
}

// use makes leaf the cell's certificate, from now on for good.
func (id *identity) use(leaf *x509.Certificate) {
	id.signed = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: id.key, Leaf: leaf}
	close(id.joined)
}

// certificate is nil until the cell has joined.
func (id *identity) certificate() *tls.Certificate {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.signed
}

// request is what Kip signs: the key, and nothing else.
func (id *identity) request() ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, id.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return der, nil
}

// accept stores a certificate (DER) that ca issued to this cell. There is only
// ever one.
func (id *identity) accept(der []byte, ca *x509.Certificate) error {
	leaf, err := pki.VerifyOwn(der, ca, id.cellID, &id.key.PublicKey, time.Now())
	if err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.signed != nil {
		return errors.New("this cell has joined already")
	}
	if err := id.write(certificateFile, blockCertificate, der); err != nil {
		return err
	}
	id.use(leaf)
	return nil
}

// renew stores another certificate of this cell, for the same key, and shows it from now on.
func (id *identity) renew(leaf *x509.Certificate) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.signed == nil {
		return errors.New("this cell has not joined yet")
	}
	if err := id.write(certificateFile, blockCertificate, leaf.Raw); err != nil {
		return err
	}
	id.signed = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: id.key, Leaf: leaf}
	return nil
}

// read returns what write wrote for this cell. If it was written for another,
// the file is removed, as if it had never been: fs.ErrNotExist.
func (id *identity) read(name, kind string) ([]byte, error) {
	path := filepath.Join(id.dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the cell's identity: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("read %s: it must be one PEM block %q", path, kind)
	}
	if block.Headers[headerCell] != id.cellID {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the identity of another cell: %w", err)
		}
		return nil, fmt.Errorf("read %s: it was another cell's: %w", path, fs.ErrNotExist)
	}
	return block.Bytes, nil
}

// write replaces a file at once or not at all, and returns when it would
// survive a power cut.
func (id *identity) write(name, kind string, der []byte) error {
	path := filepath.Join(id.dir, name)
	f, err := os.CreateTemp(id.dir, name+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the cell's identity: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone, if it was renamed
	err = pem.Encode(f, &pem.Block{Type: kind, Headers: map[string]string{headerCell: id.cellID}, Bytes: der})
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(id.dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
