// Package prove is the command "headway prove".
//
// "headway prove" sends messages through an HTTP gateway, at most one SMS per phone
// number per 60 seconds, whatever number of processes does it. Then it proves that
// the limit held: from the instants at which Redis granted, and a second time by the
// gateway's own clock. The gateway can be told to fail now and then. The same program
// without proofs, as a user would write it, is examples/sms-sender.
//
//	go run ./cmd/headway prove
//
// Without flags it needs nothing: it embeds a Redis and a gateway that sends
// nothing, takes a sample of 24 messages to 12 phones, ends in about two minutes and
// prints what each phone got. On a real Redis one process enqueues and many work:
//
//	headway prove -redis localhost:6379 -role enqueue -input messages.csv -once
//	headway prove -redis localhost:6379 -role work -gateway https://sms.example/send -drain
//
// With the names of faults in front it does something else, see "Through faults" below.
//
// # Flags
//
//	-redis ADDR        host:port, or a redis:// URL with user, password and database; default: embedded
//	-input FILE        CSV with the header "to,text", - is stdin; default: the sample
//	-gateway URL       takes POSTs of JSON {"id","to","text"}; default: embedded
//	-gateway-faults S  let the embedded gateway fail now and then, see below; default never
//	-limit 1/60s       per phone; the same in all processes; sliding, as the gateway's log is judged by any window of that length
//	-policy FILE       rules of a YAML file for sms:send in place of -limit; a sample of five is examples/sms-sender/policy.yaml
//	-concurrency N     messages that are sent at once by this process; default 10
//	-role R            all (default), enqueue, or work; the last two need -redis
//	-drain             exit when nothing is left; default with -role all
//	-report FILE       write the summary as JSON
//	-grants FILE       append a JSON line per grant; several processes may share the file
//	-arrivals FILE     write what came to the embedded gateway, a JSON line per message
//	-skip-invalid      send what is right in the input, and report the rest
//	-once              enqueue a message again only 24 h after it was sent
//
// # Exit codes
//
//	0  all is well, an end by Ctrl-C and messages that the gateway refused included
//	1  the run failed, not all was enqueued, or the limit was broken
//	2  a flag or the input is wrong; nothing was enqueued
//
// # What becomes of a message
//
// A gateway that answers 5xx, 429 or not at all is asked again by asynq's rules
// (25 retries, the first after 15 to 44 s), each time under a new grant. Any other
// answer than 2xx is final: the message goes to asynq's archive and is
// reported. A message may come twice when a process dies between the POST and
// its note in Redis, or when the gateway took it and its answer was lost: its id stays
// the same, so that the gateway can tell.
//
// A Retry-After of a 429 or 503 is heeded: all that waits for the phone number moves
// behind it, the message goes first then, and it costs no retry. A connection that was refused costs no
// permits; all else that failed is paid for, for it may have been sent.
//
// # Policies
//
//	headway prove -policy examples/sms-sender/policy.yaml -gateway-faults 429=5%,after=2s,5xx=1%
//
// The file has one policy, of exactly sms:send; its faults are said with their lines,
// and nothing is enqueued then, nor if the policy could never let a message through. How long closed gates
// hold messages up is said before the run; of the sample such messages are left out.
// The summary says of each rule how often it held a message up, how long messages waited for
// it (postponements included), and how often it was broken: limits and gates by the granted instants,
// sliding limits by the gateway's clock too, and what limits how many run at once by what
// the embedded gateway saw, if all messages have one key under it. A broken rule, or a message that comes before a
// Retry-After has passed, fails the run.
//
// # Faults of the gateway
//
// -gateway-faults 429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7 shows what becomes
// of a run when the provider has bad moments. Of the messages that come to the embedded
// gateway, by chance, 5 % are answered 429 with "Retry-After: 2", 1 % are answered 503, and
// 0.5 % are taken and not answered at all: they come again, and twice to the
// phone. At least one of the three is given; percentages have up to four decimals
// and add up to 100 at most; after is whole seconds, 1s to 1h, and 30s by default.
//
// A 429 closes its phone number at the gateway for that time. A message to it that comes before is
// early, unless it was granted before or within half a second after the 429: it is counted, answered 429 with the seconds that are left, and closes it no
// longer. What is answered 429 or 503 is not taken: it is not in the log
// (-arrivals) and does not count for the limit.
//
// Chance follows from the seed, a message's id and how often it drew: the same seed
// and ids, which -once gives, draw the same faults. Without a seed the run draws one
// and says it. With faults on the summary counts them, the early ones, and the most
// messages that were at the gateway at once; in the JSON they are "gateway_faults".
//
// # Ctrl-C
//
// Ctrl-C lets the POSTs under way end and leaves the rest in Redis, where -role
// work goes on with it. A second Ctrl-C does not wait. If the input was not
// enqueued to its end, only a run that had -once can be repeated without doubling
// messages. The embedded Redis ends with its process and all that is in it.
//
// A worker that drains waits for the queue to exist, so that it may be started
// before the process that enqueues. It exits when it twice saw nothing that is
// pending, active, scheduled or to be retried, and nothing was finished in
// between. What is in the archive is not left, what waits for a retry is.
//
// Sent, deferred, lateness and gaps are those of this process. Breaches are
// counted over all processes that share the -grants file, by the one that ends
// last; the file must be that of one limit.
//
// # Personal data
//
// Output, report, grants and arrivals show phones as +86…5678, and group them
// by a keyed hash. Its secret, which also hides the phones in Headway's own keys,
// is in Redis under "headway-prove:secret". asynq keeps the payload of a task as
// it is, phone number and text, until the message is sent; with -once 24 h more, in
// the archive for up to 90 days. Whoever can read that Redis can read them.
//
// # Through faults
//
//	headway prove faults
//	headway prove workers restart-always -for 5m -seed 7
//	headway prove judge DIR
//
// The first command lists the faults. The second starts servers of its own, a gateway, and worker
// processes that run a pool, feed a batch and tick a schedule. It enqueues messages, strikes at random
// for five minutes with each fault, lets run what waits, and prints what came of it. It fails with
// exit code 1 when what docs/guarantees.md promises did not hold, when a strike could not be done, and
// when it was interrupted. The third judges a run again by the files that it left. docs/prove.md explains its flags and its report.
package prove
