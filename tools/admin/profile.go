package admin

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This package does not import net/http/pprof, which would add profiles to the possibly public http.DefaultServeMux.

func replyProfileListPage(w http.ResponseWriter, _ *http.Request) {
	profiles := pprof.Profiles()
	slices.SortFunc(profiles, func(a, b *pprof.Profile) int { return strings.Compare(a.Name(), b.Name()) })
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Profiles</title></head><body>\n<form method=\"post\">\n<ul>\n")
	for _, p := range profiles {
		name := html.EscapeString(p.Name())
		fmt.Fprintf(&b, "<li><button formaction=\"%s?debug=1\">%s</button> %d</li>\n", name, name, p.Count())
	}
	b.WriteString("<li><button formaction=\"goroutine?debug=2\">goroutine</button> with whole stacks</li>\n" +
		"<li><button formaction=\"profile?seconds=30\">profile</button> of the CPU, 30 s, for go tool pprof</li>\n" +
		"<li><button formaction=\"../trace?seconds=1\">trace</button> of 1 s, for go tool trace</li>\n" +
		"<li><button formaction=\"../flight\">flight</button>: the flight recorder's last seconds, for go tool trace, if there is one</li>\n" +
		"<li><a href=\"cmdline\">cmdline</a></li>\n</ul>\n</form>\n</body></html>\n")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, b.String())
}

// replyProfile writes the requested profile. It accepts the query parameters debug and gc, as in net/http/pprof.
func replyProfile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	p, query := pprof.Lookup(name), r.URL.Query()
	if p == nil {
		replyText(w, http.StatusNotFound, fmt.Sprintf("no profile %q; /debug/pprof/ lists them", name))
		return
	}
	if query.Get("seconds") != "" {
		replyText(w, http.StatusBadRequest, "seconds is not supported for this profile; fetch two profiles and compare them with go tool pprof -diff_base")
		return
	}
	level, err := strconv.Atoi(query.Get("debug"))
	if text := query.Get("debug"); text != "" && (err != nil || level < 0 || level > 2) {
		replyText(w, http.StatusBadRequest, fmt.Sprintf("debug is %q; expected 0 (for go tool pprof), 1 or 2 (text)", text))
		return
	}
	if name == "heap" && query.Get("gc") == "1" && r.Method != http.MethodHead {
		debug.FreeOSMemory()
	}
	if level > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		setAttachmentHeader(w, name)
	}
	if r.Method != http.MethodHead {
		_ = p.WriteTo(w, level) // the peer may have disconnected
	}
}

func replyCommandLine(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, strings.Join(os.Args, "\x00"))
}

const (
	maxRecordingSeconds = 60
	// recordingWriteTimeout limits each write of a recording to the client.
	recordingWriteTimeout = 5 * time.Second
)

// oneAtATimeHandler serves a generated file to one client at a time, and rejects further requests.
type oneAtATimeHandler struct {
	what, file string
	write      func(w http.ResponseWriter, r *http.Request)

	busy sync.Mutex // held by the request in progress
}

func (e *oneAtATimeHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		setAttachmentHeader(w, e.file)
		return
	}
	if !e.busy.TryLock() {
		replyText(w, http.StatusConflict, "another "+e.what+" is in progress; try again when it is complete")
		return
	}
	defer e.busy.Unlock()
	e.write(w, r)
}

// newRuntimeRecordingHandler returns a handler that makes a recording of the Go runtime, such as a CPU profile or a
// trace, for the requested time. The handler sends the recording to the client.
func newRuntimeRecordingHandler(recordingName, downloadName string, defaultSeconds int, start func(io.Writer) error, stop func()) *oneAtATimeHandler {
	return &oneAtATimeHandler{what: recordingName, file: downloadName, write: func(w http.ResponseWriter, r *http.Request) {
		seconds, err := parseRecordingSeconds(r.URL.Query().Get("seconds"), defaultSeconds)
		if err != nil {
			replyText(w, http.StatusBadRequest, err.Error())
			return
		}
		setAttachmentHeader(w, downloadName)
		to := &abortingRecordingWriter{to: w, control: http.NewResponseController(w), failed: make(chan struct{})}
		if err := start(to); err != nil { // fails if the program itself is recording
			w.Header().Del("Content-Disposition")
			replyText(w, http.StatusConflict, fmt.Sprintf("no %s can be recorded now: %v", recordingName, err))
			return
		}
		defer stop() // stop returns after everything is written
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-to.failed:
		case <-r.Context().Done():
		}
	}}
}

func parseRecordingSeconds(text string, defaultSeconds int) (int, error) {
	if text == "" {
		return defaultSeconds, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxRecordingSeconds {
		return 0, fmt.Errorf("seconds is %q; expected 1 to %d, or nothing for the default, %d", text, maxRecordingSeconds, defaultSeconds)
	}
	return n, nil
}

// abortingRecordingWriter forwards a recording to the client until the first error. Calls of Write must not overlap.
type abortingRecordingWriter struct {
	to      io.Writer
	control *http.ResponseController
	once    sync.Once
	failed  chan struct{}
}

func (s *abortingRecordingWriter) Write(b []byte) (int, error) {
	select {
	case <-s.failed: // because the runtime continues to write after an error
		return 0, io.ErrClosedPipe
	default:
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(recordingWriteTimeout)) // not every ResponseWriter supports deadlines
	n, err := s.to.Write(b)
	if err != nil {
		s.once.Do(func() { close(s.failed) })
	}
	return n, err
}
