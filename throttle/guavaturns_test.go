package throttle_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The same digits when two processes take turns: nothing of it is in a process.
func TestGuavaSequencesAcrossProcesses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	other := s.startTurns()
	for i, c := range guavaSequences {
		t.Run(c.name, func(t *testing.T) {
			s.T = t
			s.at(0)
			rule := fmt.Sprint("rule", i)
			s.playGuava(c.steps, callers{
				payer(t.Context(), s.rdb, rule),
				func(limit throttle.Limit, n int) (time.Duration, error) { return other(rule, limit, n) },
			})
		})
	}
}

// turnsEnv makes the test binary a process that takes permits on demand, and
// names its Redis.
const turnsEnv = "HEADWAY_TEST_TURNS"

// startTurns starts that process. It ends with its standard input.
func (s *scene) startTurns() func(rule string, limit throttle.Limit, n int) (time.Duration, error) {
	s.Helper()
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(self)
	o := s.raw.Options()
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", turnsEnv, o.Addr, o.DB))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	t := s.T
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other process: %v", err)
		}
	})
	answers := bufio.NewReader(out)
	return func(rule string, limit throttle.Limit, n int) (time.Duration, error) {
		if _, err := fmt.Fprintf(in, "%s %d %v\n", rule, n, limit); err != nil {
			return 0, err
		}
		var waited int64
		_, err := fmt.Fscanln(answers, &waited)
		return time.Duration(waited), err
	}
}

// takeTurns is that process: a line is a rule, a number of permits and a limit,
// and is answered by what was waited for them, in nanoseconds.
func takeTurns(redisAt string, in io.Reader, out io.Writer) error {
	var o redis.Options
	if _, err := fmt.Sscan(redisAt, &o.Addr, &o.DB); err != nil {
		return err
	}
	ctx := context.Background()
	raw := redis.NewClient(&o)
	defer raw.Close()
	now, err := readClock(ctx, raw)
	if err != nil {
		return err
	}
	rdb, err := redistest.NewTimed(ctx, redistest.LongLived{UniversalClient: raw}, now)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		word := strings.SplitN(lines.Text(), " ", 3)
		limit, err := throttle.ParseLimit(word[2])
		if err != nil {
			return err
		}
		n := 0
		if _, err := fmt.Sscan(word[1], &n); err != nil {
			return err
		}
		waited, err := payer(ctx, rdb, word[0])(limit, n)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, int64(waited)); err != nil {
			return err
		}
	}
	return lines.Err()
}
