package tunnel

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/sanitize"
)

// A join is four messages, on a connection on which the cell already knows Kip
// by its certificate, and Kip does not know the cell:
//
//	Kip  → cell   offer    the cell ID, and a proof that Kip knows the token
//	cell → Kip    request  a certificate request, and a proof of the cell's
//	              Kip records the key's hash: the token is spent on that key
//	Kip  → cell   grant    the certificate
//	              the cell stores it, and from here on refuses every join
//	cell → Kip    done
//
// A proof is an HMAC under the token of who proves, the cell ID, a value that
// only the two ends of this very TLS connection can compute (RFC 9266 calls it
// an exporter), and in the cell's case the request. Relayed to another
// connection, or sent again, it proves nothing.
//
// A crash anywhere leaves a join that can be done again with the same key, and
// with no other: the key is stored before it is used, its hash before the
// certificate leaves.
const (
	kindOffer   = "offer"
	kindRequest = "request"
	kindGrant   = "grant"
	kindDone    = "done"
	kindRefusal = "refusal"

	roleKip  = "kip"
	roleCell = "cell"

	exporterLabel = "EXPORTER-kip-join"

	// maxMessage is several times what the largest, a certificate, needs.
	maxMessage = 8 << 10
	// maxReason bounds what of another's words is repeated.
	maxReason = 200
)

// message is one of a join. On the wire it is JSON behind its length in four
// bytes, big-endian.
type message struct {
	Kind        string `json:"kind"`
	CellID      string `json:"cellID,omitempty"`
	Proof       []byte `json:"proof,omitempty"`
	Request     []byte `json:"request,omitempty"`     // PKCS #10, DER
	Certificate []byte `json:"certificate,omitempty"` // DER
	Reason      string `json:"reason,omitempty"`      // of a refusal
}

// refusedError is the other end's refusal, in its words.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "the other end refused: " + e.reason }

