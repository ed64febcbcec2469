package config

import (
	"fmt"
	"reflect"
	"strings"
)

// key is one key of the file, as the reference lists it.
type key struct {
	path, kind, def, doc, clouds, deprecated string
}

// keys are all keys of provider.yaml, in the order of Config.
var keys = keysUnder("", reflect.TypeFor[Config]())

func keysUnder(path string, t reflect.Type) []key {
	var all []key
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Tag.Get("key") == "" {
			continue
		}
		k := key{
			path:       join(path, f.Tag.Get("key")),
			def:        f.Tag.Get("default"),
			doc:        f.Tag.Get("doc"),
			clouds:     f.Tag.Get("clouds"),
			deprecated: deprecation(f.Tag),
		}
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		k.kind = kindOf(ft)
		if f.Tag.Get("list") != "" {
			k.kind += ", or list of " + k.kind
		}
		all = append(all, k)
		switch {
		case ft.Kind() == reflect.Struct && !isScalar(ft):
			all = append(all, keysUnder(k.path, ft)...)
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct && !isScalar(ft.Elem()):
			all = append(all, keysUnder(k.path+"[]", ft.Elem())...)
		}
	}
	return all
}

func kindOf(t reflect.Type) string {
	switch t {
	case typeSecret:
		return "text, secret"
	case typeDuration:
		return "seconds"
	case typeQuantity:
		return "quantity"
	case typePrefix:
		return "CIDR"
	case typeAddr:
		return "IP address"
	case typeCapacity:
		return "quantity by resource"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "whole number"
	case reflect.Slice:
		return "list of " + kindOf(t.Elem())
	case reflect.Map:
		return kindOf(t.Elem()) + " by name"
	case reflect.Struct:
		return "keys"
	}
	return "text"
}

// Reference returns docs/provider-configuration.md.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# provider.yaml

<!-- Generated from internal/config by: go test ./internal/config -run TestReference -update -->

The file that ` + "`kip --provider-config`" + ` names. It is read strictly: an unknown key, a
wrong type or an impossible value is an error that names file, line, key and what
is allowed, and all of them are reported at once. The least that it needs:

` + "```yaml" + `
apiVersion: v1
kind: serverConfig
cloud:
  local: {}
cells:
  defaultInstanceType: nano
` + "```" + `

Quantities are written as in Kubernetes (500m, 5Gi). Secret values appear in no log
and no error. A key marked with clouds has no effect with another cloud.
`)
	for _, k := range keys {
		if !strings.Contains(k.path, ".") {
			section := strings.HasSuffix(k.kind, "keys")
			// A section of its own for each top-level key that has keys.
			if section {
				fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", k.path, k.doc)
			} else if k.path == "apiVersion" {
				b.WriteString("\n## The file itself\n\n")
			}
			if section || k.path == "apiVersion" {
				b.WriteString("| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
			}
			if section {
				continue
			}
		}
		def, doc := "", k.doc
		if k.def != "" {
			def = "`" + k.def + "`"
		}
		if k.clouds != "" {
			doc += " Clouds: " + strings.ReplaceAll(k.clouds, ",", ", ") + "."
		}
		if k.deprecated != "" {
			doc = "Deprecated: " + k.deprecated + ". " + doc
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.path, k.kind, def, doc)
	}
	return b.String()
}
