package config

import (
	"fmt"
	"log/slog"
)

// Secret is a text that no log, error or marshalled copy shows.
type Secret string

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// String is "***", or "" when there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// Format prints String, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// MarshalText is for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is for log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
