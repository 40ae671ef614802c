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

// Subject is one of the programs that a scenario compares, usually a server.
type Subject struct {
	// Name is the subject's name in the report. It has at most 40 bytes and no spaces, slashes or colons.
	Name string `json:"name" toml:"name"`
	// Apps lists the apps that the server supports. Nil means all.
	Apps []string `json:"apps,omitempty" toml:"apps"`
	// Workloads lists the workloads under which the subject runs. Nil means all.
	Workloads []string `json:"workloads,omitempty" toml:"workloads"`
	// MaxConns is the number of connections that the server can hold. 0 means any number. Wall describes the limit.
	MaxConns int    `json:"max_conns,omitempty" toml:"max_conns"`
	Wall     string `json:"wall,omitempty" toml:"wall"`
	// PerCPU makes the placeholder {processes} at least the number of CPUs, and at least 2.
	PerCPU bool `json:"per_cpu,omitempty" toml:"per_cpu"`
	// Parks reports that the command is not a server: it parks "{n}" goroutines, prints samples as lines of JSON, and
	// exits. It runs only in Park phases.
	Parks bool `json:"parks,omitempty" toml:"parks"`
	// Command is the program and its arguments, run without a shell. CommandWithValues replaces placeholders in braces.
	// The server must listen on all addresses or on 127.0.0.1, stay in the foreground, and exit on SIGTERM.
	Command Words `json:"command" toml:"command"`
	// Config is the text of a file, with placeholders. The file's path replaces "{config}" in the command.
	Config string `json:"config,omitempty" toml:"config"`
	// Models lists I/O models. One subject for each model that can run here replaces this subject. The model's name
	// replaces "{model}" in the subject's name and command.
	Models []string `json:"-" toml:"models"`
	// OneTable reports that the server has one descriptor table. RLIMIT_NOFILE then determines MaxConns and Wall.
	OneTable bool `json:"-" toml:"one_table"`
	// Protocol is the protocol that the subject uses for the app PubSub, as in load.PubSub. The default is "redis".
	Protocol string `json:"protocol,omitempty" toml:"protocol"`
	// Optional excludes the subject if its program is not installed.
	Optional bool `json:"-" toml:"optional"`
	// Contender is set for a program that runs in Jobs phases.
	Contender *Contender `json:"side,omitempty" toml:"side"`
}

// Contender describes a subject that runs jobs. The lab appends flags to the subject's command, which are those of the
// command "myriad offer". The program must accept these flags, and print its results in the same format as "myriad
// offer".
type Contender struct {
	// FixedWorkers sets the number of workers that has proved best. Other contenders use up to 5,000.
	FixedWorkers bool `json:"told,omitempty" toml:"told"`
	// MeasuresCapacity first runs the contender in a closed loop, to measure the capacity. With FixedWorkers, this is
	// repeated with more and more workers, and all contenders with FixedWorkers then use the best number.
	MeasuresCapacity bool `json:"measures,omitempty" toml:"measures"`
}

// Placeholders in a subject's command that are replaced before a scenario runs. The name of an I/O model replaces
// {model}. The path of an executable replaces {peers}; see WithPeersExecutable.
const (
	modelPlaceholder = "{model}"
	peersPlaceholder = "{peers}"
	autoModel        = models.Auto
)

