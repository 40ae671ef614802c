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

// listProfiles answers with the profiles that there are, and buttons that POST for them.
func listProfiles(w http.ResponseWriter, _ *http.Request) {
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

// showProfile answers with one of them. ?debug=1 and 2 ask for text, and ?gc=1
// for a collection of garbage before, as in net/http/pprof, whose memory goes back to
// the system at once.
func showProfile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	p, query := pprof.Lookup(name), r.URL.Query()
	if p == nil {
		say(w, http.StatusNotFound, fmt.Sprintf("there is no profile %q; /debug/pprof/ has the list", name))
		return
	}
	if query.Get("seconds") != "" {
		say(w, http.StatusBadRequest, "a difference over time is not made here; expected no seconds: fetch two profiles and use go tool pprof -diff_base")
		return
	}
	level, err := strconv.Atoi(query.Get("debug"))
	if text := query.Get("debug"); text != "" && (err != nil || level < 0 || level > 2) {
		say(w, http.StatusBadRequest, fmt.Sprintf("debug is %q; expected 0 (for go tool pprof), 1 or 2 (text)", text))
		return
	}
	if name == "heap" && query.Get("gc") == "1" && r.Method != http.MethodHead {
		debug.FreeOSMemory()
	}
	if level > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		attach(w, name)
	}
	if r.Method != http.MethodHead {
		_ = p.WriteTo(w, level) // the peer may have gone
	}
}

// showCommand answers with the command line, its words parted by zero bytes.
func showCommand(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, strings.Join(os.Args, "\x00"))
}
