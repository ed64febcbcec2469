package main

import (
	"bytes"
	"io"
	"testing"
)

func TestWhatAPodPrintsIsBounded(t *testing.T) {
	var a answer
	if _, err := io.Copy(&a, bytes.NewReader(make([]byte, 2*maxAnswer))); err == nil || a.text.Len() > maxAnswer {
		t.Errorf("%d bytes are kept, %v: want an error, and at most %d", a.text.Len(), err, maxAnswer)
	}
}
