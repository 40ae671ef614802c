// Package activation takes over listeners that a service manager such as systemd
// has opened before this program started (sd_listen_fds(3)), and tells it how the
// program is (sd_notify(3)).
//
// # Concurrency
//
// The first call of Listeners takes the descriptors, others wait for it and get
// the same answer. Notify keeps nothing. Both are safe for concurrent use, but
// the first call of Listeners changes the environment: it belongs before anything
// that starts processes.
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
	// maxFDs is the most descriptors that are taken.
	maxFDs = 1024
	// unknownName is the name of a descriptor without one, as sd_listen_fds_with_names
	// has it.
	unknownName = "unknown"
)

// NamedListener is a listener, a *net.TCPListener or *net.UnixListener, with the name
// that the service manager has for it: FileDescriptorName= in its .socket unit, by
// default the unit's name. Several can have one name; without a name it is
// "unknown". Closing it leaves the file of a unix socket, which is the manager's.
type NamedListener struct {
	Name string
	net.Listener
}

// Listeners are the listeners that were passed to this process, in their order;
// nil if none were. Further calls give the same ones, closed or not.
//
// They are passed as descriptors from 3, by LISTEN_PID, LISTEN_FDS and
// LISTEN_FDNAMES, which the first call unsets whatever it finds, so that processes
// that this one starts don't take them for theirs. If LISTEN_PID names another
// process, or none, the listeners are those of the process whose place this one takes, by an
// upgrade; nil without. Each must be a TCP or unix stream
// socket that listens, and there are 1 to 1,024; anything else is an error that
// names it, and leaves all descriptors as they are. Those that are taken are not
// inherited by processes that this one starts (close-on-exec). It needs Linux.
func Listeners() ([]NamedListener, error) {
	l, err := listeners()
	return slices.Clone(l), err
}

var listeners = sync.OnceValues(func() ([]NamedListener, error) {
	names, err := parseEnv(os.Getenv, os.Getpid())
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		err = errors.Join(err, os.Unsetenv(name))
	}
	var files []*os.File
	switch {
	case err == nil && names != nil:
		files, err = adoptDescriptors(names)
	case err == nil:
		names, files, err = upgrade.InheritedActivationSockets()
	}
	var l []NamedListener
	if err == nil {
		l, err = toListeners(names, files)
	}
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	keptSockets.Store(&socketSet{names, files})
	return l, nil
})

// socketSet are those of the manager.
type socketSet struct {
	names []string
	files []*os.File
}

// keptSockets are those that were taken, nil before.
var keptSockets atomic.Pointer[socketSet]

// KeptSockets are the sockets that Listeners has taken, and their names. They stay open, as with the
// manager, so that the process that takes this one's place finds them; nobody closes them.
func KeptSockets() (names []string, files []*os.File) {
	if k := keptSockets.Load(); k != nil {
		return k.names, k.files
	}
	return nil, nil
}

// toListeners makes listeners of files.
func toListeners(names []string, files []*os.File) (all []NamedListener, err error) {
	for i, f := range files {
		l, err := net.FileListener(f) // on a descriptor of its own
		if err != nil {
			for _, taken := range all {
				taken.Close()
			}
			return nil, fmt.Errorf("descriptor %d (%.60q) can't be taken: %w", f.Fd(), names[i], err)
		}
		all = append(all, NamedListener{names[i], l})
	}
	return all, nil
}

// parseEnv reads the variables: the names of the descriptors that are for the
// process pid, nil if there are none. An empty variable is none.
func parseEnv(getenv func(name string) string, pid int) (names []string, err error) {
	forPid, count, list := getenv("LISTEN_PID"), getenv("LISTEN_FDS"), getenv("LISTEN_FDNAMES")
	switch {
	case forPid == "" && count == "":
		return nil, nil
	case forPid == "":
		return nil, fmt.Errorf("LISTEN_FDS is %.20q, but LISTEN_PID is not set; expected both or none", count)
	case count == "":
		return nil, fmt.Errorf("LISTEN_PID is %.20q, but LISTEN_FDS is not set; expected both or none", forPid)
	}
	p, ok := parseCanonicalInt(forPid)
	if !ok || p < 1 {
		return nil, fmt.Errorf("LISTEN_PID is %.20q; expected the number of a process", forPid)
	}
	if p != pid {
		return nil, nil
	}
	n, ok := parseCanonicalInt(count)
	if !ok || n < 1 || n > maxFDs {
		return nil, fmt.Errorf("LISTEN_FDS is %.20q; expected a number of 1 to %d", count, maxFDs)
	}
	if list == "" {
		return slices.Repeat([]string{unknownName}, n), nil
	}
	names = strings.Split(list, ":")
	if len(names) != n {
		return nil, fmt.Errorf("LISTEN_FDNAMES has %d names (%.60q); expected %d, as LISTEN_FDS says, with colons between", len(names), list, n)
	}
	return names, nil
}

// parseCanonicalInt is a number in the one way to write it.
func parseCanonicalInt(s string) (n int, ok bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && strconv.Itoa(n) == s
}
