package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestAKeyOfDisksIsCheckedAtTheStart(t *testing.T) {
	const id = "1234abcd-12ab-34cd-56ef-1234567890ab"
	for key, good := range map[string]bool{
		id:                                     true,
		"mrk-1234abcd12ab34cd56ef1234567890ab": true,
		"arn:aws:kms:us-east-1:123456789012:key/" + id:                true,
		"arn:aws-us-gov:kms:us-gov-west-1:123456789012:alias/cells/a": true,
		"alias/cells":                   true,
		"cells":                         false,
		"key/" + id:                     false,
		"alias/":                        false,
		"arn:aws:kms:us-east-1:1:" + id: false,
		id + "a":                        false,
		"alias/a b":                     false,
	} {
		_, _, err := Parse("p.yaml", fmt.Appendf(nil, "cloud:\n  aws: {kmsKeyID: '%s'}\ncells: {defaultInstanceType: a}\n", key))
		if (err == nil) != good || err != nil && !strings.HasPrefix(err.Error(), "p.yaml:2: cloud.aws.kmsKeyID: \""+key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}
