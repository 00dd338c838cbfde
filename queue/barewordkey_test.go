package queue

import "testing"

// A key without its "$." was a constant once: all phones stood in one line. Each way in
// which a key can be mistyped is told with both spellings.
func TestBareWordIsNoKey(t *testing.T) {
	t.Parallel()
	for key, fault := range map[string]string{
		"to":        `2:26: the key "to" is ambiguous: write $.to for a field of the payload, or =to for one key that all tasks share`,
		"data.to":   `2:26: the key "data.to" is ambiguous: write $.data.to for a field of the payload, or =data.to for one key that all tasks share`,
		".to":       `2:26: the key ".to" is ambiguous: write $.to for a field...`,
		"acme-2":    `2:26: the key "acme-2" is ambiguous: write $.to for a field of the payload, or =acme-2 for one key that all tasks share`,
		"functions": `2:26: the key "functions" is ambiguous: write $.functions for...`,
	} {
		_, err := read(in("  a: {limit: 1/60s, key: "+key+"}\n", "a"))
		wantFileFaults(t, err, []string{fault})
	}
}
