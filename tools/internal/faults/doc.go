// Package faults is what goes wrong around a server, on purpose: clients that
// mean it harm (Swarm), and a server in a process of its own (Process) that is looked
// at from outside. Honest clients, which check each answer, say whether it matters to them.
//
// The tests of this package are the fault suite; docs/reliability.md lists what
// they prove. A benchmark can use the same parts.
//
// A Swarm of any size costs one goroutine, which walks over its sockets, and 20
// bytes for each; in the kernel a socket costs some kilobytes more. All types of
// this package are started once and stopped once; Stop returns when everything
// that was started has ended.
package faults
