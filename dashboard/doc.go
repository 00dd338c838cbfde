// Package dashboard is a web page that shows what waits for which limit, in which order, and
// when each task will start. It is an http.Handler:
//
//	board, err := dashboard.New(rdb, dashboard.Config{Prefix: "/headway"})
//	...
//	mux.Handle("/headway/", board)
//
// "headway serve" runs it on its own. It reads what package inspect tells from Redis alone,
// so no pool has to run.
//
// # Closed unless opened
//
// Without options it answers only requests of this machine, changes nothing, and masks keys.
// [Config] opens it: Hosts lets other machines in and then needs Authorize, AllowWrites lets
// operators change something, ShowKeys shows keys and handlers' errors. Authorize is asked about
// every request and every change. There are no cookies, no inline scripts, and nothing is
// fetched from elsewhere. Text that comes from Redis is escaped, its control characters are
// made visible, and it is clipped. A key never stands in a link in clear.
//
// # What it costs
//
// All viewers of a page share one snapshot, which is refreshed at most once in
// Config.Refresh and only while somebody looks. All pages together stay within
// Config.Budget: when it is spent, pages show what they have, and say of when it is.
//
// # Pages
//
//	/           what waits, a verdict in words, planned starts of the next hour, rules
//	/queue      what waits on a queue, the first to start first
//	/rule       a limit, who set it, its last 24 hours, its keys, changes
//	/key        the line of a key with instants, and what was spent
//	/task       why a task waits, until when, behind whom, and its way so far
//	/gates      opening hours of the week
//	/batches    how far batches are
//	/schedules  entries and their next ticks
//	/policies   the rules in code beside those of each pool
//	/pools      the processes that run
//	/audit      who changed what, when and why
//
// Each page is read without a script. With one it follows what happens by server-sent events
// (/live), until it is paused.
package dashboard
