package main

import (
	"testing"
	"time"
)

func TestInversions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		order []int
		want  int
	}{
		{nil, 0},
		{[]int{0, 1, 2, 3}, 0},
		{[]int{3, 2, 1, 0}, 6},
		{[]int{1, 0, 3, 2}, 2},
		{[]int{4, 0, 1, 2, 3}, 4},
		{[]int{2, 7}, 0}, // some are missing
	} {
		if got := inversions(tt.order); got != tt.want {
			t.Errorf("inversions(%v) = %d, want %d", tt.order, got, tt.want)
		}
	}
}

// 10 a second: the 10th goes with the first, the 11th a second later, and within
// 2.5 s from the first on there are 30.
func TestBacklogIdeal(t *testing.T) {
	t.Parallel()
	c := backlogCase{permits: 10, window: time.Second, jobs: 100}
	for n, want := range map[int]time.Duration{1: 0, 10: 0, 11: time.Second, 100: 9 * time.Second} {
		if got := c.ideal(n); got != want {
			t.Errorf("ideal(%d) = %v, want %v", n, got, want)
		}
	}
	if got := c.permitted(2500 * time.Millisecond); got != 30 {
		t.Errorf("permitted(2.5s) = %d, want 30", got)
	}
	c.evenly = true
	for n, want := range map[int]time.Duration{1: 0, 10: 0, 11: 100 * time.Millisecond, 100: 9 * time.Second} {
		if got := c.ideal(n); got != want {
			t.Errorf("evenly: ideal(%d) = %v, want %v", n, got, want)
		}
	}
	if got := c.permitted(2500 * time.Millisecond); got != 35 {
		t.Errorf("evenly: permitted(2.5s) = %d, want 35", got)
	}
}

func TestBacklogLog(t *testing.T) {
	t.Parallel()
	l := newBacklogLog(backlogCase{permits: 1, window: time.Hour, jobs: 3})
	l.refused(1, time.Now())
	l.refused(2, time.Now())
	l.started(0, time.Time{})
	l.started(2, l.promise(2))
	got, err := l.sum(l.at[0].Add(90 * time.Minute)) // in which two were permitted
	if err != nil {
		t.Fatal(err)
	}
	if got.ran != 2 || got.admissions != 1.5 || got.share != 100 || got.inversions != 0 || len(got.late) != 1 || got.late[0] < 0 {
		t.Errorf("sum = %+v, want 2 jobs of 3 with 1.5 admissions each, at 100 %%, in order, one of which waited", got)
	}
	select {
	case <-l.done:
		t.Error("done with one job left")
	default:
	}
	l.started(1, l.promise(1))
	<-l.done
	if got, err = l.sum(time.Now()); err != nil || got.ran != 3 || got.inversions != 1./3 {
		t.Errorf("sum = %+v, %v, want 3 jobs with one inversion", got, err)
	}
	l.order[0] = 2
	if _, err := l.sum(time.Now()); err == nil {
		t.Error("a job that starts twice gives no error")
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var d []time.Duration
	if got := quantile(d, 0.5); got != 0 {
		t.Errorf("quantile of none = %v, want 0", got)
	}
	for i := range 100 {
		d = append(d, time.Duration(99-i))
	}
	d = sortedDurations(d)
	for q, want := range map[float64]time.Duration{0: 0, 0.5: 50, 0.99: 99, 1: 99} {
		if got := quantile(d, q); got != want {
			t.Errorf("quantile(%v) = %d, want %d", q, got, want)
		}
	}
}
