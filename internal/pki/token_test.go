package pki

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestTokenSurvivesRevealAndParse(t *testing.T) {
	tok := NewToken()
	again, err := ParseToken(tok.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if !again.VerifyMAC(tok.MAC([]byte("x")), []byte("x")) {
		t.Error("the parsed token is another")
	}
	if NewToken().Reveal() == tok.Reveal() {
		t.Error("two tokens are the same")
	}
	if tok.IsZero() || !(Token{}).IsZero() || (Token{}).Reveal() != "" {
		t.Error("IsZero or Reveal is wrong about the zero Token")
	}
}

func TestParseTokenRefusesAndDoesNotRepeat(t *testing.T) {
	good := NewToken().Reveal()
	for _, s := range []string{"", "short", good + "=", good + "A", good[:42], strings.Repeat("A", 42) + "B", "!" + good[1:], good + "\n",
		good[:9] + "\r\n" + good[9:]} {
		_, err := ParseToken(s)
		if err == nil {
			t.Errorf("%q: parsed", s)
			continue
		}
		if len(s) > 5 && strings.Contains(err.Error(), s[1:]) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

func TestTokenIsNeverPrinted(t *testing.T) {
	tok := NewToken()
	type holder struct {
		Exported   Token
		unexported Token
	}
	values := []any{tok, &tok, holder{tok, tok}, &holder{tok, tok}, []Token{tok}, map[string]Token{"a": tok}}
	var out bytes.Buffer
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", v)
		if data, err := json.Marshal(v); err == nil {
			t.Errorf("%T: marshalled to %s: lost or leaked", v, data)
		}
	}
	text := out.String()
	raw := tok.secret()
	for name, secret := range map[string]string{
		"base64url": tok.Reveal(), "hex": hex.EncodeToString(raw), "HEX": strings.ToUpper(hex.EncodeToString(raw)),
		"raw": string(raw), "numbers": strings.Trim(fmt.Sprint(raw), "[]"),
	} {
		if strings.Contains(text, secret) {
			t.Errorf("printed as %s", name)
		}
	}
	if !strings.Contains(text, "***") {
		t.Error("nothing was hidden: the test prints nothing")
	}
}

func TestMACTellsPartsApart(t *testing.T) {
	tok, other := NewToken(), NewToken()
	mac := tok.MAC([]byte("ab"), []byte("c"))
	if !tok.VerifyMAC(mac, []byte("ab"), []byte("c")) {
		t.Fatal("its own MAC is refused")
	}
	for name, ok := range map[string]bool{
		"parts cut elsewhere": tok.VerifyMAC(mac, []byte("a"), []byte("bc")),
		"parts joined":        tok.VerifyMAC(mac, []byte("abc")),
		"one more":            tok.VerifyMAC(mac, []byte("ab"), []byte("c"), nil),
		"another token":       other.VerifyMAC(mac, []byte("ab"), []byte("c")),
		"no token":            Token{}.VerifyMAC(nil, []byte("ab")),
		"no MAC":              tok.VerifyMAC(nil, []byte("ab"), []byte("c")),
		"a cut MAC":           tok.VerifyMAC(mac[:16], []byte("ab"), []byte("c")),
	} {
		if ok {
			t.Errorf("%s: accepted", name)
		}
	}
}
