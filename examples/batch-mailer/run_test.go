package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle/gate"
)

// personal matches what nobody may see: an address of the tests or the sample, or a text.
var personal = regexp.MustCompile(`(?i)jane|reader\d|example\.com[^,]|secret|your (order|invoice|parcel)`)

func checkPersonal(t *testing.T, where, s string) {
	t.Helper()
	// A fault says what an address looks like.
	if found := personal.FindString(strings.ReplaceAll(s, "name@example.com", "")); found != "" {
		t.Errorf("%s shows %q:\n%s", where, found, s)
	}
}

// terminal takes what a run writes, and calls on when a line has a text, once.
type terminal struct {
	mu  sync.Mutex
	all bytes.Buffer
	on  map[string]func()
}

func (w *terminal) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(b)
	for text, f := range w.on {
		if bytes.Contains(b, []byte(text)) {
			delete(w.on, text)
			f()
		}
	}
	return len(b), nil
}

func (w *terminal) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// csvOf writes an input of n mails, shared out over recipients.
func csvOf(t *testing.T, n, recipients int) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("to,subject,text\n")
	for i := range n {
		fmt.Fprintf(&b, "jane%d@example.com,Secret %d,\"Secret,\nlike all\"\n", i%recipients, i)
	}
	path := filepath.Join(t.TempDir(), "mails.csv")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newTestSession is a run in which the gate opens after 4 s and an hour takes 2.5 s.
func newTestSession(t *testing.T, e env, stdout, stderr io.Writer, args ...string) *session {
	t.Helper()
	cfg, err := parseFlags(append([]string{"-scale", "1440"}, args...), stdout)
	if err != nil {
		t.Fatal(err)
	}
	mails, err := mailtest.ReadMails(cfg.input)
	if err != nil {
		t.Fatal(err)
	}
	e.lead, e.stdout, e.stderr = 4, stdout, stderr
	e.retryDelay = func(int, error, *asynq.Task) time.Duration { return 100 * time.Millisecond }
	return newSession(cfg, e, mails)
}

