// Package redisserver runs Redis on the loopback, for tests, benchmarks and `headway prove`:
// servers of our own that can be killed, frozen and started again.
//
//	[Launch]         a redis-server
//	[LaunchCluster]  a Redis Cluster
//	[LaunchWatched]  a master with replicas, and sentinels that watch it
//	[ListenProxy]    a proxy in front of a server, which cuts, delays and refuses
//
// Each listens on a free port and keeps it over restarts. Only these processes are ever
// signalled, by their ids. On Linux they end with the process that started them.
//
// With HEADWAY_TEST_WITHOUT_FUNCTIONS=1 the servers know neither FCALL nor FUNCTION, as Redis
// 6.2 and some services. All scripts then run by EVALSHA.
//
// The package needs a Unix, and redis-server in the path.
package redisserver
