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

// Subject is a server of a scenario, or another compared program.
type Subject struct {
	// Name is the server's name in the report, at most 40 bytes, without spaces, slashes and
	// colons.
	Name string `json:"name" toml:"name"`
	// Apps are the apps that the server supports; nil is all.
	Apps []string `json:"apps,omitempty" toml:"apps"`
	// Workloads are the workloads to run it under; nil is all.
	Workloads []string `json:"workloads,omitempty" toml:"workloads"`
	// MaxConns is how many connections the server can hold, 0 for any number; Wall describes the
	// limit.
	MaxConns int    `json:"max_conns,omitempty" toml:"max_conns"`
	Wall     string `json:"wall,omitempty" toml:"wall"`
	// PerCPU makes {processes} at least the number of CPUs.
	PerCPU bool `json:"per_cpu,omitempty" toml:"per_cpu"`
	// Parks means that the command is no server: it parks "{n}" goroutines, prints samples as lines
	// of JSON and exits. It is run under Park only.
	Parks bool `json:"parks,omitempty" toml:"parks"`
	// Command is the program and its arguments, without a shell. Placeholders in braces are
	// replaced by CommandWithValues. The server listens on all addresses or on 127.0.0.1, stays in the
	// foreground and ends at SIGTERM.
	Command Words `json:"command" toml:"command"`
	// Models expands the subject to one for each of these I/O models that can run here; "{model}"
	// in its name and command is replaced by the model's name.
	Models []string `json:"-" toml:"models"`
	// OneTable means that the server has one descriptor table: MaxConns and Wall follow from the
	// hard RLIMIT_NOFILE.
	OneTable bool `json:"-" toml:"one_table"`
	// Protocol is its protocol under the app PubSub, as in load.PubSub. Default "redis".
	Protocol string `json:"protocol,omitempty" toml:"protocol"`
	// Optional excludes it if its program is not installed.
	Optional bool `json:"-" toml:"optional"`
	// Contender is set for a program that runs Jobs.
	Contender *Contender `json:"side,omitempty" toml:"side"`
}

// Contender describes a subject that runs jobs. Its command accepts the flags of "myriad offer",
// which are appended, and prints the same output.
type Contender struct {
	// FixedWorkers gives it the best number of workers; others may use up to 5,000.
	FixedWorkers bool `json:"told,omitempty" toml:"told"`
	// MeasuresCapacity runs it in a closed loop first to measure the capacity. With FixedWorkers
	// the number of workers is increased, and the best number is used by all contenders.
	MeasuresCapacity bool `json:"measures,omitempty" toml:"measures"`
}

// Placeholders that are replaced before a scenario is run. {peers} is the executable of the module
// peers, if given.
const (
	modelPlaceholder = "{model}"
	peersPlaceholder = "{peers}"
	autoModel        = models.Auto
)

// ParseSubject parses "name=command line", such as "mine=/usr/bin/server --port {port}", or
// "name:app,app=command line" for a server that supports only some apps. With isContender set, the subject
// is a contender.
func ParseSubject(text string, isContender bool) (Subject, error) {
	name, line, ok := strings.Cut(text, "=")
	if !ok {
		return Subject{}, Errorf("subject %q has no name; expected NAME=COMMAND, such as mine=\"/usr/bin/server {port}\"", text)
	}
	command, err := splitCommandLine(line)
	if err != nil {
		return Subject{}, err
	}
	s := Subject{Command: command}
	name, apps, some := strings.Cut(name, ":")
	if s.Name = name; some {
		s.Apps = strings.Split(apps, ",")
	}
	if isContender {
		s.Contender = &Contender{FixedWorkers: true}
	}
	return s, s.validateSubject()
}

// RunsJobs reports whether the scenario submits jobs.
func (s *Scenario) RunsJobs() bool {
	return slices.ContainsFunc(s.Workloads, func(w Workload) bool { return w.FindPhase(Jobs) != nil })
}

// validateSubject returns an Error if the subject can't be started.
func (s Subject) validateSubject() error {
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
	case s.Contender != nil && (s.commandHasPlaceholder("{addr}") || s.commandHasPlaceholder("{port}")):
		return Errorf("subject %s: an address in its command; expected none, where jobs are offered", s.Name)
	case s.Parks && !s.commandHasPlaceholder("{n}"):
		return Errorf("subject %s: command %q says no number of goroutines; expected {n} in it", s.Name, line)
	case s.Contender == nil && !s.Parks && !s.commandHasPlaceholder("{addr}") && !s.commandHasPlaceholder("{port}"):
		return Errorf("subject %s: command %q says no address; expected {addr} or {port} in it", s.Name, line)
	}
	return nil
}

