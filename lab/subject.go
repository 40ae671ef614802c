package lab

import (
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Subject is one server of a scenario.
type Subject struct {
	// Name is what the server is called in the report, at most 40 bytes,
	// without spaces, slashes and colons.
	Name string `json:"name" toml:"name"`
	// Apps are those that the server can serve; it is not run under
	// workloads of another. Nil is all.
	Apps []string `json:"apps,omitempty" toml:"apps"`
	// Workloads are the names of those that it is run under. Nil is all.
	Workloads []string `json:"workloads,omitempty" toml:"workloads"`
	// MaxConns is how many connections the server can hold, 0 for any
	// number: a workload with more is applied with as many.
	MaxConns int `json:"max_conns,omitempty" toml:"max_conns"`
	// Wall says what stops the server at MaxConns, as the report has it for
	// Full workloads, which are not made smaller.
	Wall string `json:"wall,omitempty" toml:"wall"`
	// PerProcess is how many connections each of the server's processes is to
	// have, 0 for a server of one process.
	PerProcess int `json:"per_process,omitempty" toml:"per_process"`
	// PerCPU says that the server is to have a process for each CPU of the machine at
	// least. Under Holding, where it has two at least, it does not count.
	PerCPU bool `json:"per_cpu,omitempty" toml:"per_cpu"`
	// Parks says that the command is no server: it parks "{n}" goroutines, as
	// Park does, prints its samples as JSON, a line each, and ends. It is run
	// under Parking workloads only.
	Parks bool `json:"parks,omitempty" toml:"parks"`
	// Command is the program and its arguments; no shell sees it. In each
	// word "{addr}" stands for the address to listen on, as host:port,
	// "{port}" for its port, "{app}" for the name of the app to serve, and
	// "{self}" for the executable that runs the lab. Under a workload with TLS
	// "{cert}" and "{key}" are the files with the certificate and its key, and
	// under one with heartbeats "{heartbeat}" is the time between two, such as
	// 1m0s; otherwise they are empty. "{n}" is how many connections there will
	// be, "{room}" as many and some for the lab's own, "{processes}" as many
	// processes as PerProcess and PerCPU ask for, and "{admin}" an address, as host:port, at
	// which the server shows metrics as "myriad serve --admin" does. It has
	// {addr} or {port}. The
	// server listens on all of its addresses or on 127.0.0.1, stays in the
	// foreground and ends at SIGTERM. One with a Side has fewer: see there.
	Command Words `json:"command" toml:"command"`
	// Models has the subject stand for one of each of these I/O models that can run
	// here: "{model}" in its name and in its command is the model's name.
	Models []string `json:"-" toml:"models"`
	// Optional has the subject left out, unless Options.With asks for it.
	Optional bool `json:"optional,omitempty" toml:"optional"`
	// OneTable says that the server has one table of descriptors: it can hold as many
	// connections as the hard RLIMIT_NOFILE leaves, and MaxConns and Wall say so.
	OneTable bool `json:"-" toml:"one_table"`
	// PerTable says that each of the server's processes has one table of descriptors, so
	// that it is to have as many processes as they ask for: PerProcess is three quarters of
	// what one can hold, since the kernel spreads connections over them by chance.
	PerTable bool `json:"-" toml:"per_table"`
	// Side is set for one that is offered jobs: kind Offering.
	Side *Side `json:"side,omitempty" toml:"side"`
}

// Words are a command line. In a file it is one text, which is split as ParseSubject does
// it, or a list of texts.
type Words []string

// ParseSubject reads a subject written as "name=command line", such as
// "mine=/usr/bin/server --port {port}". One that can't serve all apps is written
// as "name:app,app=command line". The command line is split at spaces; single or
// double quotes keep spaces in a word, and nothing else is special. An error is
// a ScenarioError.
func ParseSubject(text string) (Subject, error) {
	s, err := parseSubject(text)
	if err != nil {
		return Subject{}, err
	}
	return s, s.check()
}

// ParseSubject reads a subject that is to join the scenario, as the function of that name
// does. Where the scenario offers jobs, that is one more side of them.
func (s *Scenario) ParseSubject(text string) (Subject, error) {
	x, err := parseSubject(text)
	if err != nil {
		return Subject{}, err
	}
	if slices.ContainsFunc(s.Workloads, func(w Workload) bool { return w.Kind == Offering }) {
		x.Side = &Side{Told: true}
	}
	return x, x.check()
}

func parseSubject(text string) (Subject, error) {
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
	return s, nil
}

// splitWords splits a command line at spaces, tabs and ends of lines outside of quotes.
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
		case quote == 0 && strings.ContainsRune(" \t\r\n", c):
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
	if s.OneTable && (s.PerTable || s.MaxConns > 0) {
		return wrong("subject %s: one_table beside per_table or max_conns; expected one of them", s.Name)
	}
	if err := s.checkModels(); err != nil {
		return err
	}
	if err := s.checkPlaceholders(); err != nil {
		return err
	}
	if s.Side != nil && !s.Side.Server {
		return nil // it offers jobs to itself
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

// checkModels is the part of check that looks at the models.
func (s Subject) checkModels() error {
	if len(s.Models) == 0 && (strings.Contains(s.Name, modelMark) || s.says(modelMark)) {
		return wrong("subject %s: {model} without models; expected models = [%q]", s.Name, "epoll")
	}
	for _, m := range s.Models {
		if m != autoModel && !slices.Contains(modelNames(), m) {
			return wrong("subject %s: model %q; expected %s or %s", s.Name, m, strings.Join(modelNames(), ", "), autoModel)
		}
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
	if s.Optional || w.Optional || (s.Side != nil) != (w.Kind == Offering) || s.Side != nil && s.Side.Server != w.Offer.network() {
		return false
	}
	return s.Parks == (w.Kind == Parking) && (s.Apps == nil || slices.Contains(s.Apps, w.App)) &&
		(s.Workloads == nil || slices.Contains(s.Workloads, w.Name))
}

// shows says whether the subject is told where to show its figures.
func (s Subject) shows() bool { return s.says("{admin}") }

// says says whether a placeholder is in the command.
func (s Subject) says(placeholder string) bool {
	return slices.ContainsFunc(s.Command, func(word string) bool { return strings.Contains(word, placeholder) })
}

// processes is how many processes the server has under a workload.
func (s Subject) processes(w Workload) int {
	least := 1
	if s.PerCPU {
		least = runtime.NumCPU()
	}
	if s.PerProcess == 0 {
		return least
	}
	return max((w.Connections+s.PerProcess-1)/s.PerProcess, least)
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
	room            int // 0 is n and some for the lab's own
	workers         int // of a server that is offered lines
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
	if p.room == 0 {
		p.room = p.n + room
	}
	placeholders := strings.NewReplacer("{self}", p.self, "{addr}", p.addr, "{port}", port, "{app}", p.app,
		"{cert}", cert, "{key}", key, "{heartbeat}", heartbeat, "{admin}", p.admin,
		"{n}", strconv.Itoa(p.n), "{room}", strconv.Itoa(p.room), "{processes}", strconv.Itoa(p.processes), "{workers}", strconv.Itoa(p.workers))
	words := make([]string, len(s.Command))
	for i, word := range s.Command {
		words[i] = placeholders.Replace(word)
	}
	return words
}
