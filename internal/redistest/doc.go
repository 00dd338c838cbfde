// Package redistest gives tests a Redis of their own: a real redis-server
// process that can be killed, restarted and frozen, a proxy in front of one
// that loses replies, and an embedded server for synctest bubbles.
//
//	[Start]         a real server for one test; the default choice
//	[Client]        a client of one, for a test that holds on a Cluster, too
//	[StartCluster]  a Redis Cluster
//	[NewProxy]      a TCP proxy that cuts, delays and refuses
//	[Mini]          miniredis without a socket, for testing/synctest
//
// What needs no testing.TB is package redisserver.
//
// A test that talks about numbers in Lua, memory, expiry or a crash belongs on
// a real server: miniredis hides such bugs. A test that talks about an hour of
// time belongs in a bubble with Mini.
//
// # A server that is already there
//
// HEADWAY_TEST_REDIS names a server to test against instead of starting one:
// "127.0.0.1:6379", or a URL as [redis.ParseURL] takes it. [Start] then never
// flushes what it finds. Each call claims an empty database (1 and up; the
// claims are keys with a TTL in database 0), hands that out, and flushes that
// one alone when the test ends. Databases that hold anything are passed over.
// Published messages, scripts and INFO are the server's and are shared. Tests
// that need the process ([AOF], [Arg], [Server.Kill] and its like), or change it ([Own]),
// are skipped.
//
// # One Redis, or a Cluster
//
// With HEADWAY_TEST_CLUSTER set, tests that hold on both ([Client], [StartEither]) run on a Cluster
// of two masters. So do those whose clock the test sets ([NewTimed]): each call brings the time. Tests of one server
// ([Start], [Mini], [OneRedis]) are skipped. Leave out those called
// TestVirtual by -skip: a test can't be skipped within a bubble. HEADWAY_TEST_REDIS must not be set.
//
// The package needs a Unix. It is for tests: no library package imports it.
package redistest
