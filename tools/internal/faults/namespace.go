package faults

import "os"

// Namespace is a network namespace. A new one contains only a loopback interface. It needs Linux and root.
type Namespace struct{ file *os.File }

// Close releases the namespace. The namespace exists until its last socket and process have ended.
func (n *Namespace) Close() error { return n.file.Close() }
