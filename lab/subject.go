package lab

import (
	"net"
	"slices"
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
	// Command is the program and its arguments; no shell sees it. In each
	// word "{addr}" stands for the address to listen on, as host:port,
	// "{port}" for its port, "{app}" for the name of the app to serve, and
	// "{self}" for the executable that runs the lab. Under a workload with TLS
	// "{cert}" and "{key}" are the files with the certificate and its key, and
	// under one with heartbeats "{heartbeat}" is the time between two, such as
	// 1m0s; otherwise they are empty. It has {addr} or {port}. The
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
	line := strings.Join(s.Command, " ")
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

// serves says whether the subject can serve an app.
func (s Subject) serves(app string) bool { return s.Apps == nil || slices.Contains(s.Apps, app) }

// beats says whether the subject is told to send heartbeats.
func (s Subject) beats() bool {
	return slices.ContainsFunc(s.Command, func(word string) bool { return strings.Contains(word, "{heartbeat}") })
}

// place is what a command's placeholders stand for.
type place struct {
	self, addr, app string
	cert            *certificate
	heartbeat       time.Duration
}

// fill returns the command with its placeholders filled in. The address is
// host:port.
func (s Subject) fill(p place) []string {
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		panic("lab: address without port: " + p.addr)
	}
	cert, key, heartbeat := "", "", ""
	if p.cert != nil {
		cert, key = p.cert.cert, p.cert.key
	}
	if p.heartbeat > 0 {
		heartbeat = p.heartbeat.String()
	}
	placeholders := strings.NewReplacer("{self}", p.self, "{addr}", p.addr, "{port}", port, "{app}", p.app,
		"{cert}", cert, "{key}", key, "{heartbeat}", heartbeat)
	words := make([]string, len(s.Command))
	for i, word := range s.Command {
		words[i] = placeholders.Replace(word)
	}
	return words
}
