package supervisor

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Worker is this process as a worker of a supervisor.
type Worker struct {
	// Index numbers the workers from 0.
	Index int

	of            int // workers
	network, addr string
	listener      *os.File
	block         *block
	line          *net.UnixConn
	out           *outbox // set with line
	invalid       error   // what is wrong with what the supervisor has handed down
	taken         atomic.Bool
	exit          time.Duration // the most time from the end of the drain to the end of an orphan
}

// own is this process as a worker, nil if it is none. It is found out before
// main begins, so that no program that main starts takes itself for a worker or
// holds the worker's descriptors.
var own = inherit()

// Own is this process as a worker, nil if it is none.
func Own() *Worker { return own }

func inherit() *Worker {
	value, ok := os.LookupEnv(environment)
	if !ok {
		return nil
	}
	os.Unsetenv(environment)
	w, err := parse(value)
	if err == nil {
		err = w.adopt()
	}
	w.invalid = err
	return w
}

// parse reads the environment variable.
func parse(value string) (*Worker, error) {
	w := &Worker{exit: standard.exit}
	bad := fmt.Errorf("%s is %q; expected what a supervisor sets: unset it", environment, value)
	number, where, ok := strings.Cut(value, " ")
	if !ok {
		return w, bad
	}
	index, of, ok := strings.Cut(number, "/")
	if !ok {
		return w, bad
	}
	var err1, err2 error
	w.Index, err1 = strconv.Atoi(index)
	w.of, err2 = strconv.Atoi(of)
	w.network, w.addr, ok = strings.Cut(where, " ")
	if err1 != nil || err2 != nil || !ok || w.Index < 0 || w.Index >= w.of {
		return w, bad
	}
	return w, nil
}

// Take gives the inherited listener to the Server that the worker has been
// started for. It gives it once.
func (w *Worker) Take(network, addr string, processes int) (net.Listener, error) {
	switch {
	case w.invalid != nil:
		return nil, w.invalid
	case network != w.network || addr != w.addr || processes != w.of:
		return nil, fmt.Errorf("this process is a worker of the Server on %s %s with %d processes, "+
			"and this is the one on %s %s with %d; a worker serves one Server: see WorkerProcess",
			w.network, w.addr, w.of, network, addr, processes)
	case w.taken.Swap(true):
		return nil, fmt.Errorf("this worker process has served on %s %s already; a worker serves once", network, addr)
	}
	defer w.listener.Close()
	return net.FileListener(w.listener)
}
