// Command after is command before, beside it, with a limit: one SMS per phone number in any
// 60 seconds. It wants a Redis on localhost:6379, or at $REDIS.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

func main() {
	limit := flag.String("limit", "1/60s", "how many SMS a phone gets, in how long")
	flag.Parse()
	if err := run(*limit); err != nil {
		log.Fatal(err)
	}
}

func run(text string) error {
	ctx := context.Background()
	limit, err := throttle.ParseLimit(text)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: cmp.Or(os.Getenv("REDIS"), "localhost:6379")})
	defer rdb.Close()

	if err := enqueue(asynq.NewClientFromRedisClient(rdb)); err != nil {
		return err
	}
	scheduler := asynq.NewSchedulerFromRedisClient(rdb, nil)
	if _, err := scheduler.Register("0 7 * * *", newTask("email:send", "depot@example.com", "Parcels of the day")); err != nil {
		return err
	}
	if err := scheduler.Start(); err != nil {
		return err
	}
	defer scheduler.Shutdown()

	mux := asynq.NewServeMux()
	mux.HandleFunc("sms:send", sendSMS)
	mux.HandleFunc("email:send", sendEmail)
	perPhone := queue.Policy{Type: "sms:send", Rules: []queue.Rule{
		{Name: "phone", Limit: limit, Key: queue.MustJSONKey("$.to")},
	}}
	pool, err := worker.New(rdb, mux, worker.Config{Asynq: config(), Policies: []queue.Policy{perPhone}})
	if err != nil {
		return err
	}
	return pool.Run(ctx) // until Ctrl-C or SIGTERM
}

func config() asynq.Config {
	return asynq.Config{
		Concurrency:    10,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	}
}

type message struct{ To, Text string }

func newTask(typ, to, text string) *asynq.Task {
	payload, err := json.Marshal(map[string]string{"to": to, "text": text})
	if err != nil {
		panic(err) // strings can be encoded
	}
	return asynq.NewTask(typ, payload, asynq.Retention(24*time.Hour))
}

// enqueue enqueues the messages about five parcels: each is loaded, is near, and arrives.
// The last recipient left something that is not a phone number.
func enqueue(client *asynq.Client) error {
	phones := []string{"+15550100", "+15550101", "+15550102", "+15550103", "ring twice"}
	for i, phone := range phones {
		for _, text := range []string{"loaded", "near", "there"} {
			id := fmt.Sprintf("parcel-%d-%s", i+1, text)
			tasks := []*asynq.Task{
				newTask("sms:send", phone, "Your parcel is "+text),
				newTask("email:send", fmt.Sprintf("customer%d@example.com", i+1), "Your parcel is "+text),
			}
			for _, task := range tasks {
				_, err := client.Enqueue(task, asynq.TaskID(id+"-"+task.Type()))
				if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) { // enqueued by an earlier run
					return err
				}
			}
		}
	}
	return nil
}

// sendSMS would call a gateway for short messages.
func sendSMS(_ context.Context, t *asynq.Task) error {
	var m message
	if err := json.Unmarshal(t.Payload(), &m); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	if !strings.HasPrefix(m.To, "+") {
		return fmt.Errorf("not a phone number: %w", asynq.SkipRetry)
	}
	return report(t, "sms sent: "+m.Text)
}

// sendEmail would call a mail server. This one is busy at the first attempt of some.
func sendEmail(ctx context.Context, t *asynq.Task) error {
	var m message
	if err := json.Unmarshal(t.Payload(), &m); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	if n, _ := asynq.GetRetryCount(ctx); n == 0 && strings.HasSuffix(m.Text, "near") {
		return errors.New("451 try again later")
	}
	return report(t, "e-mail sent: "+m.Text)
}

// report keeps what became of a task where asynq's tools show it.
func report(t *asynq.Task, what string) error {
	log.Println(what)
	_, err := fmt.Fprint(t.ResultWriter(), what)
	return err
}
