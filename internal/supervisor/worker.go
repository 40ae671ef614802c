package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Worker is this process as a worker of a supervisor.
type Worker struct {
	// Index numbers the workers from 0.
	Index int

	of        int // workers
	where     []Address
	listeners []*os.File // in their order
	block     *block
	line      *net.UnixConn
	out       *outbox // set with line
	invalid   error   // what is wrong with what the supervisor has handed down
	taken     atomic.Bool
	exit      time.Duration // the most time from the end of the drain to the end of an orphan
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
	parts := strings.Split(where, " ")
	if err1 != nil || err2 != nil || len(parts)%2 != 0 || w.Index < 0 || w.Index >= w.of {
		return w, bad
	}
	for p := range slices.Chunk(parts, 2) {
		w.where = append(w.where, Address{p[0], p[1]})
	}
	return w, nil
}

// places are addresses as the environment variable has them.
func places(all []Address) (s string) {
	for _, a := range all {
		s += " " + a.Network + " " + a.Addr
	}
	return s
}

// Take gives the inherited listeners, one for each address, to the Server that the
// worker has been started for. It gives them once.
func (w *Worker) Take(where []Address, processes int) (all []net.Listener, err error) {
	switch {
	case w.invalid != nil:
		return nil, w.invalid
	case !slices.Equal(where, w.where) || processes != w.of:
		return nil, fmt.Errorf("this process is a worker of the Server on%s with %d processes, "+
			"and this is the one on%s with %d; a worker serves one Server: see WorkerProcess",
			places(w.where), w.of, places(where), processes)
	case w.taken.Swap(true):
		return nil, fmt.Errorf("this worker process has served on%s already; a worker serves once", places(where))
	}
	for _, f := range w.listeners {
		l, e := net.FileListener(f)
		if f.Close(); e != nil {
			err = errors.Join(err, e)
			continue
		}
		all = append(all, l)
	}
	if err != nil {
		engine.CloseAll(all)
		return nil, err
	}
	return all, nil
}
