// Package faults runs a load of messages through faults of one kind, and judges from outside
// what came of it. `headway prove FAULT` and `make faults` run it, and `make test` a short form.
//
// A run starts Redis, a gateway that stands for the provider, and worker processes. Each of
// these runs a pool, feeds a batch and ticks a schedule, as the processes of a user do. The run
// itself enqueues messages besides. While all of that works it strikes at random from a seed:
// it kills processes or servers, cuts connections, makes another server the master, moves
// slots. At the end it lets everything that waits run, and holds what the gateway got against
// what was accepted, and against the limits.
//
// Two judges look at each limit, and neither knows how it is kept: package judge by the
// instants at which Redis granted, and the gateway by its own clock.
//
// One fault, the soak, is the strikes of several others under a mixed load (load.go). One of its
// processes is never struck. It must not grow, and no keys may be left in Redis (leaks.go).
package faults
