package prove

import (
	"bytes"
	"testing"
)

func TestSecretOfFilesIsNotThatOfKeys(t *testing.T) {
	t.Parallel()
	s := secret("a secret of thirty-two bytes, ok")
	if bytes.Equal(s.forKeys(), s.forFiles()) || bytes.Equal(s.forKeys(), s) {
		t.Error("what files are made with is what keys are made with")
	}
}
