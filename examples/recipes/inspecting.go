package recipes

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/inspect"
)

// Explain says in words why a task does not run.
func Explain(ctx context.Context, inspector *inspect.Inspector, id string) (string, error) {
	w, err := inspector.Explain(ctx, "default", id)
	if err != nil {
		return "", err
	}
	in := w.At.Sub(w.Now).Round(time.Second)
	switch w.State {
	case inspect.StateLimit, inspect.StateSlot:
		return fmt.Sprintf("waits for %s, %d before it, for %v", w.Rule, w.Jobs, in), nil
	case inspect.StateClosed:
		return fmt.Sprintf("%s is closed for %v", w.Rule, w.Closed.Sub(w.Now).Round(time.Second)), nil
	case inspect.StateGate:
		return fmt.Sprintf("%s opens in %v", w.Rule, in), nil
	}
	return w.State.String(), nil
}

// First are the first n messages that wait for a phone.
func First(ctx context.Context, inspector *inspect.Inspector, phone string, n int) (ids []string, err error) {
	for w, err := range inspector.Line(ctx, "phone-minute", phone) {
		if err != nil || len(ids) == n {
			return ids, err
		}
		ids = append(ids, w.ID)
	}
	return ids, nil
}