// ParseSubject parses "name=command line", such as "mine=/usr/bin/server --port {port}". For a server that supports
// only some apps, the format is "name:app,app=command line". If isContender is set, the result has a Contender.
func ParseSubject(nameAndAppsEqualsCommand string, isContender bool) (Subject, error) {
	name, line, ok := strings.Cut(nameAndAppsEqualsCommand, "=")
	if !ok {
		return Subject{}, Errorf("subject %q has no name; expected NAME=COMMAND, such as mine=\"/usr/bin/server {port}\"", nameAndAppsEqualsCommand)
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

func (s *Scenario) RunsJobs() bool {
	return slices.ContainsFunc(s.Workloads, func(w Workload) bool { return w.FindPhase(Jobs) != nil })
}

func (s Subject) validateSubject() error {
	if s.Name == "" || len(s.Name) > 40 || strings.ContainsAny(s.Name, "/: \t\r\n") {
		return Errorf("subject name is %q; expected 1 to 40 bytes without spaces, slashes and colons", s.Name)
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return Errorf("subject %s has no command; expected a program and its arguments", s.Name)
	}
	for _, name := range s.Apps {
		if !isAppName(name) {
			return Errorf("subject %s: unknown app %q; expected %s", s.Name, name, appList)
		}
	}
	if s.Protocol != "" && !slices.Contains(load.Protocols, s.Protocol) {
		return Errorf("subject %s: unknown protocol %q; expected %s", s.Name, s.Protocol, strings.Join(load.Protocols, " or "))
	}
	for _, m := range s.Models {
		if m != autoModel && !slices.Contains(allModelNames(), m) {
			return Errorf("subject %s: unknown model %q; expected %s or %s", s.Name, m, strings.Join(allModelNames(), ", "), autoModel)
		}
	}
	line := strings.Join(s.Command, " ")
	switch {
	case s.MaxConns < 0:
		return Errorf("subject %s: max_conns is %d; expected 1 or more, or 0 for no limit", s.Name, s.MaxConns)
	case s.OneTable && s.MaxConns > 0:
		return Errorf("subject %s: one_table and max_conns are both set; expected one of the two", s.Name)
	case len(s.Models) == 0 && strings.Contains(s.Name+line, modelPlaceholder):
		return Errorf("subject %s: {model} is used without models; expected models, such as models = [%q]", s.Name, "epoll")
	case s.Contender != nil && (s.commandHasPlaceholder("{addr}") || s.commandHasPlaceholder("{port}")):
		return Errorf("subject %s: command contains {addr} or {port}; expected neither for a subject that runs jobs", s.Name)
	case s.Parks && !s.commandHasPlaceholder("{n}"):
		return Errorf("subject %s: command is %q; expected {n} in it, for the number of goroutines", s.Name, line)
	case s.Contender == nil && !s.Parks && !s.commandHasPlaceholder("{addr}") && !s.commandHasPlaceholder("{port}"):
		return Errorf("subject %s: command is %q; expected {addr} or {port} in it", s.Name, line)
	}
	return nil
}

// RunsUnderWorkload reports whether the subject runs under the workload w. The subject must support the app and the
// kind of phases, Workloads must permit the workload, and no {peers} may be left in the command.
func (s Subject) RunsUnderWorkload(w Workload) bool {
	return !s.commandHasPlaceholder(peersPlaceholder) &&
		(s.Contender != nil) == (w.FindPhase(Jobs) != nil) && s.Parks == (w.FindPhase(Park) != nil) &&
		(s.Apps == nil || slices.Contains(s.Apps, w.App)) &&
		(s.Workloads == nil || slices.Contains(s.Workloads, w.Name))
}

// HasAdmin reports whether the subject has an admin address: whether its command or Config contains {admin}.
func (s Subject) HasAdmin() bool { return s.commandHasPlaceholder("{admin}") }

// HasHeartbeat reports whether the subject can send heartbeats: whether its command or Config contains {heartbeat}.
func (s Subject) HasHeartbeat() bool { return s.commandHasPlaceholder("{heartbeat}") }

func (s Subject) commandHasPlaceholder(placeholder string) bool {
	return strings.Contains(s.Config, placeholder) || slices.ContainsFunc(s.Command, func(word string) bool { return strings.Contains(word, placeholder) })
}

// ServerProcessesFor returns the number of server processes for a workload. The number is 1 if the command and Config
// do not contain {processes}.
//
// Otherwise, there are enough processes for each one to need at most three quarters of its descriptor table if the
// connections are distributed equally. The last quarter is a reserve, because the kernel distributes connections
// unevenly. If PerCPU is set, there are at least as many processes as CPUs, and at least 2. The maximum is
// maxProcesses.
func (s Subject) ServerProcessesFor(w Workload) int {
	if !s.commandHasPlaceholder("{processes}") {
		return 1
	}
	least := 1
	if s.PerCPU {
		least = max(runtime.NumCPU(), 2)
	}
	each := max(sock.DefaultMaxConnsForDescriptorLimit()*3/4, 1)
	return min(max((w.Connections+each-1)/each, least), maxProcesses)
}

const maxProcesses = 1024

// MyriadModel returns the I/O model of a Myriad server, or "" for other subjects.
func (s Subject) MyriadModel() string {
	if len(s.Command) < 2 || s.Command[0] != "{self}" || s.Command[1] != "serve" {
		return ""
	}
	if i := slices.Index(s.Command, "--model"); i >= 0 && i+1 < len(s.Command) && slices.Contains(allModelNames(), s.Command[i+1]) {
		return s.Command[i+1]
	}
	return autoModel
}

// HasCompactTLS reports whether the subject is a Myriad server that uses its own compact TLS implementation instead of
// crypto/tls after the handshake.
func (s Subject) HasCompactTLS() bool {
	model := s.MyriadModel()
	return model != "" && model != "goroutine" && !slices.Contains(s.Command, "--disable-compact-tls")
}

// PlaceholderValues contains values for the placeholders in commands and configuration files.
type PlaceholderValues struct {
	Self, Addr, App, Admin string
	Cert, Key              string
	Files                  string // directory of the files that the app Web serves
	Config                 string // path of the subject's configuration file
	Heartbeat              time.Duration
	Connections, Processes int
}

// CommandWithValues returns the command with its placeholders replaced.
//
// The value of {room} is the number of connections that the server must be able to accept. It is greater than
// p.Connections for two reasons: package run opens some connections itself, and the kernel distributes connections
// unevenly among several processes.
func (s Subject) CommandWithValues(p PlaceholderValues) []string {
	return s.Command.replaceInAllWords(p.placeholdersWithValues()...)
}

func (s Subject) ConfigWithValues(p PlaceholderValues) string {
	return strings.NewReplacer(p.placeholdersWithValues()...).Replace(s.Config)
}

// placeholdersWithValues returns each placeholder followed by its value, as strings.NewReplacer expects.
func (p PlaceholderValues) placeholdersWithValues() []string {
	_, port, _ := net.SplitHostPort(p.Addr) // a subject without a server has no address
	heartbeat := ""
	if p.Heartbeat > 0 {
		heartbeat = p.Heartbeat.String()
	}
	return []string{"{self}", p.Self, "{addr}", p.Addr, "{port}", port, "{app}", p.App, "{files}", p.Files, "{config}", p.Config,
		"{cert}", p.Cert, "{key}", p.Key, "{heartbeat}", heartbeat, "{admin}", p.Admin,
		"{n}", strconv.Itoa(p.Connections), "{room}", strconv.Itoa(p.connLimitForServer()), "{processes}", strconv.Itoa(p.Processes)}
}

func (p PlaceholderValues) connLimitForServer() int {
	if p.Processes < 2 {
		return p.Connections + 1000
	}
	return p.Connections*3/2 + 1000*p.Processes
}

// MaxLoadConns returns how many connections the load generator may open to a server that can accept maxServerConns
// connections. The difference is a reserve, as for {room} in CommandWithValues.
func (p PlaceholderValues) MaxLoadConns(maxServerConns int) int {
	if p.Processes < 2 {
		return maxServerConns - 1000
	}
	return (maxServerConns - 1000*p.Processes) * 2 / 3
}

// allModelNames returns the names of all I/O models, including models that this system does not support.
func allModelNames() (names []string) {
	for _, m := range models.All() {
		names = append(names, m.Name)
	}
	return names
}
