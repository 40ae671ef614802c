package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// environment is the variable that makes a process a worker: its identity as JSON.
const environment = "MYRIAD_WORKER"

// identity says which worker a process is, of which Server.
type identity struct {
	// Index numbers the workers from 0.
	Index     int
	Processes int
	// Addrs are where the Server listens, with so many Sockets each.
	Addrs   []Address
	Sockets []int
	// Held says that it accepts nothing until it is told.
	Held bool `json:",omitempty"`
}

func (id identity) String() string {
	text, _ := json.Marshal(id) // which can't fail
	return string(text)
}

func parseIdentity(text string) (id identity, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&id); err != nil || id.Index < 0 || id.Index >= id.Processes || len(id.Addrs) == 0 ||
		len(id.Sockets) != len(id.Addrs) || slices.Min(id.Sockets) < 1 {
		return id, fmt.Errorf("%s is %q; expected what a supervisor sets: unset it", environment, text)
	}
	return id, nil
}

// Worker is this process as a worker of a supervisor.
type Worker struct {
	identity
	listeners [][]*os.File // in the order of Addrs
	block     *block
	socket    *net.UnixConn
	out       *outbox // set with socket
	link      *upgrade.Link
	invalid   error // what is wrong with what was inherited
	taken     atomic.Bool
	exit      time.Duration // the most time from the end of the drain to the end of an orphan
}

// own is this process as a worker, nil if it is none. It is found out before main
// begins, so that no program that main starts takes itself for a worker or holds the
// worker's descriptors.
var own = detect()

// Own is this process as a worker, nil if it is none.
func Own() *Worker { return own }

func detect() *Worker {
	text, ok := os.LookupEnv(environment)
	if !ok {
		return nil
	}
	os.Unsetenv(environment)
	id, err := parseIdentity(text)
	w := &Worker{identity: id, exit: standard.exit}
	if err == nil {
		err = w.inherit()
	}
	w.invalid = err
	return w
}

// Take gives the inherited sockets, of each address, to the Server that the
// worker has been started for. It gives them once.
func (w *Worker) Take(addrs []Address, processes int) (all [][]net.Listener, err error) {
	switch {
	case w.invalid != nil:
		return nil, w.invalid
	case !slices.Equal(addrs, w.Addrs) || processes != w.Processes:
		return nil, fmt.Errorf("this process is a worker of the Server on %v with %d processes, "+
			"and this is the one on %v with %d; a worker serves one Server: see WorkerProcess",
			w.Addrs, w.Processes, addrs, processes)
	case w.taken.Swap(true):
		return nil, fmt.Errorf("this worker process has served on %v already; a worker serves once", addrs)
	}
	for _, files := range w.listeners {
		var some []net.Listener
		for _, f := range files {
			l, e := net.FileListener(f)
			if f.Close(); e != nil {
				err = errors.Join(err, e)
				continue
			}
			some = append(some, l)
		}
		all = append(all, some)
	}
	if err != nil {
		engine.CloseListeners(slices.Concat(all...))
		return nil, err
	}
	return all, nil
}

// Broadcast has a message sent to the connections of all workers, see
// [Supervisor.Broadcast].
func (w *Worker) Broadcast(p []byte) error {
	frame, err := broadcastFrame(p)
	if err != nil {
		return err
	}
	return w.out.put(frame, 0)
}

// PauseAccept has all workers accept nothing, or accept again.
func (w *Worker) PauseAccept(on bool) error { return w.out.put(holdFrame(on), 0) }

// ClosePeerConns closes the connections from a peer in all workers.
func (w *Worker) ClosePeerConns(peer netip.AddrPort) error { return w.out.put(expelFrame(peer), 0) }
