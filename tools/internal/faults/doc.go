// Package faults has what goes wrong around a server: clients that mean it harm (Swarm), and networks of
// their own (Namespace). Honest clients check each answer, and show whether the attack affects them.
//
// The tests of this package are the fault suite; docs/reliability.md lists what they prove.
//
// A Swarm of any size costs one goroutine, which walks over its sockets, and 20 bytes for each; in
// the kernel a socket costs some kilobytes more. A Swarm and an Honest are started once and stopped
// once; Stop returns when everything that was started has ended.
package faults
