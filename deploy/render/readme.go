package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A value is a key of values.yaml with its comment.
type value struct {
	key, fallback, meaning string
}

// readValues returns the keys of a values.yaml in its order. Each key has a comment that
// begins with --, or is a map whose keys have one.
func readValues(text []byte) ([]value, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("parse values: %w", err)
	}
	return valuesOf("", document.Content[0])
}

func valuesOf(prefix string, m *yaml.Node) ([]value, error) {
	var out []value
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, v := m.Content[i], m.Content[i+1]
		path := prefix + key.Value
		meaning, described := strings.CutPrefix(uncomment(key.HeadComment), "-- ")
		switch {
		case described:
			fallback, err := inline(v)
			if err != nil {
				return nil, fmt.Errorf("value %s: %w", path, err)
			}
			out = append(out, value{path, fallback, meaning})
		case v.Kind == yaml.MappingNode && len(v.Content) > 0:
			below, err := valuesOf(path+".", v)
			if err != nil {
				return nil, err
			}
			out = append(out, below...)
		default:
			return nil, fmt.Errorf("value %s has no comment: it must have one that begins with # --", path)
		}
	}
	return out, nil
}

// uncomment joins the lines of a comment.
func uncomment(comment string) string {
	var words []string
	for line := range strings.Lines(comment) {
		words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
	}
	return strings.Join(words, " ")
}

// inline is a value in one line.
func inline(v *yaml.Node) (string, error) {
	var decoded any
	if err := v.Decode(&decoded); err != nil {
		return "", err
	}
	if decoded == nil || decoded == "" {
		return "", nil
	}
	text, err := json.Marshal(decoded)
	return "`" + strings.Trim(string(text), `"`) + "`", err
}

const begin, end = "<!-- values -->\n", "<!-- /values -->\n"

// withValues returns a README with the table of a values.yaml.
func withValues(readme, values string) ([]byte, error) {
	page, err := os.ReadFile(readme)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(values)
	if err != nil {
		return nil, err
	}
	all, err := readValues(text)
	if err != nil {
		return nil, err
	}
	before, rest, found := bytes.Cut(page, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !found || !ended {
		return nil, errors.New(readme + ": it must have the lines " + begin + end)
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(begin + "\n| key | default | meaning |\n| --- | --- | --- |\n")
	for _, v := range all {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", v.key, v.fallback, v.meaning)
	}
	out.WriteString("\n" + end)
	out.Write(after)
	return out.Bytes(), nil
}
