package scenario

import (
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/load"
)

// Subject is one server of a scenario, or another program that is compared.
type Subject struct {
	// Name is what the server is called in the report, at most 40 bytes, without spaces,
	// slashes and colons.
	Name string `json:"name" toml:"name"`
	// Apps are those that the server can serve; it is not run under workloads of another.
	// Nil is all.
	Apps []string `json:"apps,omitempty" toml:"apps"`
	// Workloads are the names of those that it is run under. Nil is all.
	Workloads []string `json:"workloads,omitempty" toml:"workloads"`
	// MaxConns is how many connections the server can hold, 0 for any number, and Wall
	// says what stops it there.
	MaxConns int    `json:"max_conns,omitempty" toml:"max_conns"`
	Wall     string `json:"wall,omitempty" toml:"wall"`
	// PerCPU says that {processes} is as many as there are CPUs at least.
	PerCPU bool `json:"per_cpu,omitempty" toml:"per_cpu"`
	// Parks says that the command is no server: it parks "{n}" goroutines, prints samples
	// as JSON, a line each, and ends. It is run under Park only.
	Parks bool `json:"parks,omitempty" toml:"parks"`
	// Command is the program and its arguments; no shell sees it. The words in braces are
	// those of Fill. The server listens on all of its addresses or on 127.0.0.1,
	// stays in the foreground and ends at SIGTERM.
	Command Words `json:"command" toml:"command"`
	// Models has the subject stand for one of each of these I/O models that can run here:
	// "{model}" in its name and in its command is the model's name.
	Models []string `json:"-" toml:"models"`
	// OneTable says that the server has one table of descriptors: MaxConns and Wall follow
	// from the hard RLIMIT_NOFILE.
	OneTable bool `json:"-" toml:"one_table"`
	// Protocol is what it speaks under the app PubSub, as load.PubSub has it. Default
	// "redis".
	Protocol string `json:"protocol,omitempty" toml:"protocol"`
	// Optional has it left out where its program is not installed.
	Optional bool `json:"-" toml:"optional"`
	// Contender is set for one that is offered Jobs.
	Contender *Contender `json:"side,omitempty" toml:"side"`
}

// Contender says how a subject is offered jobs. Its command understands the flags of "myriad
// offer", which are put behind it, and prints what that prints.
type Contender struct {
	// FixedWorkers says that it gets the best number of workers; others may have 5,000.
	FixedWorkers bool `json:"told,omitempty" toml:"told"`
	// MeasuresCapacity says that it runs in a closed loop first, to measure the capacity: with
	// more and more workers with a given number, and the best of these is the number
	// that all get.
	MeasuresCapacity bool `json:"measures,omitempty" toml:"measures"`
}

// Placeholders that are filled in before a scenario is run. {peers} stands for the executable
// of the module peers where it is given.
const (
	modelPlaceholder = "{model}"
	peersPlaceholder = "{peers}"
	autoModel        = models.Auto
)

// ParseSubject reads a subject written as "name=command line", such as
// "mine=/usr/bin/server --port {port}". One that can't serve all apps is written as
// "name:app,app=command line". Where jobs is set it is offered jobs.
func ParseSubject(text string, jobs bool) (Subject, error) {
	name, line, ok := strings.Cut(text, "=")
	if !ok {
		return Subject{}, Errorf("subject %q has no name; expected NAME=COMMAND, such as mine=\"/usr/bin/server {port}\"", text)
	}
	command, err := splitWords(line)
	if err != nil {
		return Subject{}, err
	}
	s := Subject{Command: command}
	name, apps, some := strings.Cut(name, ":")
	if s.Name = name; some {
		s.Apps = strings.Split(apps, ",")
	}
	if jobs {
		s.Contender = &Contender{FixedWorkers: true}
	}
	return s, s.validate()
}

// RunsJobs says whether the scenario's subjects are offered jobs.
func (s *Scenario) RunsJobs() bool {
	return slices.ContainsFunc(s.Workloads, func(w Workload) bool { return w.FindPhase(Jobs) != nil })
}

