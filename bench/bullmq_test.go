package main

import "testing"

func TestBullVersion(t *testing.T) {
	t.Parallel()
	text, err := bullFiles.ReadFile("bullmq/package.json")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := bullVersion(text); err != nil || v == "" {
		t.Errorf("bullVersion = %q, %v, want an exact version", v, err)
	}
	for _, text := range []string{``, `{}`, `{"dependencies": {"bullmq": "^6.0.0"}}`, `{"dependencies": {"bullmq": "latest"}}`} {
		if v, err := bullVersion([]byte(text)); err == nil {
			t.Errorf("bullVersion(%s) = %q without an error", text, v)
		}
	}
}
