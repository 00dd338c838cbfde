// Package schedule enqueues tasks at the ticks of cron specs, exactly once over all
// processes that run the same entries.
//
// An [Entry] is a task and the ticks at which it is enqueued; entries stand in code or in
// a YAML file. [ParseCron] reads their specs and says what happens where a clock is
// changed. A [Schedule] runs them, through a queue.Client. See docs/schedules.md.
package schedule
