package queue

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
)

func TestTaskKeepsWhatItWasGiven(t *testing.T) {
	t.Parallel()
	payload := []byte(`{"to":"1"}`)
	headers := map[string]string{"trace": "a"}
	opts := []asynq.Option{asynq.MaxRetry(1), asynq.Queue("q")}
	task := NewTaskWithHeaders("sms:send", payload, headers, opts...)

	// neither the caller's values nor the copies lead back into the task
	for range 2 {
		payload[0], headers["trace"], opts[0] = 'x', "b", asynq.MaxRetry(2)
		payload, headers, opts = task.Payload(), task.Headers(), task.Options()
	}
	if task.Type() != "sms:send" || string(payload) != `{"to":"1"}` {
		t.Errorf("task is %q with payload %q", task.Type(), payload)
	}
	if diff := cmp.Diff(map[string]string{"trace": "a"}, headers); diff != "" {
		t.Errorf("Headers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"MaxRetry(1)", `Queue("q")`}, optionTexts(opts)); diff != "" {
		t.Errorf("Options (-want +got):\n%s", diff)
	}
}

func TestTaskSharesNothingWithAsynq(t *testing.T) {
	t.Parallel()
	task := NewTaskWithHeaders("t", []byte("p"), map[string]string{"h": "1"})
	one := task.asynqTask()
	one.Payload()[0], one.Headers()["h"] = 'x', "2"
	two := task.asynqTask()
	if one == two || string(two.Payload()) != "p" || two.Headers()["h"] != "1" {
		t.Errorf("the second task has payload %q and headers %v, want p and 1", two.Payload(), two.Headers())
	}
}

func TestTaskWithNothing(t *testing.T) {
	t.Parallel()
	task := NewTask("t", nil)
	if task.Payload() != nil || task.Headers() != nil || task.Options() != nil {
		t.Errorf("task has %v, %v, %v, want nil for all", task.Payload(), task.Headers(), task.Options())
	}
}

func optionTexts(opts []asynq.Option) []string {
	var texts []string
	for _, opt := range opts {
		texts = append(texts, opt.String())
	}
	return texts
}
