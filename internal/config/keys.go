package config

import "regexp"

// kmsKey is the form of what EC2 takes as a key of KMS. Source: EC2 API reference, "CreateVolume", KmsKeyId; AWS KMS Developer Guide,
// "Key identifiers (KeyId)".
var kmsKey = func() *regexp.Regexp {
	const (
		arn   = `arn:aws(-[a-z]+)*:kms:[a-z0-9-]+:[0-9]{12}:`
		id    = `(mrk-[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})`
		alias = `alias/[A-Za-z0-9/_-]{1,250}`
	)
	return regexp.MustCompile(`^(` + id + `|` + arn + `key/` + id + `|(` + arn + `)?` + alias + `)$`)
}()