func writeMessage(w io.Writer, m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("a message of %d bytes is larger than the %d allowed", len(body), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readMessage reads the message of a kind that must come next. A refusal in its
// place is a *refusedError.
func readMessage(r io.Reader, kind string) (message, error) {
	var m message
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return m, fmt.Errorf("a message of %d bytes is larger than the %d allowed", n, maxMessage)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return message{}, fmt.Errorf("not a message: %s", printable(err.Error())) // it may quote a key as long as the message
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return message{}, errors.New("not a message: there is more after it")
	}
	switch m.Kind {
	case kind:
		return m, nil
	case kindRefusal:
		return message{}, &refusedError{printable(m.Reason)}
	}
	return message{}, errors.New(printable(fmt.Sprintf("where a message %q belongs came %q", kind, m.Kind)))
}

// printable is what may be shown of a text that is another's.
func printable(s string) string {
	s = sanitize.Printable(s)
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}

// channel is what a proof is bound to: this TLS connection.
func channel(state *tls.ConnectionState) ([]byte, error) {
	key, err := state.ExportKeyingMaterial(exporterLabel, nil, 32)
	if err != nil {
		return nil, fmt.Errorf("bind the join to its TLS connection: %w", err)
	}
	return key, nil
}

func prove(t pki.Token, role, cellID string, channel, request []byte) []byte {
	return t.MAC([]byte(role), []byte(cellID), channel, request)
}

func proven(t pki.Token, proof []byte, role, cellID string, channel, request []byte) bool {
	return t.VerifyMAC(proof, []byte(role), []byte(cellID), channel, request)
}

// granter is Kip's half of a join.
type granter struct {
	authority *pki.Authority
	cellID    string
	token     pki.Token
	// spend records that the token is spent on a key, or refuses that key.
	spend func(keyHash string) error
}

// run does Kip's half on a connection whose handshake is done.
func (g *granter) run(c io.ReadWriter, state *tls.ConnectionState) error {
	ch, err := channel(state)
	if err != nil {
		return err
	}
	if err := writeMessage(c, message{Kind: kindOffer, CellID: g.cellID, Proof: prove(g.token, roleKip, g.cellID, ch, nil)}); err != nil {
		return fmt.Errorf("send the offer: %w", err)
	}
	m, err := readMessage(c, kindRequest)
	if err != nil {
		return fmt.Errorf("read the cell's request: %w", err)
	}
	cert, err := g.grant(m, ch, state)
	if err != nil {
		// It says to the cell only that it was refused, not why.
		_ = writeMessage(c, message{Kind: kindRefusal, Reason: "not this request"})
		return err
	}
	if err := writeMessage(c, message{Kind: kindGrant, Certificate: cert}); err != nil {
		return fmt.Errorf("send the certificate: %w", err)
	}
	if _, err := readMessage(c, kindDone); err != nil {
		return fmt.Errorf("read that the cell has its certificate: %w", err)
	}
	return nil
}

// grant judges the request, spends the token and signs, in this order.
func (g *granter) grant(m message, ch []byte, state *tls.ConnectionState) ([]byte, error) {
	if m.CellID != g.cellID || !proven(g.token, m.Proof, roleCell, g.cellID, ch, m.Request) {
		return nil, errors.New("the machine at this address does not prove that it knows the token of this cell")
	}
	req, err := pki.ParseCellRequest(m.Request)
	if err != nil {
		return nil, err
	}
	keyHash, err := pki.KeyHash(req.PublicKey)
	if err != nil {
		return nil, err
	}
	shown, err := leafHash(state)
	if err != nil {
		return nil, err
	}
	if shown != keyHash {
		return nil, errors.New("the certificate request is for another key than the one of the connection")
	}
	if err := g.spend(keyHash); err != nil {
		return nil, fmt.Errorf("spend the token: %w", err)
	}
	return g.authority.SignCell(m.Request, g.cellID)
}

// leafHash is the pki.KeyHash of who is at the other end.
func leafHash(state *tls.ConnectionState) (string, error) {
	if len(state.PeerCertificates) == 0 {
		return "", errors.New("the other end showed no certificate")
	}
	return pki.KeyHash(state.PeerCertificates[0].PublicKey)
}

// joiner is the cell's half of a join.
type joiner struct {
	id    *identity
	token pki.Token
	// ca verified the certificate that Kip showed on this connection.
	ca *x509.Certificate
}

// run does the cell's half on a connection on which Kip has shown its
// certificate. When it returns nil the certificate is stored.
func (j *joiner) run(c io.ReadWriter, state *tls.ConnectionState) error {
	ch, err := channel(state)
	if err != nil {
		return err
	}
	m, err := readMessage(c, kindOffer)
	if err != nil {
		return fmt.Errorf("read the offer: %w", err)
	}
	if m.CellID != j.id.cellID {
		_ = writeMessage(c, message{Kind: kindRefusal, Reason: "this is cell " + j.id.cellID})
		return fmt.Errorf("the offer is for cell %q, this is %s", printable(m.CellID), j.id.cellID)
	}
	if !proven(j.token, m.Proof, roleKip, j.id.cellID, ch, nil) {
		_ = writeMessage(c, message{Kind: kindRefusal, Reason: "the token is not the one of this cell's user data"})
		return errors.New("the offer does not prove that it knows the token")
	}
	req, err := j.id.request()
	if err != nil {
		return err
	}
	if err := writeMessage(c, message{
		Kind:    kindRequest,
		CellID:  j.id.cellID,
		Request: req,
		Proof:   prove(j.token, roleCell, j.id.cellID, ch, req),
	}); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	m, err = readMessage(c, kindGrant)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	if err := j.id.accept(m.Certificate, j.ca); err != nil {
		_ = writeMessage(c, message{Kind: kindRefusal, Reason: "the certificate is not usable"})
		return err
	}
	// From here on the cell has joined, also if Kip never hears of it: its
	// next connection is an ordinary one.
	_ = writeMessage(c, message{Kind: kindDone})
	return nil
}
