// Command batch-mailer sends a nightly batch of mails over SMTP: prepared by a
// schedule, let out while a gate is open, at the pace of the provider and at most one
// mail per recipient in an hour.
//
//	go run ./examples/batch-mailer
//
// Without flags it needs nothing: it embeds a Redis and an SMTP server that sends
// nothing, takes a sample of 240 mails to 60 recipients, ends in about 40 s and prints
// what came to the server. Two replicas do the work (replica.go), each with a schedule, a
// feeder, a pool and connections of its own, as if they were two processes:
//
//   - At 07:00 by the clock of the demonstration the schedules tick in both replicas.
//     One task comes of it, and one batch.
//   - A feeder, in one of the replicas, books the mails and enqueues them, a window
//     ahead. Until 09:00 the gate is shut, and none goes out.
//   - When a third is sent the replica that feeds is stopped. Its feeder loses Redis
//     and gives nothing up; within some two seconds the other replica's takes over, from
//     where the batch is, and all go out once.
//   - At the end the SMTP server's log is held against the rules (summary.go).
//
// On a terminal p and Enter pause the batch, r and Enter resume it. Ctrl-C cancels it.
// The flags are listed by -h. The mails, the server, its judge, the clock and what is shown
// meanwhile come from internal/e2e/mailtest.
//
// # Exit codes
//
//	0  all is well, an end by Ctrl-C included
//	1  the run failed, or a mail failed, came twice, not at all, too fast or while the gate was shut
//	2  a flag or the input is wrong, or would take longer than the clock runs; nothing was enqueued
//
// # What becomes of a mail
//
// A server that answers 5xx is not asked again: the mail goes to asynq's archive, and the
// run fails. 421 closes the provider's rule for 2 s, 450 that of the recipient, and the
// mail goes first then; that costs no retry. After other 4xx, and when a connection
// broke, asynq tries again by its own rules. A connection that was refused costs no
// permits. A mail may come twice when a process dies between the server's answer and its
// note in Redis; its Message-ID stays the same, so that the server can tell.
//
// # What is left, and what is shown
//
// Each run has a queue of its own, which it deletes at its end. What is left are the
// record of the batch for a day, and keys of limits and of the schedule, which expire. A
// run that is killed leaves its batch.
//
// An address is j…@e… in a log line, and faults of an input name lines. In Headway's keys
// addresses are hashed under a secret of the run. asynq keeps a payload as it is until
// the mail is sent or archived.
package main
