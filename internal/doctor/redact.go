package doctor

import (
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// redacted stands for what is left out.
const redacted = "[REDACTED]"

// Redactor leaves secrets out of texts: those that it knows, and what looks like one.
type Redactor struct{ known []string }

// leastKnown is how long a known secret is at least: a shorter one would take pieces out of other words.
const leastKnown = 4

// NewRedactor returns a Redactor that knows some secrets.
func NewRedactor(secrets ...string) *Redactor {
	return &Redactor{slices.DeleteFunc(secrets, func(s string) bool { return len(s) < leastKnown })}
}

// secretName is what the name of something secret has in it.
const secretName = `[A-Za-z0-9_.-]*(?:secret|passw|passphrase|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|` +
	`(?:account|client|encryption|master|session|shared|signing|storage|subscription)[_-]?key|cookie)[A-Za-z0-9_.-]*`

// patterns are what looks like a secret whatever its name, with what stays of it.
var patterns = []struct {
	is    *regexp.Regexp
	stays string
}{
	// A key that is cut off has no end.
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`), redacted},
	// JSON Web Tokens, of service accounts and of OpenID Connect.
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), redacted},
	// Access keys of AWS. Source: IAM User Guide, "IAM identifiers".
	{regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b`), redacted},
	// Credentials of registries in Docker's configuration, base64, also quoted within a string, and in YAML.
	{regexp.MustCompile(`(?i)(\\?"auth\\?"\s*:\s*\\?")(?:[^"\\]|\\/)+`), "${1}" + redacted},
	{regexp.MustCompile(`(?im)^([ \t-]*auth:[ \t]+)["']?[A-Za-z0-9+/]{6,}={0,2}["']?[ \t]*$`), "${1}" + redacted},
	{regexp.MustCompile(`://[^/\s:@"']*:[^/\s@"']+@`), "://" + redacted + "@"},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}`), "$1 " + redacted},
	// Signed addresses, as of S3.
	{regexp.MustCompile(`(?i)\b(X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|sig)=[^&\s"']+`), "$1=" + redacted},
}

// assigned is a value with a name of something secret: quoted, up to the end of the line after a colon, or a word after an equals sign.
var assigned = regexp.MustCompile(`(?i)(["']?` + secretName + `\\?["']?\s*(?:=|:)\s*)("(?:[^"\\]|\\.)*"|\\"[^"]*\\"|'[^']*'|[^\s"'{}\[\],;&]+)`)

// plainValues are no secrets, whatever they are called.
var plainValues = []string{"true", "false", "null", redacted, `"` + redacted + `"`, "'" + redacted + "'", `""`, "''"}

// Text returns a text without secrets. A JSON stays one.
func (r *Redactor) Text(text []byte) []byte {
	s := string(text)
	for _, secret := range r.known {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	for _, p := range patterns {
		s = p.is.ReplaceAllString(s, p.stays)
	}
	s = assigned.ReplaceAllStringFunc(s, func(all string) string {
		parts := assigned.FindStringSubmatch(all)
		name, value := parts[1], parts[2]
		switch {
		case slices.Contains(plainValues, value):
			return all
		case strings.HasPrefix(value, `\"`):
			return name + `\"` + redacted + `\"`
		case strings.HasPrefix(value, `"`), strings.Count(name, `"`) == 2 && !strings.Contains(name, `\`): // a number, in a JSON
			return name + `"` + redacted + `"`
		}
		return name + redacted
	})
	return []byte(s)
}

// isSecretName matches the names of keys of a provider.yaml whose values are secrets, or may be. The key of a taint is none.
var isSecretName = regexp.MustCompile(`(?i)^(?:` + secretName + `|.+key|auth)$`)

// YAML returns a provider.yaml without secrets and comments: whatever is below a key with the name of something secret is left out, and
// so are settings of cells of earlier releases, which may be anything.
func (r *Redactor) YAML(text []byte) []byte {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return []byte("# This is no YAML, and left out: " + string(r.Text([]byte(err.Error()))) + "\n")
	}
	out, err := yaml.Marshal(withoutSecrets(tree))
	if err != nil {
		return []byte("# It cannot be written, and is left out.\n")
	}
	return r.Text(out)
}

func withoutSecrets(tree any) any {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			if isSecretName.MatchString(key) || key == "cellConfig" {
				t[key] = redacted
			} else {
				t[key] = withoutSecrets(value)
			}
		}
	case []any:
		for n := range t {
			t[n] = withoutSecrets(t[n])
		}
	}
	return tree
}