// validate returns an Error when the subject cannot be started.
func (s Subject) validate() error {
	if s.Name == "" || len(s.Name) > 40 || strings.ContainsAny(s.Name, "/: \t\r\n") {
		return Errorf("subject name %q; expected 1 to 40 bytes without spaces, slashes and colons", s.Name)
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return Errorf("subject %s has no command; expected a program and its arguments", s.Name)
	}
	for _, name := range s.Apps {
		if !isAppName(name) {
			return Errorf("subject %s: app %q; expected %s", s.Name, name, appList)
		}
	}
	if s.Protocol != "" && !slices.Contains(load.Protocols, s.Protocol) {
		return Errorf("subject %s: protocol %q; expected %s", s.Name, s.Protocol, strings.Join(load.Protocols, " or "))
	}
	for _, m := range s.Models {
		if m != autoModel && !slices.Contains(allModelNames(), m) {
			return Errorf("subject %s: model %q; expected %s or %s", s.Name, m, strings.Join(allModelNames(), ", "), autoModel)
		}
	}
	line := strings.Join(s.Command, " ")
	switch {
	case s.MaxConns < 0:
		return Errorf("subject %s: at most %d connections; expected 1 or more, or 0 for any number", s.Name, s.MaxConns)
	case s.OneTable && s.MaxConns > 0:
		return Errorf("subject %s: one_table beside max_conns; expected one of them", s.Name)
	case len(s.Models) == 0 && strings.Contains(s.Name+line, modelPlaceholder):
		return Errorf("subject %s: {model} without models; expected models = [%q]", s.Name, "epoll")
	case s.Contender != nil && (s.commandContains("{addr}") || s.commandContains("{port}")):
		return Errorf("subject %s: an address in its command; expected none, where jobs are offered", s.Name)
	case s.Parks && !s.commandContains("{n}"):
		return Errorf("subject %s: command %q says no number of goroutines; expected {n} in it", s.Name, line)
	case s.Contender == nil && !s.Parks && !s.commandContains("{addr}") && !s.commandContains("{port}"):
		return Errorf("subject %s: command %q says no address; expected {addr} or {port} in it", s.Name, line)
	}
	return nil
}

// CanRun says whether the subject is run under a workload.
func (s Subject) CanRun(w Workload) bool {
	return !s.commandContains(peersPlaceholder) &&
		(s.Contender != nil) == (w.FindPhase(Jobs) != nil) && s.Parks == (w.FindPhase(Park) != nil) &&
		(s.Apps == nil || slices.Contains(s.Apps, w.App)) &&
		(s.Workloads == nil || slices.Contains(s.Workloads, w.Name))
}

// HasAdmin says whether the subject gets an address at which to show its figures.
func (s Subject) HasAdmin() bool { return s.commandContains("{admin}") }

// HasHeartbeat says whether the subject is to send heartbeats.
func (s Subject) HasHeartbeat() bool { return s.commandContains("{heartbeat}") }

func (s Subject) commandContains(placeholder string) bool {
	return slices.ContainsFunc(s.Command, func(word string) bool { return strings.Contains(word, placeholder) })
}

// ProcessesFor is how many processes the server is to have under a workload: {processes},
// where its command has that. Each is to have three quarters of the connections that its table
// of descriptors can hold, since the kernel spreads connections over them by chance.
func (s Subject) ProcessesFor(w Workload) int {
	if !s.commandContains("{processes}") {
		return 1
	}
	least := 1
	if s.PerCPU {
		least = max(runtime.NumCPU(), 2)
	}
	each := max(sock.MaxConns()*3/4, 1)
	return min(max((w.Connections+each-1)/each, least), maxProcesses)
}

// maxProcesses is the most that a Server starts.
const maxProcesses = 1024

// Model is the I/O model of a server of Myriad's own, "" for any other.
func (s Subject) Model() string {
	if len(s.Command) < 2 || s.Command[0] != "{self}" || s.Command[1] != "serve" {
		return ""
	}
	if i := slices.Index(s.Command, "--model"); i >= 0 && i+1 < len(s.Command) && slices.Contains(allModelNames(), s.Command[i+1]) {
		return s.Command[i+1]
	}
	return autoModel
}

// CommandValues is what a command's placeholders stand for.
type CommandValues struct {
	Self, Addr, App, Admin string
	Cert, Key              string
	Heartbeat              time.Duration
	Connections, Processes int
}

// FillCommand returns the command with its placeholders filled in. {room} is what a server has to
// have room for: the connections of the load, chance in how they are spread over processes,
// and the lab's own.
func (s Subject) FillCommand(p CommandValues) []string {
	_, port, _ := net.SplitHostPort(p.Addr) // a subject that is no server has none
	heartbeat := ""
	if p.Heartbeat > 0 {
		heartbeat = p.Heartbeat.String()
	}
	return s.Command.replaceAll("{self}", p.Self, "{addr}", p.Addr, "{port}", port, "{app}", p.App,
		"{cert}", p.Cert, "{key}", p.Key, "{heartbeat}", heartbeat, "{admin}", p.Admin,
		"{n}", strconv.Itoa(p.Connections), "{room}", strconv.Itoa(p.maxServerConns()), "{processes}", strconv.Itoa(p.Processes))
}

// maxServerConns is {room}.
func (p CommandValues) maxServerConns() int {
	if p.Processes < 2 {
		return p.Connections + 1000
	}
	return p.Connections*3/2 + 1000*p.Processes
}

// FittingConns is how many connections fit into a {room}.
func (p CommandValues) FittingConns(maxServerConns int) int {
	if p.Processes < 2 {
		return maxServerConns - 1000
	}
	return (maxServerConns - 1000*p.Processes) * 2 / 3
}

// allModelNames are the I/O models, whether they can run here or not.
func allModelNames() (names []string) {
	for _, m := range models.All() {
		names = append(names, m.Name)
	}
	return names
}
