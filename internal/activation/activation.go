// Package activation takes over listeners that a service manager such as systemd opened before this program started
// (sd_listen_fds(3)), and notifies the service manager of the program's state (sd_notify(3)).
//
// # Concurrency
//
// All functions are safe for concurrent use. The first call of Listeners adopts the descriptors. Other calls wait for
// the first one and return the same result.
package activation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/upgrade"
)

const (
	firstFD = 3
	maxFDs  = 1024
	// unknownName is the name of a descriptor that has no name, as in sd_listen_fds_with_names.
	unknownName = "unknown"
)

// NamedListener is a listener with its name in the service manager. Listener is a *net.TCPListener or
// *net.UnixListener. Name is the value of FileDescriptorName= in the .socket unit. If the listener has no name, Name is
// "unknown". Closing a unix listener does not remove the socket's file.
type NamedListener struct {
	Name string
	net.Listener
}

// Listeners returns the listeners that the service manager has passed to this process, in order. Later calls return the
// same listeners, even if they have been closed. Listeners needs Linux.
//
// The first call unsets LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, so that later child processes do not use them. If
// LISTEN_PID does not name this process, Listeners returns the listeners inherited in an upgrade.
//
// The service manager may pass 1 to 1,024 descriptors. If one of them is not a listening TCP or unix stream socket,
// Listeners fails and changes no descriptor.
func Listeners() ([]NamedListener, error) {
	l, err := listeners()
	return slices.Clone(l), err
}

var listeners = sync.OnceValues(func() ([]NamedListener, error) {
	names, err := parseListenEnv(os.Getenv, os.Getpid())
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		err = errors.Join(err, os.Unsetenv(name))
	}
	var files []*os.File
	switch {
	case err == nil && names != nil:
		files, err = adoptListeningSocketsInOrder(names)
	case err == nil:
		names, files, err = upgrade.PredecessorActivationSockets()
	}
	var l []NamedListener
	if err == nil {
		l, err = duplicateAsListeners(names, files)
	}
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	keptSockets.Store(&socketSet{names, files})
	return l, nil
})

type socketSet struct {
	names []string
	files []*os.File
}

var keptSockets atomic.Pointer[socketSet]

// KeptActivationSockets returns the sockets that Listeners has adopted. The caller must not close them.
func KeptActivationSockets() (names []string, files []*os.File) {
	if k := keptSockets.Load(); k != nil {
		return k.names, k.files
	}
	return nil, nil
}

func duplicateAsListeners(names []string, files []*os.File) (all []NamedListener, err error) {
	for i, f := range files {
		l, err := net.FileListener(f) // duplicates the descriptor
		if err != nil {
			for _, taken := range all {
				taken.Close()
			}
			return nil, fmt.Errorf("descriptor %d (%.60q) cannot be used: %w", f.Fd(), names[i], err)
		}
		all = append(all, NamedListener{names[i], l})
	}
	return all, nil
}

// parseListenEnv returns the names of the descriptors that the service manager has passed to the process pid. If there
// are none, it returns nil.
func parseListenEnv(getenv func(name string) string, pid int) (names []string, err error) {
	forPid, count, list := getenv("LISTEN_PID"), getenv("LISTEN_FDS"), getenv("LISTEN_FDNAMES")
	switch {
	case forPid == "" && count == "":
		return nil, nil
	case forPid == "":
		return nil, fmt.Errorf("LISTEN_FDS is %.20q, but LISTEN_PID is not set; expected both or neither", count)
	case count == "":
		return nil, fmt.Errorf("LISTEN_PID is %.20q, but LISTEN_FDS is not set; expected both or neither", forPid)
	}
	p, ok := parseCanonicalInt(forPid)
	if !ok || p < 1 {
		return nil, fmt.Errorf("LISTEN_PID is %.20q; expected a process ID", forPid)
	}
	if p != pid {
		return nil, nil
	}
	n, ok := parseCanonicalInt(count)
	if !ok || n < 1 || n > maxFDs {
		return nil, fmt.Errorf("LISTEN_FDS is %.20q; expected a number from 1 to %d, without a sign and leading zeros", count, maxFDs)
	}
	if list == "" {
		return slices.Repeat([]string{unknownName}, n), nil
	}
	names = strings.Split(list, ":")
	if len(names) != n {
		return nil, fmt.Errorf("LISTEN_FDNAMES has %d names (%.60q); expected %d (LISTEN_FDS), separated by colons", len(names), list, n)
	}
	return names, nil
}

// parseCanonicalInt parses an integer that has no plus sign, spaces or leading zeros.
func parseCanonicalInt(s string) (n int, ok bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && strconv.Itoa(n) == s
}
