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

// workerEnv is the environment variable that makes a process a worker. Its value is an identity encoded as JSON.
const workerEnv = "MYRIAD_WORKER"

type identity struct {
	// Index is the worker's number, starting at 0.
	Index     int
	Processes int
	// Addrs are the Server's addresses. Sockets contains the number of listening sockets for each address.
	Addrs   []Address
	Sockets []int
	// Held means that the worker waits for an order before it accepts connections.
	Held bool `json:",omitempty"`
	// PredecessorListeners is Config.PredecessorListeners.
	PredecessorListeners []int `json:",omitempty"`
}

func (id identity) String() string {
	text, _ := json.Marshal(id) // cannot fail
	return string(text)
}

func parseWorkerIdentity(text string) (id identity, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&id); err != nil || id.Index < 0 || id.Index >= id.Processes || len(id.Addrs) == 0 ||
		len(id.Sockets) != len(id.Addrs) || slices.Min(id.Sockets) < 1 {
		return id, fmt.Errorf("%s is %q, which no supervisor has set; unset it", workerEnv, text)
	}
	return id, nil
}

// Worker is this process in its role as a worker of a supervisor.
type Worker struct {
	identity
	listeners   [][]*os.File // in the order of Addrs
	block       *counterBlock
	page        []byte // see PageSize
	socket      *net.UnixConn
	out         *outbox // send queue of socket
	link        *upgrade.OrderConn
	invalid     error // why the inherited descriptors cannot be used
	claimed     atomic.Bool
	exitTimeout time.Duration // limit from the end of the drain to the exit of an orphan
}

var currentWorker = detectWorkerFromEnv()

// CurrentWorker returns the Worker of this process, or nil if this process is not a worker.
func CurrentWorker() *Worker { return currentWorker }

func detectWorkerFromEnv() *Worker {
	text, ok := os.LookupEnv(workerEnv)
	if !ok {
		return nil
	}
	os.Unsetenv(workerEnv) // child processes must not inherit it
	id, err := parseWorkerIdentity(text)
	w := &Worker{identity: id, exitTimeout: defaultTiming.exitTimeout}
	if err == nil {
		err = w.validateAndInheritDescriptors()
	}
	w.invalid = err
	return w
}

// ClaimListeners returns the inherited listeners of each address. It fails if addrs or processes differ from the
// supervisor's configuration. It succeeds only once.
func (w *Worker) ClaimListeners(addrs []Address, processes int) (all [][]net.Listener, err error) {
	switch {
	case w.invalid != nil:
		return nil, w.invalid
	case !slices.Equal(addrs, w.Addrs) || processes != w.Processes:
		return nil, fmt.Errorf("this process is a worker of the Server on %v with %d processes, "+
			"not of the one on %v with %d; a worker serves one Server: see WorkerProcess",
			w.Addrs, w.Processes, addrs, processes)
	case w.claimed.Swap(true):
		return nil, fmt.Errorf("this worker process has already served on %v; a worker serves once", addrs)
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

// SharedPage returns the memory page that all workers share; see PageSize.
func (w *Worker) SharedPage() []byte { return w.page }

// BroadcastToAllConns queues p for the connections of all workers; see [Supervisor.BroadcastToAllConns].
func (w *Worker) BroadcastToAllConns(p []byte) error {
	frame, err := encodeBroadcast(p)
	if err != nil {
		return err
	}
	return w.out.enqueue(frame, 0)
}

// PauseAccept asks the supervisor to make all workers stop accepting connections, or accept connections again if paused
// is false.
func (w *Worker) PauseAccept(paused bool) error {
	return w.out.enqueue(encodePauseOrResumeAccept(paused), 0)
}

// QueueCloseOfPeerConns asks the supervisor to make all workers close their connections from peer.
func (w *Worker) QueueCloseOfPeerConns(peer netip.AddrPort) error {
	return w.out.enqueue(encodeClosePeerConns(peer), 0)
}
