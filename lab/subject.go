package lab

import (
	"net"
	"slices"
	"strings"
)

// Subject is one server of a scenario.
type Subject struct {
	// Name is what the server is called in the report, at most 40 bytes,
	// without spaces, slashes and colons.
	Name string `json:"name"`
	// Apps are those that the server can serve; it is not run under
	// workloads of another. Nil is all.
	Apps []string `json:"apps,omitempty"`
	// Command is the program and its arguments; no shell sees it. In each
	// word "{addr}" stands for the address to listen on, as host:port,
	// "{port}" for its port, "{app}" for the name of the app to serve, and
	// "{self}" for the executable that runs the lab. It has {addr} or {port}. The
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
	if s.Name == "" || len(s.Name) > 40 || strings.ContainsAny(s.Name, "/: \t\r\n") {
		return wrong("subject name %q; expected 1 to 40 bytes without spaces, slashes and colons", s.Name)
	}
	for _, app := range s.Apps {
		if !isApp(app) {
			return wrong("subject %s: app %q; expected %s", s.Name, app, appList)
		}
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return wrong("subject %s has no command; expected a program and its arguments", s.Name)
	}
	line := strings.Join(s.Command, " ")
	if !strings.Contains(line, "{addr}") && !strings.Contains(line, "{port}") {
		return wrong("subject %s: command %q says no address; expected {addr} or {port} in it", s.Name, line)
	}
	return nil
}

// serves says whether the subject can serve an app.
func (s Subject) serves(app string) bool { return s.Apps == nil || slices.Contains(s.Apps, app) }

// fill returns the command with its placeholders filled in. The address is
// host:port.
func (s Subject) fill(self, addr, app string) []string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic("lab: address without port: " + addr)
	}
	placeholders := strings.NewReplacer("{self}", self, "{addr}", addr, "{port}", port, "{app}", app)
	words := make([]string, len(s.Command))
	for i, word := range s.Command {
		words[i] = placeholders.Replace(word)
	}
	return words
}