// field is what the summary says behind a name.
func field(t *testing.T, summary, name, format string, into ...any) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(.*)$`).FindStringSubmatch(summary)
	if m == nil {
		t.Fatalf("the summary has no %q:\n%s", name, summary)
	}
	if _, err := fmt.Sscanf(m[1], format, into...); err != nil {
		t.Fatalf("%q is not of the form %q: %v", m[1], format, err)
	}
}

// TestRun is the whole job: one batch of two replicas' ticks, nothing before the gate
// opens, the feeder stopped in the middle, each mail once; the summary against the
// server's own log.
func TestRun(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	stderr := &terminal{}
	s := newTestSession(t, env{}, &stdout, stderr, "-input", csvOf(t, 60, 30), "-rate", "10/500ms")
	if err := s.run(t.Context()); err != nil {
		t.Errorf("run: %v\n%s", err, stderr)
	}
	checkPersonal(t, "the terminal", stdout.String()+stderr.String())

	// Mails may overtake one another on their way: the rules are seen in the order in
	// which they were let through, and that none came before that.
	log := s.server.Arrivals()
	slices.SortStableFunc(log, func(a, b mailtest.Arrival) int { return a.Granted.Compare(b.Granted) })
	ids, all, perRecipient := map[string]bool{}, []judge.Spent{}, map[string][]judge.Spent{}
	for _, a := range log {
		ids[a.ID] = true
		if a.Granted.Before(s.clock.Opens) || a.At.Before(a.Granted) {
			t.Errorf("mail %s was let through at %v and came at %v, with the gate open from %v", a.ID, a.Granted, a.At, s.clock.Opens)
		}
		one := judge.Spent{At: a.Granted.UnixMicro(), Cost: 1}
		all, perRecipient[a.To] = append(all, one), append(perRecipient[a.To], one)
	}
	for _, i := range judge.Windows(all, 10, 500*time.Millisecond) {
		t.Errorf("mail %s was let through as one more than 10 in 500ms", log[i].ID)
	}
	for to, mails := range perRecipient {
		if over := judge.Windows(mails, 1, 2500*time.Millisecond); len(over) > 0 {
			t.Errorf("%d mails to %s were let through within 2.5s of the one before", len(over), to)
		}
	}
	if len(log) != 60 || len(ids) != 60 || len(perRecipient) != 30 {
		t.Errorf("%d mails came, %d of them different, to %d recipients; want 60 to 30, each once", len(log), len(ids), len(perRecipient))
	}

	var accepted, recipients, twice int
	field(t, stdout.String(), "accepted", "%d by the SMTP server, for %d recipients; %d", &accepted, &recipients, &twice)
	if accepted != len(log) || recipients != len(perRecipient) || twice != 0 {
		t.Errorf("the summary says %d mails to %d recipients, %d twice; the log has %d to %d", accepted, recipients, twice, len(log), len(perRecipient))
	}
	var admissions int
	var perMail float64
	field(t, stdout.String(), "admissions", "%d, %f per mail", &admissions, &perMail)
	var late time.Duration // a mail that comes late on a busy machine is asked about again
	for _, r := range s.replicas {
		late = max(late, r.pool.Stats().LatenessMax)
	}
	if admissions < 60 || perMail > 1.5 && late < 100*time.Millisecond {
		t.Errorf("%d admissions, %.2f per mail, want 60 or little more", admissions, perMail)
	}
	var first, second string
	field(t, stdout.String(), "fed by", "replica %s from mail 1, then replica %s from", &first, &second)
	if first == second {
		t.Errorf("the batch was fed by %s and %s, want two", first, second)
	}
	for text, times := range map[string]int{"is enqueued": 1, "started: true": 1, "feeds the batch": 2, "is stopped": 1, "ended at": 1} {
		if got := strings.Count(stderr.String(), text); got != times {
			t.Errorf("%q was said %d times, want %d:\n%s", text, got, times, stderr)
		}
	}
}

// TestAnswers: a mailbox that is busy gets its mail later, one that does not exist
// never, and the run says so.
func TestAnswers(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	tries := map[string]int{}
	refuse := func(to string) error {
		mu.Lock()
		defer mu.Unlock()
		tries[to]++
		busy := tries[to] == 1
		switch {
		case to == "jane0@example.com":
			return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no jane0@example.com here"}
		case to == "jane1@example.com" && busy:
			return &smtp.SMTPError{Code: 450, EnhancedCode: smtp.EnhancedCode{4, 2, 1}, Message: "jane1@example.com is busy"}
		case to == "jane2@example.com" && busy:
			return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "jane2@example.com later"}
		}
		return nil
	}
	var stdout bytes.Buffer
	stderr := &terminal{}
	s := newTestSession(t, env{refuse: refuse}, &stdout, stderr, "-input", csvOf(t, 8, 8), "-kill-feeder=false")
	err := s.run(t.Context())
	if want := "1 mail failed for good"; err == nil || err.Error() != want {
		t.Errorf("run = %v, want %q\n%s", err, want, stderr)
	}
	checkPersonal(t, "the terminal", stdout.String()+stderr.String()+fmt.Sprint(err))
	mu.Lock()
	defer mu.Unlock()
	if tries["jane0@example.com"] != 1 || tries["jane1@example.com"] != 2 || tries["jane2@example.com"] != 2 {
		t.Errorf("tries = %v, want 1 for jane0 and 2 for jane1 and jane2", tries)
	}
	if n := len(s.server.Arrivals()); n != 7 {
		t.Errorf("%d mails came, want 7", n)
	}
	var n int64
	for _, r := range s.replicas {
		n += r.pool.Stats().Postponed
	}
	if n != 1 {
		t.Errorf("%d mails were put off, want that which got 450", n)
	}
}

// TestPause: the keys pause the batch and resume it.
func TestPause(t *testing.T) {
	t.Parallel()
	keys, press := io.Pipe()
	defer press.Close()
	type1 := func(key string) func() {
		return func() { go func() { _, _ = press.Write([]byte(key + "\n")) }() }
	}
	var stdout bytes.Buffer
	stderr := &terminal{on: map[string]func(){"feeds the batch": type1("p"), ", paused": type1("r")}}
	s := newTestSession(t, env{keys: keys}, &stdout, stderr, "-input", csvOf(t, 10, 10), "-kill-feeder=false")
	if err := s.run(t.Context()); err != nil {
		t.Errorf("run: %v\n%s", err, stderr)
	}
	_, after, found := strings.Cut(stderr.String(), "  resume\n")
	if !found || !strings.Contains(after, "sent 10 of 10") {
		t.Errorf("want a pause, a resume and 10 mails sent:\n%s", stderr)
	}
	if n := len(s.server.Arrivals()); n != 10 {
		t.Errorf("%d mails came, want 10", n)
	}
}

// TestInterrupt: Ctrl-C cancels the batch, and leaves no task and no batch in Redis.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var stdout bytes.Buffer
	stderr := &terminal{on: map[string]func(){"feeds the batch": interrupt}}
	s := newTestSession(t, env{}, &stdout, stderr, "-input", csvOf(t, 40, 40), "-redis", urlOf(srv))
	if err := s.run(ctx); err != nil {
		t.Errorf("run: %v\n%s", err, stderr)
	}
	if !strings.Contains(stderr.String(), "interrupted: the batch is cancelled") || !strings.Contains(stdout.String(), "cancelled: 40 mails, 0 sent") {
		t.Errorf("want word of the interruption:\n%s%s", stderr, &stdout)
	}
	keys, err := srv.Client(t).Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		checkPersonal(t, "a key", key)
		if strings.Contains(key, ":batch") || strings.Contains(key, ":t:") || strings.HasPrefix(key, "asynq:") {
			t.Errorf("key %s is left", key)
		}
	}
}

func urlOf(srv *redistest.Server) string {
	return fmt.Sprintf("redis://%s/%d", srv.Addr(), srv.ClientOptions().DB)
}

// TestKill: a replica that is killed can't give its batches up, as if it had died; its
// pool can end in good order.
func TestKill(t *testing.T) {
	t.Parallel()
	s := newTestSession(t, env{}, io.Discard, io.Discard, "-input", csvOf(t, 1, 1))
	rdb, closeRedis, err := e2e.OpenRedis(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeRedis()
	s.rdb = rdb
	if err := s.setClock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.server, err = mailtest.Start(s.log, nil); err != nil {
		t.Fatal(err)
	}
	defer s.server.Close()
	r, err := newReplica(s, "replica")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.start(t.Context()); err != nil {
		t.Error(err)
	}
	r.kill()
	if err := r.feedRdb.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the feeder's connection answers %v, want ErrClosed", err)
	}
	if err := r.rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the pool's connection answers %v", err)
	}
	if err := r.close(); err != nil {
		t.Errorf("close = %v", err)
	}
}

// TestNightly: the tick has a task, at whatever time of the day the demonstration begins.
func TestNightly(t *testing.T) {
	t.Parallel()
	for minutes := range 24 * 4 {
		now := time.Date(2026, 2, 28, 0, 15*minutes, 7, 500, time.UTC)
		hours, err := gate.Parse("09:00-21:00 recipient")
		if err != nil {
			t.Fatal(err)
		}
		c, err := mailtest.NewClock(now, hours, 720, leadDefault)
		if err != nil {
			t.Fatal(err)
		}
		s := session{clock: c, tick: c.Begin.Add(tickAt)}
		if _, err := s.nightly().TaskFunc(t.Context(), s.tick.In(c.Zone)); err != nil {
			t.Fatalf("begun at %v the tick has no task: %v", now, err)
		}
	}
}
