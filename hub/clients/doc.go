// Package clients has the tests of a hub with what others have written to speak to Redis:
// redis-cli, redis-benchmark, and the client libraries of Go, Python and JavaScript. It is a
// module of its own, so that none of them reaches those who use Myriad. README.md says how to
// run them.
package clients