// RunsUnderWorkload reports whether the subject is run under a workload.
func (s Subject) RunsUnderWorkload(w Workload) bool {
	return !s.commandHasPlaceholder(peersPlaceholder) &&
		(s.Contender != nil) == (w.FindPhase(Jobs) != nil) && s.Parks == (w.FindPhase(Park) != nil) &&
		(s.Apps == nil || slices.Contains(s.Apps, w.App)) &&
		(s.Workloads == nil || slices.Contains(s.Workloads, w.Name))
}

// HasAdmin reports whether the command has {admin}, an address for its figures.
func (s Subject) HasAdmin() bool { return s.commandHasPlaceholder("{admin}") }

// HasHeartbeat reports whether the subject sends heartbeats.
func (s Subject) HasHeartbeat() bool { return s.commandHasPlaceholder("{heartbeat}") }

func (s Subject) commandHasPlaceholder(placeholder string) bool {
	return slices.ContainsFunc(s.Command, func(word string) bool { return strings.Contains(word, placeholder) })
}

// ServerProcessesFor returns the number of server processes for a workload, {processes} if the command
// has that. Each gets at most three quarters of the connections that its descriptor table can hold,
// because the kernel distributes connections randomly.
func (s Subject) ServerProcessesFor(w Workload) int {
	if !s.commandHasPlaceholder("{processes}") {
		return 1
	}
	least := 1
	if s.PerCPU {
		least = max(runtime.NumCPU(), 2)
	}
	each := max(sock.MaxConnsForDescriptorLimit()*3/4, 1)
	return min(max((w.Connections+each-1)/each, least), maxProcesses)
}

// maxProcesses is the maximum of tcp.Server.Processes.
const maxProcesses = 1024

// MyriadModel returns the I/O model of a Myriad server, "" for others.
func (s Subject) MyriadModel() string {
	if len(s.Command) < 2 || s.Command[0] != "{self}" || s.Command[1] != "serve" {
		return ""
	}
	if i := slices.Index(s.Command, "--model"); i >= 0 && i+1 < len(s.Command) && slices.Contains(allModelNames(), s.Command[i+1]) {
		return s.Command[i+1]
	}
	return autoModel
}

// PlaceholderValues are the values of a command's placeholders.
type PlaceholderValues struct {
	Self, Addr, App, Admin string
	Cert, Key              string
	Heartbeat              time.Duration
	Connections, Processes int
}

// CommandWithValues returns the command with its placeholders replaced. {room} is the number of
// connections a server must accept: those of the load, with a margin for their random distribution
// over processes, and the lab's own.
func (s Subject) CommandWithValues(p PlaceholderValues) []string {
	_, port, _ := net.SplitHostPort(p.Addr) // a subject without a server has no address
	heartbeat := ""
	if p.Heartbeat > 0 {
		heartbeat = p.Heartbeat.String()
	}
	return s.Command.replaceInAllWords("{self}", p.Self, "{addr}", p.Addr, "{port}", port, "{app}", p.App,
		"{cert}", p.Cert, "{key}", p.Key, "{heartbeat}", heartbeat, "{admin}", p.Admin,
		"{n}", strconv.Itoa(p.Connections), "{room}", strconv.Itoa(p.connLimitForServer()), "{processes}", strconv.Itoa(p.Processes))
}

// connLimitForServer returns the value of {room}.
func (p PlaceholderValues) connLimitForServer() int {
	if p.Processes < 2 {
		return p.Connections + 1000
	}
	return p.Connections*3/2 + 1000*p.Processes
}

// LoadConnsWithinServerLimit returns how many connections of the load fit if the server accepts connLimitForServer.
func (p PlaceholderValues) LoadConnsWithinServerLimit(maxServerConns int) int {
	if p.Processes < 2 {
		return maxServerConns - 1000
	}
	return (maxServerConns - 1000*p.Processes) * 2 / 3
}

// allModelNames returns the I/O models, including those that can't run here.
func allModelNames() (names []string) {
	for _, m := range models.All() {
		names = append(names, m.Name)
	}
	return names
}
