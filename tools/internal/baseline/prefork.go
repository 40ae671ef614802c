package baseline

import (
	"fmt"
	"net"
	"os"
)

type PreforkOptions struct {
	// Processes is the number of processes, from 1 to 1024.
	Processes int
	// Command is the command line of each process. The process must exit on SIGTERM. It must serve InheritedListener
	// with a design other than Prefork.
	Command []string
}

const maxPreforkProcesses = 1024

func (o *PreforkOptions) validatePrefork() error {
	if o == nil {
		return nil
	}
	if o.Processes < 1 || o.Processes > maxPreforkProcesses {
		return fmt.Errorf("%d processes; expected 1 to %d", o.Processes, maxPreforkProcesses)
	}
	if len(o.Command) == 0 {
		return fmt.Errorf("no command for the worker processes of %s; expected one", Prefork)
	}
	return nil
}

// preforkDescriptor is the descriptor number of a listener that a process inherits.
const preforkDescriptor = 3

// InheritedListener returns the listener that a process of the design Prefork inherits. Call it only once.
func InheritedListener() (net.Listener, error) {
	f := os.NewFile(preforkDescriptor, "listener")
	if f == nil {
		return nil, fmt.Errorf("descriptor %d is not open; expected a listener", preforkDescriptor)
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is not a listener: %w", preforkDescriptor, err)
	}
	return ln, nil
}
