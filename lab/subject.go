package lab

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Subject is one server of a scenario.
type Subject struct {
	// Name is what the server is called in the report, at most 40 bytes,
	// without spaces, slashes and colons.
	Name string `json:"name"`
	// Apps are those that the server can serve; it is not run under
	// workloads of another. Nil is all.
	Apps []string `json:"apps,omitempty"`
	// MaxConns is how many connections the server can hold, 0 for any
	// number: a workload with more is applied with as many.
	MaxConns int `json:"max_conns,omitempty"`
	// Wall says what stops the server at MaxConns, as the report has it for
	// Full workloads, which are not made smaller.
	Wall string `json:"wall,omitempty"`
	// PerProcess is how many connections each of the server's processes is to
	// have, 0 for a server of one process.
	PerProcess int `json:"per_process,omitempty"`
	// Parks says that the command is no server: it parks "{n}" goroutines, as
	// Park does, prints its samples as JSON, a line each, and ends. It is run
	// under Parking workloads only.
	Parks bool `json:"parks,omitempty"`
	// Command is the program and its arguments; no shell sees it. In each
	// word "{addr}" stands for the address to listen on, as host:port,
	// "{port}" for its port, "{app}" for the name of the app to serve, and
	// "{self}" for the executable that runs the lab. Under a workload with TLS
	// "{cert}" and "{key}" are the files with the certificate and its key, and
	// under one with heartbeats "{heartbeat}" is the time between two, such as
	// 1m0s; otherwise they are empty. "{n}" is how many connections there will
	// be, "{room}" as many and some for the lab's own, "{processes}" as many
	// processes as PerProcess asks for, and "{admin}" an address, as host:port, at
	// which the server shows metrics as "myriad serve --admin" does. It has
	// {addr} or {port}. The
	// server listens on all of its addresses or on 127.0.0.1, stays in the
	// foreground and ends at SIGTERM.
	Command []string `json:"command"`
}

// ParseSubject reads a subject written as "name=command line", such as
// "mine=/usr/bin/server --port {port}". One that can't serve all apps is written
// as "name:app,app=command line". The command line is split at spaces; single or
// double quotes keep spaces in a word, and nothing else is special. An error is
// a ScenarioError.
func ParseSubject(text string) (Subject, error) {
	name, line, ok := strings.Cut(text, "=")
	if !ok {
		return Subject{}, wrong("subject %q has no name; expected NAME=COMMAND, such as mine=\"/usr/bin/server {port}\"", text)
	}
	command, err := splitWords(line)
	if err != nil {
		return Subject{}, err
	}
	s := Subject{Command: command}
	name, apps, some := strings.Cut(name, ":")
	s.Name = name
	if some {
		s.Apps = strings.Split(apps, ",")
	}
	return s, s.check()
}

// splitWords splits a command line at spaces and tabs outside of quotes.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune // the quote that is open, or 0
	started := false
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, started = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if started {
				words = append(words, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteRune(c)
			started = true
		}
	}
	if quote != 0 {
		return nil, wrong("command %q has an open %c; expected it to be closed", line, quote)
	}
	if started {
		words = append(words, word.String())
	}
	return words, nil
}

// check returns a ScenarioError when the subject cannot be started.
func (s Subject) check() error {
	if err := s.checkName(); err != nil {
		return err
	}
	for _, app := range s.Apps {
		if !isApp(app) {
			return wrong("subject %s: app %q; expected %s", s.Name, app, appList)
		}
	}
	if s.MaxConns < 0 {
		return wrong("subject %s: at most %d connections; expected 1 or more, or 0 for any number", s.Name, s.MaxConns)
	}
	if s.PerProcess < 0 {
		return wrong("subject %s: %d connections a process; expected 1 or more, or 0 for one process", s.Name, s.PerProcess)
	}
	line := strings.Join(s.Command, " ")
	if s.Parks {
		if !strings.Contains(line, "{n}") {
			return wrong("subject %s: command %q says no number of goroutines; expected {n} in it", s.Name, line)
		}
		return nil
	}
	if !strings.Contains(line, "{addr}") && !strings.Contains(line, "{port}") {
		return wrong("subject %s: command %q says no address; expected {addr} or {port} in it", s.Name, line)
	}
	return nil
}

// checkName is the part of check that looks at the name, and that there is a
// command.
func (s Subject) checkName() error {
	if s.Name == "" || len(s.Name) > 40 || strings.ContainsAny(s.Name, "/: \t\r\n") {
		return wrong("subject name %q; expected 1 to 40 bytes without spaces, slashes and colons", s.Name)
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return wrong("subject %s has no command; expected a program and its arguments", s.Name)
	}
	return nil
}

// serves says whether the subject is run under a workload.
func (s Subject) serves(w Workload) bool {
	return s.Parks == (w.Kind == Parking) && (s.Apps == nil || slices.Contains(s.Apps, w.App))
}

// shows says whether the subject is told where to show its figures.
func (s Subject) shows() bool { return s.says("{admin}") }

// says says whether a placeholder is in the command.
func (s Subject) says(placeholder string) bool {
	return slices.ContainsFunc(s.Command, func(word string) bool { return strings.Contains(word, placeholder) })
}

// processes is how many processes the server has under a workload.
func (s Subject) processes(w Workload) int {
	if s.PerProcess == 0 {
		return 1
	}
	return (w.Connections + s.PerProcess - 1) / s.PerProcess
}

// beats says whether the subject is told to send heartbeats.
func (s Subject) beats() bool { return s.says("{heartbeat}") }

// place is what a command's placeholders stand for.
type place struct {
	self, addr, app string
	admin           string
	cert            *certificate
	heartbeat       time.Duration
	n, processes    int
}

// room is how many connections a server has to have room for beside those of the
// load: for the lab's own, and those of the moment.
const room = 100

// fill returns the command with its placeholders filled in. The address is
// host:port.
func (s Subject) fill(p place) []string {
	port := ""
	if !s.Parks {
		var err error
		if _, port, err = net.SplitHostPort(p.addr); err != nil {
			panic("lab: address without port: " + p.addr)
		}
	}
	cert, key, heartbeat := "", "", ""
	if p.cert != nil {
		cert, key = p.cert.cert, p.cert.key
	}
	if p.heartbeat > 0 {
		heartbeat = p.heartbeat.String()
	}
	placeholders := strings.NewReplacer("{self}", p.self, "{addr}", p.addr, "{port}", port, "{app}", p.app,
		"{cert}", cert, "{key}", key, "{heartbeat}", heartbeat, "{admin}", p.admin,
		"{n}", strconv.Itoa(p.n), "{room}", strconv.Itoa(p.n+room), "{processes}", strconv.Itoa(p.processes))
	words := make([]string, len(s.Command))
	for i, word := range s.Command {
		words[i] = placeholders.Replace(word)
	}
	return words
}
