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
)

// The profiles are served here and not by net/http/pprof, because whoever
// imports that has them in http.DefaultServeMux too, and so perhaps in the open.

// listProfiles answers with the profiles that there are.
func listProfiles(w http.ResponseWriter, _ *http.Request) {
	profiles := pprof.Profiles()
	slices.SortFunc(profiles, func(a, b *pprof.Profile) int { return strings.Compare(a.Name(), b.Name()) })
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Profiles</title></head><body>\n<ul>\n")
	for _, p := range profiles {
		name := html.EscapeString(p.Name())
		fmt.Fprintf(&b, "<li><a href=\"%s?debug=1\">%s</a> %d</li>\n", name, name, p.Count())
	}
	b.WriteString("<li><a href=\"goroutine?debug=2\">goroutine</a> with whole stacks</li>\n" +
		"<li><a href=\"profile?seconds=30\">profile</a> of the CPU, 30 s</li>\n" +
		"<li><a href=\"cmdline\">cmdline</a></li>\n</ul>\n</body></html>\n")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, b.String())
}

// showProfile answers with one of them. ?debug=1 and 2 ask for text, and ?gc=1
// for a collection of garbage before, as in net/http/pprof, whose memory goes back to
// the system at once.
func showProfile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	p := pprof.Lookup(name)
	if p == nil {
		say(w, http.StatusNotFound, fmt.Sprintf("there is no profile %q; /debug/pprof/ has the list", name))
		return
	}
	if r.FormValue("seconds") != "" {
		say(w, http.StatusBadRequest, "a difference over time is not made here; expected no seconds: fetch two profiles and use go tool pprof -diff_base")
		return
	}
	level, err := strconv.Atoi(r.FormValue("debug"))
	if text := r.FormValue("debug"); text != "" && (err != nil || level < 0 || level > 2) {
		say(w, http.StatusBadRequest, fmt.Sprintf("debug is %q; expected 0 (for go tool pprof), 1 or 2 (text)", text))
		return
	}
	if name == "heap" && r.FormValue("gc") == "1" && r.Method == http.MethodGet {
		debug.FreeOSMemory()
	}
	if level > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		attach(w, name)
	}
	if r.Method == http.MethodGet {
		_ = p.WriteTo(w, level) // the peer may have gone
	}
}

// showCommand answers with the command line, its words parted by zero bytes.
func showCommand(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, strings.Join(os.Args, "\x00"))
}
