package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Schema returns deploy/helm/kip/provider.schema.json: the keys of provider.yaml and what kind of value each takes, for tools
// that check a file before Kip reads it. Kip itself checks more.
func Schema() (string, error) {
	data, err := json.MarshalIndent(schemaOf(reflect.TypeFor[Config]()), "", "  ")
	if err != nil {
		return "", fmt.Errorf("write the schema of provider.yaml: %w", err)
	}
	return string(data) + "\n", nil
}

// schemaOf is the schema of values of a type.
func schemaOf(t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer && !isScalar(t.Elem()) {
		keys := schemaOf(t.Elem())
		keys["type"] = []string{"object", "null"} // "local:" alone chooses that cloud
		return keys
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case t == typeDuration:
		return map[string]any{"type": "number"}
	case t == typeQuantity:
		return map[string]any{"type": []string{"string", "number"}}
	case isScalar(t) && t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case isScalar(t) && t.Kind() == reflect.Int:
		return map[string]any{"type": "integer"}
	case isScalar(t):
		return map[string]any{"type": "string"}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	}
	properties := map[string]any{}
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("key")
		if key == "" {
			continue
		}
		value := schemaOf(f.Type)
		if f.Tag.Get("list") != "" {
			value = map[string]any{"anyOf": []any{value, schemaOf(reflect.TypeFor[[]string]())}}
		}
		if words := strings.Fields(f.Tag.Get("auto")); len(words) > 0 {
			value = map[string]any{"anyOf": []any{map[string]any{"enum": words}, value}}
		}
		properties[key] = value
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}
