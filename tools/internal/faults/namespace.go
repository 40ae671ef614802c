package faults

import "os"

// Namespace is a network of its own, with its own addresses and nothing but
// loopback in it at first. It takes Linux and the right to make one, which root
// has.
type Namespace struct{ file *os.File }

// Close lets go of the network, which ends with the last socket and process in
// it.
func (n *Namespace) Close() error { return n.file.Close() }
