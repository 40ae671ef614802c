package faults

import "os"

// Namespace is a network namespace, which initially contains only loopback. It needs Linux and root.
type Namespace struct{ file *os.File }

// Close releases the namespace, which exists until its last socket and process have ended.
func (n *Namespace) Close() error { return n.file.Close() }
