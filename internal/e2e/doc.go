// Package e2e looks at Headway from outside: a gateway that keeps its own log and
// fails when it is told to, the files that say what Redis granted and when, and the
// judges that hold both against the limits. The judges know nothing of how a limit
// is kept. What programs around it need is here too: an input, a client of the gateway,
// progress, a summary, an embedded Redis. The end-to-end tests, the examples and
// cmd/headway use it.
package e2e
