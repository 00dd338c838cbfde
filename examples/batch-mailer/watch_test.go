package main

import (
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/e2e/mailtest"
)

// TestNoTick: a run whose schedule did not tick says so, and does not wait for ever.
func TestNoTick(t *testing.T) {
	t.Parallel()
	s := &session{clock: mailtest.Clock{Zone: time.UTC}, tick: time.Now().Add(-tickLate / 2)}
	if _, err := s.look(t.Context()); err != nil {
		t.Errorf("look = %v, want none yet", err)
	}
	s.tick = time.Now().Add(-tickLate - time.Second)
	if _, err := s.look(t.Context()); err == nil || !strings.Contains(err.Error(), "no batch came of the tick") {
		t.Errorf("look = %v, want that no batch came", err)
	}
}
