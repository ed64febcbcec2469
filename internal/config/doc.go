// Package config reads provider.yaml: its types, defaults and validation. It
// starts nothing and talks to nothing; whoever is configured gets the values.
//
//	config.go     the keys: types, defaults and what they mean
//	decode.go     strict YAML, with the file and line of every error
//	validate.go   what no single value can tell
//	secret.go     values that are never printed
//	reference.go  docs/provider-configuration.md
package config
