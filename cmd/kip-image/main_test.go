package main

import (
	"strings"
	"testing"
)

// Who types a command that is gone is told its successor.
func TestPublishNamesItsSuccessor(t *testing.T) {
	err := commands["publish"](t.Context(), []string{"-cloud=aws", "-region=us-east-1"})
	if err == nil || !strings.Contains(err.Error(), "bin/kipctl image publish --region") {
		t.Error(err)
	}
	if strings.Contains(usage, "publish") {
		t.Errorf("the usage lists it:\n%s", usage)
	}
}
