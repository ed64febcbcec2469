package pki

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestATokenOfABatchIsOfItsCellAlone(t *testing.T) {
	secret := NewBatchSecret()
	again, err := ParseBatchSecret(secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	own := secret.Token("launch-a-1").Reveal()
	if got := again.Token("launch-a-1").Reveal(); got != own {
		t.Error("the same secret and cell give another token")
	}
	for what, other := range map[string]string{
		"another place":  secret.Token("launch-a-2").Reveal(),
		"another batch":  secret.Token("launch-b-1").Reveal(),
		"another secret": NewBatchSecret().Token("launch-a-1").Reveal(),
		"the secret":     secret.Reveal(),
	} {
		if other == own {
			t.Errorf("%s gives the same token", what)
		}
	}
	if !(BatchSecret{}).IsZero() || !(BatchSecret{}).Token("launch-a-1").IsZero() || (BatchSecret{}).Reveal() != "" {
		t.Error("the zero secret has a token")
	}
}

// Agents of other versions compute it too.
func TestATokenOfABatchIsTheOneThatIsDocumented(t *testing.T) {
	raw := bytes.Repeat([]byte{7}, tokenSize)
	secret, err := ParseBatchSecret(base64.RawURLEncoding.EncodeToString(raw))
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, part := range []string{"kip batch token 1", "launch-a-1"} {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	h := hmac.New(sha256.New, raw)
	h.Write(text)
	if got, want := secret.Token("launch-a-1").Reveal(), base64.RawURLEncoding.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("the token is %s, want %s", got, want)
	}
}

func TestTheSecretOfABatchIsNeverPrinted(t *testing.T) {
	secret := NewBatchSecret()
	type holder struct {
		Exported   BatchSecret
		unexported BatchSecret
	}
	var out bytes.Buffer
	for _, v := range []any{secret, &secret, holder{secret, secret}, &holder{secret, secret}, []BatchSecret{secret}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", v)
		if data, err := json.Marshal(v); err == nil {
			t.Errorf("%T: marshalled to %s: lost or leaked", v, data)
		}
	}
	raw := secret.root.secret()
	for name, text := range map[string]string{
		"base64url": secret.Reveal(), "hex": fmt.Sprintf("%x", raw), "raw": string(raw), "numbers": strings.Trim(fmt.Sprint(raw), "[]"),
	} {
		if strings.Contains(out.String(), text) {
			t.Errorf("printed as %s", name)
		}
	}
	if !strings.Contains(out.String(), "***") {
		t.Error("nothing was hidden: the test prints nothing")
	}
	if _, err := ParseBatchSecret(secret.Reveal()[1:]); err == nil || strings.Contains(err.Error(), secret.Reveal()[2:30]) {
		t.Errorf("a cut secret is refused with %v", err)
	}
}
