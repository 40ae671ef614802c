// Package clients tests a hub with Redis programs and client libraries: redis-cli, redis-benchmark, and libraries
// for Go, Python and JavaScript. It is a separate module, so that users of Myriad don't depend on them. README.md
// describes how to run the tests.
package clients
