// Package sanitize owns how another's text is made fit for a log or a terminal.
package sanitize

import (
	"bytes"
	"strings"
	"unicode"
)

// Printable returns what may be shown of another's text, in a log or on a terminal:
// what cannot be printed, escape sequences and marks of direction among it, becomes
// a question mark.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return '?'
	}, s)
}

// LastLines returns the end of a text, at most so many lines of so many bytes together, fit for a
// terminal: whoever is root on a machine writes what he likes to its console.
func LastLines(text []byte, most, bytesOfAll int) (lines []string) {
	if cut := len(text) - bytesOfAll; cut > 0 {
		text = text[cut:]
		_, text, _ = bytes.Cut(text, []byte("\n")) // else its first line is the end of one
	}
	for line := range strings.Lines(string(text)) {
		line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", " ")
		if line != "" {
			lines = append(lines, Printable(line))
		}
	}
	return lines[max(0, len(lines)-most):]
}
