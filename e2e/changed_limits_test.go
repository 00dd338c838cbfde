package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// TestLimitLoweredAtRunTime: two worker processes work off a backlog of one
// phone; the limit is lowered from this process. From a second later on both
// obey, by the instants of the grants, and nothing is lost.
func TestLimitLoweredAtRunTime(t *testing.T) {
	t.Parallel()
	const window = 200 * time.Millisecond
	s := newStage(t, "5/200ms", workerSpec{})
	s.crew.start(2)
	s.enqueue(80, 1)
	s.eventually(30*time.Second, "the old limit is used", func() bool { return s.gateway.distinct() >= 15 })
	if err := s.limiter.SetLimit(t.Context(), throttle.Sliding(1, window)); err != nil {
		t.Fatal(err)
	}
	changed := s.rdb.Time(t.Context()).Val()
	s.allSent(60 * time.Second)

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	if f := append(breaches(grants, s.limit.Permits(), window), early(all)...); len(f) > 0 {
		t.Errorf("breaches of the old limit, or early starts: %s", few(f))
	}
	since := changed.Add(time.Second).UnixMicro()
	first := slices.IndexFunc(grants, func(g grant) bool { return g.at >= since })
	if first < 1 {
		t.Fatalf("of %d grants the first from a second after the change on is number %d", len(grants), first)
	}
	if f := breaches(grants[first-1:], 1, window); len(f) > 0 {
		t.Errorf("breaches of the new limit: %s", few(f))
	}
	if per := float64(sum(all).Admissions) / float64(s.sent); per > 3 {
		t.Errorf("%.2f admissions per message, want 3 at most", per)
	}
	t.Logf("%d of %d granted from a second after the change on", len(grants)-first, len(grants))
}

// TestLimitRaisedAtRunTime: what two worker processes have deferred for hours
// goes within seconds when the limit rises, also when one of them is killed
// just then.
func TestLimitRaisedAtRunTime(t *testing.T) {
	t.Parallel()
	s := newStage(t, "1/1h", workerSpec{})
	lives := s.crew.start(2)
	const backlog = 60
	s.enqueue(backlog+1, 1)
	s.eventually(30*time.Second, "all but one wait", func() bool {
		st, err := s.limiter.Peek(t.Context(), phone(0), 0)
		q, ok := s.queueInfo()
		return err == nil && st.Waiting == backlog && ok && q.Retry == backlog
	})
	raised := throttle.Sliding(30, time.Second)
	if err := s.limiter.SetLimit(t.Context(), raised); err != nil {
		t.Fatal(err)
	}
	changed := s.rdb.Time(t.Context()).Val()
	lives[0].kill()
	s.allSent(60 * time.Second)
	grants := grantsOf(s.crew.records(), s.phones)
	if f := breaches(grants, raised.Permits(), raised.Window()); len(f) > 0 {
		t.Errorf("breaches of the new limit: %s", few(f))
	}
	last := time.UnixMicro(grants[len(grants)-1].at)
	if took := last.Sub(changed); took > 15*time.Second { // the claim of the one that was killed may have to expire
		t.Errorf("the last was granted %v after the change, want some seconds", took)
	}
	t.Logf("the last was granted %v after the change", last.Sub(changed))
}
