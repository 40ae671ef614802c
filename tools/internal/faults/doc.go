// Package faults simulates faults around a server: hostile clients (Swarm) and separate networks (Namespace).
// HonestClients verify each answer and show whether an attack affects them.
//
// The tests of this package are the fault suite; docs/reliability.md lists what they prove.
//
// A Swarm drives all its connections on one goroutine. A connection takes 20 bytes, and its socket some kilobytes more
// in the kernel. Swarms and HonestClients are started once and stopped once. Stop waits until everything has ended.
package faults
