package presence

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process is listed as soon as it runs, stays listed while it says so, and is gone when it
// has ended. What changes is said anew.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		listed := func() []Process {
			t.Helper()
			all, n, err := Running(t.Context(), rdb, "hw")
			if err != nil || n != len(all) {
				t.Fatalf("%d of %d processes, %v", len(all), n, err)
			}
			return all
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		p, busy := New(Pool), 0
		running.Go(func() { Run(ctx, rdb, "hw", p, func(p *Process) { busy++; p.Busy = busy }) })
		time.Sleep(time.Second)
		if all := listed(); len(all) != 1 || all[0].ID != p.ID || all[0].Kind != Pool || all[0].PID == 0 || all[0].Host == "" || all[0].Busy != 1 {
			t.Errorf("at first %+v are listed, want the process", all)
		}
		time.Sleep(5 * time.Minute)
		if all := listed(); len(all) != 1 || all[0].Busy < 50 || all[0].Connections < 1 {
			t.Errorf("after minutes %+v are listed, want the process as it is now", all)
		}
		if err := rdb.ZAdd(t.Context(), "hw:processes", redis.Z{Score: float64(time.Now().UnixMicro()), Member: "dead"}).Err(); err != nil {
			t.Fatal(err)
		}
		if all := listed(); len(all) != 1 {
			t.Errorf("beside one that has died %+v are listed, want the process", all)
		}
		if all := listed(); all[0].ClockWithin <= 0 || all[0].ClockAhead.Abs() > all[0].ClockWithin {
			t.Errorf("the clock is %v ahead within %v, want equal", all[0].ClockAhead, all[0].ClockWithin)
		}
		rdb.AddHook(slowTime{})
		time.Sleep(2 * Every)
		if all := listed(); len(all) != 1 || all[0].ClockWithin != 20*time.Millisecond || all[0].ClockAhead != -3*time.Second {
			t.Errorf("the clock is %v ahead within %v, want 3 s behind within 20 ms", all[0].ClockAhead, all[0].ClockWithin)
		}
		stop()
		running.Wait()
		if all := listed(); len(all) != 0 {
			t.Errorf("at the end %+v are listed", all)
		}
	})
}

// A process whose clock is ahead of Redis' takes nobody off the list: it is listed by Redis' clock,
// in which all agree. While that can't be asked, it goes by the difference that it knows.
func TestClockAheadHidesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		ahead := new(aheadTime)
		rdb.AddHook(ahead)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { Run(ctx, rdb, "hw", New(Pool), func(*Process) {}) })
		for range 4 {
			if err := Say(t.Context(), rdb, "hw", "right", time.Now().Add(-aheadBy), []byte("{}")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(Every + time.Second)
			if all, _, err := Running(t.Context(), rdb, "hw"); err != nil || len(all) != 2 {
				t.Errorf("%+v are listed, %v, want both", all, err)
			}
			ahead.away.Store(true) // after the first look
		}
		stop()
		running.Wait()
	})
}

// aheadTime lets Redis' clock be behind that of the process, and fails to show it.
type aheadTime struct{ away atomic.Bool }

const aheadBy = 30 * time.Second

func (*aheadTime) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*aheadTime) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (a *aheadTime) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		cmd, ok := c.(*redis.TimeCmd)
		if !ok {
			return next(ctx, c)
		}
		if a.away.Load() {
			cmd.SetErr(errors.New("away"))
			return cmd.Err()
		}
		cmd.SetVal(time.Now().Add(-aheadBy))
		return nil
	}
}

// slowTime lets Redis show a time that is 3 s ahead, after 20 ms, and the answer take as long again.
type slowTime struct{}

func (slowTime) DialHook(next redis.DialHook) redis.DialHook { return next }
func (slowTime) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (slowTime) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		cmd, ok := c.(*redis.TimeCmd)
		if !ok {
			return next(ctx, c)
		}
		time.Sleep(20 * time.Millisecond)
		cmd.SetVal(time.Now().Add(3 * time.Second))
		time.Sleep(20 * time.Millisecond)
		return nil
	}
}
