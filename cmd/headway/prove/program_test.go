package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"

	"github.com/headwayq/headway/internal/e2e"
)

// result is what a run left.
type result struct {
	code           int
	stdout, stderr string
	report         e2e.Report // with -report
	raw            map[string]any
	files          string // report, grants and arrivals as they are
}

// program is a run that is to come.
type program struct {
	t    *testing.T
	args []string
	env  env
	dir  string
}

// newProgram makes a program with -report and, where the role has one, -grants.
func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, dir: t.TempDir()}
	p.args = append(args, "-report", p.path("report"))
	return p
}

func (p *program) path(name string) string { return filepath.Join(p.dir, name) }

// run runs the program until it ends, and checks that nothing that it wrote
// shows a phone number or a text.
func (p *program) run(ctx context.Context) result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	e := p.env
	e.stdout, e.stderr = &stdout, &stderr
	if e.stdin == nil {
		e.stdin = strings.NewReader("")
	}
	r := result{code: run(ctx, p.args, e), stdout: stdout.String(), stderr: stderr.String()}
	if b, err := os.ReadFile(p.path("report")); err == nil && len(b) > 0 {
		if err := json.Unmarshal(b, &r.report); err != nil {
			p.t.Error(err)
		}
		if err := json.Unmarshal(b, &r.raw); err != nil {
			p.t.Error(err)
		}
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.t.Error(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(p.path(e.Name()))
		if err != nil {
			p.t.Error(err)
		}
		r.files += string(b)
	}
	checkPersonal(p.t, "stdout, stderr or a file", r.stdout+r.stderr+r.files)
	return r
}

// personal matches what nobody may see: a phone of the sample or of csvOf in
// clear, or a text.
var personal = regexp.MustCompile(`1202555\d|4477009\d|6149157\d|3319900\d|4670174\d|(?i)your (code|parcel)|hello`)

func checkPersonal(t *testing.T, where, s string) {
	t.Helper()
	if found := personal.FindString(s); found != "" {
		t.Errorf("%s shows %q:\n%s", where, found, s)
	}
}

// want checks the exit code and prints what there was to see if it is wrong.
func (r result) want(t *testing.T, code int) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d; stdout:\n%sstderr:\n%s", r.code, code, r.stdout, r.stderr)
	}
}

// csvOf returns an input with n messages, shared out over phones.
func csvOf(n, phones int) string {
	var b strings.Builder
	b.WriteString("to,text\n")
	for i := range n {
		fmt.Fprintf(&b, "+1202555%04d,hello %d\n", i%phones, i)
	}
	return b.String()
}

// gatewayOf answers with what f says, by the number of the message's try.
func gatewayOf(t *testing.T, f func(m e2e.Message, try int) int) string {
	t.Helper()
	var mu sync.Mutex
	tries := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m e2e.Message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		tries[m.ID]++
		w.WriteHeader(f(m, tries[m.ID]))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// urlOf leads to the database of a test.
func urlOf(srv *redistest.Server) string {
	return fmt.Sprintf("redis://%s/%d", srv.Addr(), srv.ClientOptions().DB)
}

func checkEmpty(t *testing.T, srv *redistest.Server) {
	t.Helper()
	if n := srv.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys in Redis, want none", n)
	}
}

// checkKeys looks for phone numbers in the names of keys, and for keys that stay
// for ever beside asynq's.
func checkKeys(t *testing.T, srv *redistest.Server) {
	t.Helper()
	var rdb redis.UniversalClient = srv.Client(t)
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		checkPersonal(t, "a key", key)
		if !strings.HasPrefix(key, "asynq:") && rdb.TTL(t.Context(), key).Val() == -1 { // -2: its life ended meanwhile
			t.Errorf("key %s stays for ever", key)
		}
	}
}
