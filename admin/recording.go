package admin

import (
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync"
	"time"
)

// maxSeconds is how long a recording may be, and sendTime how long a piece of it
// may take to be sent: what the runtime records meanwhile waits in memory.
const (
	maxSeconds = 60
	sendTime   = 5 * time.Second
)

// recording serves what is recorded while the request lasts, one at a time.
type recording struct {
	what, file string
	standard   int // seconds
	start      func(io.Writer) (stop func(), err error)

	busy sync.Mutex // held by the request that records
}

func startProfile(w io.Writer) (stop func(), err error) {
	return pprof.StopCPUProfile, pprof.StartCPUProfile(w)
}

func startTrace(w io.Writer) (stop func(), err error) {
	return trace.Stop, trace.Start(w)
}

func (rec *recording) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seconds, err := seconds(r.URL.Query().Get("seconds"), rec.standard)
	if err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return
	}
	if r.Method == http.MethodHead {
		attach(w, rec.file)
		return
	}
	if !rec.busy.TryLock() {
		say(w, http.StatusConflict, "a "+rec.what+" is being recorded; expected one at a time: try again when it is done")
		return
	}
	defer rec.busy.Unlock()
	attach(w, rec.file)
	to := &sender{to: w, control: http.NewResponseController(w), failed: make(chan struct{})}
	stop, err := rec.start(to)
	if err != nil { // the program itself records
		w.Header().Del("Content-Disposition")
		say(w, http.StatusConflict, fmt.Sprintf("no %s can be recorded now: %v", rec.what, err))
		return
	}
	defer stop() // it returns when all is written
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-to.failed:
	case <-r.Context().Done():
	}
}

// seconds reads the length of a recording.
func seconds(text string, standard int) (int, error) {
	if text == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxSeconds {
		return 0, fmt.Errorf("seconds is %q; expected 1 to %d, or nothing for the default, %d", text, maxSeconds, standard)
	}
	return n, nil
}

// sender passes a recording on, and gives up when the peer does not take it.
// Only one goroutine writes at a time, which is what the runtime does.
type sender struct {
	to      io.Writer
	control *http.ResponseController
	once    sync.Once
	failed  chan struct{}
}

func (s *sender) Write(b []byte) (int, error) {
	select {
	case <-s.failed: // the runtime goes on writing after an error
		return 0, io.ErrClosedPipe
	default:
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(sendTime)) // not every ResponseWriter has one
	n, err := s.to.Write(b)
	if err != nil {
		s.once.Do(func() { close(s.failed) })
	}
	return n, err
}
