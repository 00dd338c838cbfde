package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// backlogLog is what happened to the jobs of one backlog, by their numbers. It
// is safe for concurrent use.
type backlogLog struct {
	what backlogCase
	done chan struct{} // closed when all have started

	mu         sync.Mutex
	admissions []int
	promised   []time.Time
	order      []int // of starts
	at         []time.Time
	late       []time.Duration
}

func newBacklogLog(c backlogCase) *backlogLog {
	return &backlogLog{what: c, done: make(chan struct{}), admissions: make([]int, c.jobs), promised: make([]time.Time, c.jobs)}
}

// refused notes an admission that ended with a promise.
func (l *backlogLog) refused(job int, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admissions[job]++
	l.promised[job] = until
}

// started notes the admission that let a job in, which was due at an instant;
// zero for one that never waited.
func (l *backlogLog) started(job int, due time.Time) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admissions[job]++
	l.order, l.at = append(l.order, job), append(l.at, now)
	if !due.IsZero() {
		l.late = append(l.late, now.Sub(due))
	}
	if len(l.order) == l.what.jobs {
		close(l.done)
	}
}

// promise is what a job was told last.
func (l *backlogLog) promise(job int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.promised[job]
}

// wait returns when all have started, or at the end.
func (l *backlogLog) wait(ctx context.Context, end <-chan struct{}) error {
	select {
	case <-l.done:
	case <-end:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// sum is what happened up to now.
func (l *backlogLog) sum(now time.Time) (backlogOf, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := backlogOf{ran: len(l.order), late: sortedDurations(l.late)}
	if out.ran == 0 {
		return out, nil
	}
	seen, total := make(map[int]bool), 0
	for _, job := range l.order {
		if seen[job] {
			return out, errors.New("a job started twice")
		}
		seen[job] = true
		total += l.admissions[job]
	}
	first, last := l.at[0], l.at[0]
	for _, at := range l.at {
		if at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	ran := float64(out.ran)
	out.admissions = float64(total) / ran
	out.inversions = float64(inversions(l.order)) / ran
	out.share = 100 * float64(l.what.ideal(out.ran)) / float64(last.Sub(first))
	if out.ran < l.what.jobs {
		out.share = 100 * ran / float64(l.what.permitted(now.Sub(first)))
	}
	return out, nil
}
