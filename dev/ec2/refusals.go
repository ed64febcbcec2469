package ec2

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// encodedMessage begins the part of a refusal that only STS can read.
const encodedMessage = " Encoded authorization failure message: "

// sealer seals what only this model can read.
func (m *base) sealer() cipher.AEAD {
	block, err := aes.NewCipher(m.key[:])
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES' blocks have 16 bytes
	}
	return sealer
}

// encoded is why an action on a resource is refused, as EC2 tells it: for STS to decode, and never
// twice the same.
func (m *base) encoded(r *request, action, resource string, about map[string][]string) string {
	type item map[string]any
	list := func(items ...item) item { return item{"items": items} }
	statements, conditions := []item{}, []item{}
	sid, denied := "", false
	for _, p := range []*Policy{m.cfg.Organization, r.policy} {
		if p != nil && !denied {
			sid, denied = p.deniedBy(action, resource, about)
		}
	}
	if denied {
		statements = append(statements, item{
			"statementId": sid,
			"effect":      "DENY",
			"principals":  list(item{"value": r.key}),
			"actions":     list(item{"value": action}),
			"resources":   list(item{"value": resource}),
			"conditions":  list(),
		})
	}
	for _, key := range sortedKeys(about) {
		values := []item{}
		for _, v := range about[key] {
			values = append(values, item{"value": v})
		}
		conditions = append(conditions, item{"key": key, "values": list(values...)})
	}
	text, err := json.Marshal(item{
		"allowed":           false,
		"explicitDeny":      denied,
		"matchedStatements": list(statements...),
		"failures":          list(),
		"context": item{
			"principal":  item{"id": r.key, "name": "kip", "arn": m.callerARN()},
			"action":     action,
			"resource":   resource,
			"conditions": list(conditions...),
		},
	})
	if err != nil {
		panic(err) // strings only
	}
	sealer := m.sealer()
	nonce := make([]byte, sealer.NonceSize())
	rand.Read(nonce)
	return encodedMessage + base64.RawURLEncoding.EncodeToString(sealer.Seal(nonce, nonce, text, nil))
}

// decodedMessage is the answer of STS.
type decodedMessage struct {
	Message string `xml:"DecodedMessage"`
}

// decodeAuthorizationMessage decodes what encoded has made.
func (m *stsService) decodeAuthorizationMessage(r *request) (any, error) {
	text := r.text("EncodedMessage")
	if err := r.done(); err != nil {
		return nil, err
	}
	if m.may(r, "sts:DecodeAuthorizationMessage", "*", nil) != nil {
		return nil, &apiError{403, "AccessDenied", "User is not authorized to perform: sts:DecodeAuthorizationMessage"}
	}
	sealer := m.sealer()
	sealed, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(sealed) < sealer.NonceSize() {
		return nil, errUnreadableMessage
	}
	nonce, sealed := sealed[:sealer.NonceSize()], sealed[sealer.NonceSize():]
	plain, err := sealer.Open(nil, nonce, sealed, nil)
	if err != nil {
		return nil, errUnreadableMessage
	}
	return decodedMessage{string(plain)}, nil
}

var errUnreadableMessage = bad("InvalidAuthorizationMessageException", "Message is not valid.")
