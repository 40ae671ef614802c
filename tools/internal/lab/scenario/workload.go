package scenario

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/load"
)

// Workload describes the load on a subject: connections, and the phases in which they are used.
type Workload struct {
	// Name is the workload's name in the report. It has at most 40 bytes and no spaces or slashes.
	Name string `json:"name" toml:"name"`
	// Caption is the sentence above the workload's table. The values of the workload replace "{connections}" and
	// "{heartbeat}". By default, a sentence is generated.
	Caption string `json:"caption,omitempty" toml:"caption"`
	// App is the protocol, one of those in package app. It is empty for phases without a server.
	App string `json:"app,omitempty" toml:"app"`
	// TLS encrypts the connections. The lab creates the certificate.
	TLS bool `json:"tls,omitempty" toml:"tls"`
	// Connections is the number of connections, at least 1. For Park it is the number of goroutines.
	Connections int `json:"connections,omitempty" toml:"connections"`
	// Size is a message's size in bytes with its line end, 2 bytes to 1 MiB, or 0 for apps with fixed messages.
	Size     int `json:"size,omitempty" toml:"size"`
	Pipeline int `json:"pipeline,omitempty" toml:"pipeline"`
	// Message is what connections send under the apps HTTP, Web and WebSocket, instead of a GET of "/" or messages of
	// Size bytes. It can be a template; see load.Config.Message.
	Message string `json:"message,omitempty" toml:"message"`
	// LoadModel is the I/O model of the load generator. By default, it is the best one that can run. LoadLoops is the
	// generator's number of event loops, up to 1024. The default is one, or one per CPU if the generator is pinned to
	// CPUs. If one descriptor table is too small, there are more loops.
	LoadModel string `json:"load_model,omitempty" toml:"load_model"`
	LoadLoops int    `json:"load_loops,omitempty" toml:"load_loops"`
	// Unpinned allows server and load generator to run on all CPUs.
	Unpinned bool `json:"unpinned,omitempty" toml:"unpinned"`
	// Rounds replaces the scenario's number of rounds, if it is not 0. The maximum is 1000.
	Rounds int `json:"rounds,omitempty" toml:"rounds"`
	// Whole excludes subjects that cannot hold all connections. By default, they run with fewer.
	Whole bool `json:"whole,omitempty" toml:"whole"`
	// Reduced reports that options or a scale have reduced the connections or changed durations.
	Reduced bool    `json:"reduced,omitempty" toml:"-"`
	Phases  []Phase `json:"phases,omitempty" toml:"phases"`
}

// Values of Phase.Do: the actions of phases.
const (
	// Connect opens connections and closes those of earlier phases. If a workload begins with another phase, all
	// connections are opened before that phase.
	Connect = "connect"
	// Hold keeps the connections idle except for heartbeats.
	Hold = "hold"
	// Load sends messages on every connection and measures a time window. Without a Rate, it is a closed loop. With a
	// Heartbeat, the generator only answers the server's heartbeats, and the app must be Sink.
	Load = "load"
	// Verify exchanges a message on each connection.
	Verify = "verify"
	// Broadcast makes the server send a line to all connections.
	Broadcast = "broadcast"
	// Flood sends as much as the server accepts on every connection, expects no answers, and measures a window.
	Flood = "flood"
	// Publish publishes messages to topics and measures a time window. Without a Rate, it is a closed loop with a fixed
	// number of messages in flight. All connections subscribe to a topic and check the messages.
	Publish = "publish"
	// Attack runs attackers (see package faults) against the server, together with honest clients.
	Attack = "attack"
	// Jobs runs a process that submits jobs to its own pool.
	Jobs = "jobs"
	// Park parks goroutines.
	Park = "park"
)

// Values of Phase.Storm.
const (
	StormConnect = "connect"
	StormHello   = "hello"
)

var allPhases = []string{Connect, Hold, Load, Verify, Broadcast, Flood, Publish, Attack, Jobs, Park}

type Phase struct {
	Do string `json:"do" toml:"do"`
	// For is the duration of Hold, Load, Flood, Publish, Attack and Jobs phases, from 100 ms to 24 h. An idle Hold
	// phase takes at least 1 s, an Attack phase at least 4 s, and a Jobs phase at most 20 min.
	For Duration `json:"for,omitempty" toml:"for"`
	// WarmUp is the time of load before the measured window of Load, Flood, Publish and Jobs phases.
	WarmUp Duration `json:"warm_up,omitempty" toml:"warm_up"`
	// Connections is the number of connections that a Connect phase opens. The default is all. In a Jobs phase, it is
	// the number of connections to a contender that is a server. The default is 2,000.
	Connections int `json:"connections,omitempty" toml:"connections"`
	// Rate is a number per second. In a Connect phase it is the number of connections to open; 0 means as fast as
	// possible. In Load and Publish phases it is the number of messages on all connections together; 0 means a closed
	// loop. In a Jobs phase it is the number of jobs, if Times is 0.
	Rate int `json:"rate,omitempty" toml:"rate"`
	// Messages is the number of messages in flight on each connection of a Verify phase. The default is 1.
	Messages int `json:"messages,omitempty" toml:"messages"`
	// InFlight limits the held connections that wait for an answer in a Verify phase: 1 to 1,048,576, default 1,000.
	InFlight int `json:"in_flight,omitempty" toml:"in_flight"`
	// Heartbeat is the time between two heartbeats in a Hold or Load phase, at least 100 ms.
	Heartbeat Duration `json:"heartbeat,omitempty" toml:"heartbeat"`
	// Silent leaves the heartbeats of a Load phase unanswered.
	Silent bool `json:"silent,omitempty" toml:"silent"`

	// Topics, Publishers and Slow apply to Publish phases, as in load.PubSub. Slow is the number of subscribers that
	// never read. The defaults are 1 topic and 1 publisher.
	Topics     int `json:"topics,omitempty" toml:"topics"`
	Publishers int `json:"publishers,omitempty" toml:"publishers"`
	Slow       int `json:"slow,omitempty" toml:"slow"`

	// Every is the time between two log lines of an Attack phase, at least 1 s. The default is 1 min, or a quarter of
	// the phase if that is less. Honest is the number of honest clients, at most 10,000. The default is 100.
	Every  Duration `json:"every,omitempty" toml:"every"`
	Honest int      `json:"honest,omitempty" toml:"honest"`

	// Storm replaces the attackers of an Attack phase by one goroutine that opens and closes connections as fast as it
	// can: "connect", or "hello" with a TLS ClientHello on each. Elsewhere aims the storm at another port, where
	// connections are accepted and closed.
	Storm     string `json:"storm,omitempty" toml:"storm"`
	Elsewhere bool   `json:"elsewhere,omitempty" toml:"elsewhere"`

	// Shape is the kind of jobs, as in "myriad offer --work". The capacity is measured once per shape.
	Shape string `json:"shape,omitempty" toml:"shape"`
	// Times is the rate of submitted jobs as a multiple of the capacity. It must be above 0 and at most 1000.
	Times float64 `json:"times,omitempty" toml:"times"`
	// Burst is a factor for the rate of submitted jobs in the first tenth of each second, at most 1000.
	Burst int `json:"burst,omitempty" toml:"burst"`
	// Memory is the limit in bytes at which a watchdog kills a contender: at least 16 MiB, by default 2 GiB.
	Memory int64 `json:"memory,omitempty" toml:"memory"`
	// Deadline is the time after a job's submission within which the job must end to count, from 1 ms to an hour. The
	// default is 200 ms.
	Deadline Duration `json:"deadline,omitempty" toml:"deadline"`
	// Queue is the queue length of contenders that have a queue, from 1 to 16,777,216. The default is 1,024.
	Queue int `json:"queue,omitempty" toml:"queue"`
	// Sources is the number of further source addresses if contenders are servers; see jobload.Plan.
	Sources int `json:"sources,omitempty" toml:"sources"`
}

const (
	minDuration  = 100 * time.Millisecond
	minHold      = time.Second
	maxDuration  = 24 * time.Hour
	minHeartbeat = 100 * time.Millisecond
	minAttack    = 4 * time.Second
	minSize      = 2
	maxSize      = 1 << 20
	maxPipeline  = 1024
	maxLoops     = 1024
	maxHeld      = 64 << 20
	maxRate      = 100_000_000
	maxInFlight  = 1 << 20
	maxHonest    = 10_000
	minMemory    = 16 << 20
	maxDeadline  = time.Hour
	maxQueue     = 1 << 24
	maxTimes     = 1000
	maxOffered   = 20 * time.Minute
)

var shapes = []string{"published", "cpu", "short-cpu", "mixed", "steps", "limited"}

func (p Phase) withActionDefaults() Phase {
	set := func(v *int, standard int) {
		if *v == 0 {
			*v = standard
		}
	}
	switch p.Do {
	case Verify:
		set(&p.Messages, 1)
		set(&p.InFlight, 1000)
	case Publish:
		set(&p.Topics, 1)
		set(&p.Publishers, 1)
	case Attack:
		set(&p.Honest, 100)
		if p.Every == 0 {
			p.Every = min(Duration(time.Minute), p.For/4)
		}
	case Jobs:
		set(&p.Queue, 1024)
		if p.Memory == 0 {
			p.Memory = 2 << 30
		}
		if p.Deadline == 0 {
			p.Deadline = Duration(200 * time.Millisecond)
		}
	}
	return p
}

func (w Workload) WithDefaults() Workload {
	w.Pipeline = max(w.Pipeline, 1)
	w.Phases = slices.Clone(w.Phases)
	for i, p := range w.Phases {
		w.Phases[i] = p.withActionDefaults()
	}
	return w
}

func (w *Workload) FindPhase(action string) *Phase {
	i := slices.IndexFunc(w.Phases, func(p Phase) bool { return p.Do == action })
	if i < 0 {
		return nil
	}
	return &w.Phases[i]
}

func (w *Workload) ConnsWithPublishersAndSlow() int {
	if p := w.FindPhase(Publish); p != nil {
		return w.Connections + p.Publishers + p.Slow
	}
	return w.Connections
}

// HeartbeatInterval returns the time between two heartbeats, or 0 if the workload has no heartbeats.
func (w *Workload) HeartbeatInterval() time.Duration {
	for _, p := range w.Phases {
		if p.Heartbeat > 0 {
			return time.Duration(p.Heartbeat)
		}
	}
	return 0
}

// Stage is a sequence of phases on the same connections. The load generator runs once for each stage.
type Stage struct {
	// Connections is the number of connections, opened at Rate per second, or as fast as possible if Rate is 0.
	Connections, Rate int
	Phases            []Phase
	// Held reports whether the load generator holds idle connections in this stage. The phases after Connect are then
	// verify, hold, broadcast, hold, verify and hold, in this order.
	Held bool
}

// FindPhase returns the first phase with the given action. If there is no such phase, it returns the zero Phase.
func (s *Stage) FindPhase(action string) Phase {
	for _, p := range s.Phases {
		if p.Do == action {
			return p
		}
	}
	return Phase{}
}

// Name returns the action of the first phase that is not Hold.
func (s *Stage) Name() string {
	i := slices.IndexFunc(s.Phases, func(p Phase) bool { return p.Do != Hold })
	return s.Phases[max(i, 0)].Do
}

var (
	singleExchangeOrder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(hold )?(load|flood|verify|publish)( hold)?$`) })
	heldStageOrder      = "verify hold broadcast hold verify hold"
)

// SplitStagesAtConnects groups the phases into stages. Each Connect phase begins a new stage. If the order of the
// phases in a stage is not supported, SplitStagesAtConnects returns an error.
func (w Workload) SplitStagesAtConnects() (stages []Stage, err error) {
	for _, p := range w.Phases {
		if p.Do == Connect || len(stages) == 0 {
			n := w.Connections
			if p.Do == Connect && p.Connections > 0 {
				n = min(n, p.Connections)
			}
			stages = append(stages, Stage{Connections: n})
		}
		s := &stages[len(stages)-1]
		if p.Do == Connect {
			s.Rate = p.Rate
		} else {
			s.Phases = append(s.Phases, p)
		}
	}
	for i := range stages {
		var words []string
		for _, p := range stages[i].Phases {
			words = append(words, p.Do)
		}
		order := strings.Join(words, " ")
		stages[i].Held = order == heldStageOrder
		if !stages[i].Held && !singleExchangeOrder().MatchString(order) {
			return nil, Errorf("phases %q after a connect; expected one of load, flood, verify and publish, with a hold before or after it, or %q", order, heldStageOrder)
		}
	}
	return stages, nil
}

func (w Workload) validateWorkload() error {
	if w.Name == "" || len(w.Name) > 40 || strings.ContainsAny(w.Name, "/ \t\r\n") {
		return Errorf("workload name %q; expected 1 to 40 bytes without spaces and slashes", w.Name)
	}
	if err := w.WithDefaults().validatePhasesAndLimits(); err != nil {
		return Errorf("workload %s: %v", w.Name, err)
	}
	return nil
}

// checkRange returns an Error if a value is out of range. valueFormat formats the value in the error.
func checkRange[T cmp.Ordered](valueFormat string, value, min, max T) error {
	if value < min || value > max {
		return Errorf(valueFormat+"; expected %v to %v", value, min, max)
	}
	return nil
}

func (w Workload) validatePhasesAndLimits() error {
	if len(w.Phases) == 0 {
		return Errorf("no phases; expected one or more, such as { do = %q, for = \"2s\" }", Load)
	}
	err := cmp.Or(
		checkRange("%v rounds", w.Rounds, 0, maxRounds),
		checkRange("pipeline of %v", w.Pipeline, 1, maxPipeline),
		checkRange("%v loops of the load generator", w.LoadLoops, 0, maxLoops),
	)
	for _, p := range w.Phases {
		err = cmp.Or(err, p.validatePhase(w))
	}
	if w.LoadModel != "" && !slices.Contains(allModelNames(), w.LoadModel) {
		err = cmp.Or(err, Errorf("load_model is %q; expected one of %s", w.LoadModel, strings.Join(allModelNames(), ", ")))
	}
	if err != nil {
		return err
	}
	switch first := w.Phases[0].Do; {
	case first != Jobs && first != Park && first != Attack:
		return w.validateAppMessageAndStages()
	case len(w.Phases) > 1:
		return Errorf("phase %s is combined with other phases; expected it alone", first)
	case first == Park:
		return checkRange("%v goroutines", w.Connections, 1, maxHeld)
	}
	return nil
}

func isAppName(name string) bool { return app.IsAppName(name) || name == app.PubSub }

const appList = app.List + ", or " + app.PubSub

func (w Workload) validateAppMessageAndStages() error {
	stages, err := w.SplitStagesAtConnects()
	sink := w.App == app.Sink
	switch {
	case !isAppName(w.App):
		return Errorf("unknown app %q; expected %s", w.App, appList)
	case sink != (w.FindPhase(Load) != nil && w.HeartbeatInterval() > 0):
		return Errorf("app is %s; expected %s with a phase such as { do = %q, heartbeat = \"1m\" }, and another app without such a phase", w.App, app.Sink, Load)
	case (w.App == app.PubSub) != (w.FindPhase(Publish) != nil):
		return Errorf("app is %s; expected %s with a phase such as { do = %q, for = \"2s\" }, and another app without such a phase", w.App, app.PubSub, Publish)
	case w.Message != "" && !app.IsHTTP(w.App) && w.App != app.WebSocket:
		return Errorf("message is set for app %s; expected app %s, %s or %s", w.App, app.HTTP, app.Web, app.WebSocket)
	case err != nil:
		return err
	}
	sized := app.UsesWorkloadMessageSize(w.App) && w.Message == ""
	for _, s := range stages {
		if s.FindPhase(Flood).Do != "" || s.Held {
			also := app.Sha
			if s.Held {
				also = app.WebSocket
			}
			if w.App != app.Lines && w.App != also {
				return Errorf("app is %q with the phase %s; expected %s or %s", w.App, s.Phases[0].Do, app.Lines, also)
			}
			sized = false
		}
	}
	if !sized && w.Size != 0 {
		return Errorf("messages of %d bytes; expected 0, because their size is fixed", w.Size)
	}
	err = checkRange("%v connections", w.Connections, 1, maxHeld)
	if sized {
		least := minSize
		if w.App == app.PubSub {
			least = load.MinPayload
		}
		err = cmp.Or(err, checkRange("messages of %v bytes", w.Size, least, maxSize))
	}
	return err
}

func (p Phase) validatePhase(w Workload) error {
	if !slices.Contains(allPhases, p.Do) {
		return Errorf("unknown phase %q; expected one of %s", p.Do, strings.Join(allPhases, ", "))
	}
	if p.Heartbeat != 0 && p.Do != Hold && p.Do != Load {
		return Errorf("phase %s has a heartbeat; expected it only in %s or %s", p.Do, Hold, Load)
	}
	if p.Silent && (p.Heartbeat == 0 || p.Do != Load) {
		return Errorf("phase %s is silent; expected it only in %s, with a heartbeat", p.Do, Load)
	}
	least, most := Duration(minDuration), Duration(maxDuration)
	switch p.Do {
	case Hold:
		if p.Heartbeat == 0 && w.FindPhase(Broadcast) == nil {
			least = Duration(minHold) // because memory is sampled during the hold
		}
	case Attack:
		least = Duration(minAttack)
	case Jobs:
		most = Duration(maxOffered)
	case Load:
		least = max(least, p.Heartbeat+p.Heartbeat/8)
	case Flood, Publish:
	default:
		least, most = 0, 0
	}
	err := cmp.Or(
		checkRange(p.Do+" for %v", p.For, least, most),
		checkRange(p.Do+" with a warm-up of %v", p.WarmUp, 0, Duration(maxDuration)),
		checkRange(p.Do+" at %v a second", p.Rate, 0, maxRate),
		checkRange(p.Do+" of %v connections", p.Connections, 0, maxHeld),
	)
	if p.Heartbeat != 0 {
		err = cmp.Or(err, checkRange("heartbeat every %v", p.Heartbeat, Duration(minHeartbeat), p.For))
	}
	switch p.Do {
	case Verify:
		err = cmp.Or(err, checkRange("%v messages in flight", p.Messages, 1, maxPipeline), checkRange("%v checks in flight", p.InFlight, 1, maxInFlight))
	case Publish:
		err = cmp.Or(err, checkRange("%v topics", p.Topics, 1, max(w.Connections, 1)), checkRange("%v publishers", p.Publishers, 1, load.MaxPublishers), checkRange("%v subscribers that do not read", p.Slow, 0, maxHeld))
	case Attack:
		if p.Storm != "" && p.Storm != StormConnect && p.Storm != StormHello || p.Elsewhere && p.Storm == "" || p.Storm == StormHello && !w.TLS {
			err = cmp.Or(err, Errorf("storm is %q and elsewhere %v; expected %s, %s with tls, or neither storm nor elsewhere", p.Storm, p.Elsewhere, StormConnect, StormHello))
		}
		err = cmp.Or(err, checkRange("line every %v", p.Every, Duration(time.Second), p.For), checkRange("%v honest clients", p.Honest, 1, maxHonest))
	case Jobs:
		err = cmp.Or(err, p.validateJobs())
	}
	return err
}

func (p Phase) validateJobs() error {
	switch {
	case !slices.Contains(shapes, p.Shape):
		return Errorf("job shape %q; expected %s", p.Shape, JoinAsEnglishList(shapes))
	case p.Times < 0 || p.Times > maxTimes || (p.Rate == 0) == (p.Times == 0):
		return Errorf("rate is %d and times is %g; expected exactly one of the two above 0, and times of at most %d", p.Rate, p.Times, maxTimes)
	case p.Memory < minMemory:
		return Errorf("memory of %d bytes; expected at least %d", p.Memory, minMemory)
	}
	return cmp.Or(
		checkRange("deadline of %v", p.Deadline, Duration(time.Millisecond), Duration(maxDeadline)),
		checkRange("%v sources", p.Sources, 0, p.Connections/11),
		checkRange("queue of %v", p.Queue, 1, maxQueue),
		checkRange("burst of %v times the rate", p.Burst, 0, maxTimes),
	)
}

// CapacityRunTime returns the duration of one run that measures the capacity for the jobs of the phase. It is p.For,
// but at most 2 s.
func (p *Phase) CapacityRunTime() time.Duration { return min(time.Duration(p.For), 2*time.Second) }

func (w Workload) captionOrGenerated() string {
	if w.Caption == "" {
		var words []string
		for _, p := range w.Phases {
			words = append(words, p.Do)
		}
		w.Caption = strings.Join(words, ", ") + ", {connections} of them."
		if w.App != "" {
			w.Caption = fmt.Sprintf("App %s, {connections} connections: %s.", w.App, strings.Join(words, ", "))
		}
	}
	return w.fillPlaceholders(w.Caption)
}

func (w Workload) fillPlaceholders(text string) string {
	return strings.NewReplacer("{connections}", format.Count(w.Connections), "{heartbeat}", w.HeartbeatInterval().String()).Replace(text)
}

// WithMaxConns returns the workload with at most maxConns connections. If maxConns is 0, the workload is unchanged.
func (w Workload) WithMaxConns(maxConns int) Workload {
	if maxConns > 0 {
		w.Connections = min(w.Connections, maxConns)
	}
	return w
}

func (w Workload) EstimateDuration() time.Duration {
	each := 50 * time.Microsecond // time to connect or to exchange a message
	if w.TLS {
		each = 600 * time.Microsecond // two processes and an asymmetric key
	}
	all := 400 * time.Millisecond
	for _, p := range w.Phases {
		all += time.Duration(p.For + p.WarmUp)
		if p.Do == Flood { // a flood continues until its rate is steady
			all += time.Duration(p.For / 2)
		}
		switch p.Do {
		case Jobs:
			all += 1400 * time.Millisecond // most contenders exit within a second
		case Park:
			all += time.Duration(w.Connections) * 3 * time.Microsecond
		case Verify, Broadcast, Flood, Load, Publish:
			all += time.Duration(w.Connections) * each
		case Hold:
			if p.Heartbeat > 0 {
				all += time.Duration(p.For/p.Heartbeat) * MaxHeartbeatDelay(time.Duration(p.Heartbeat))
			}
		case Connect:
			if p.Rate > 0 {
				all += time.Duration(w.Connections) * time.Second / time.Duration(p.Rate)
			}
		}
	}
	return all
}

func (w Workload) Timeout() time.Duration {
	if p := w.FindPhase(Jobs); p != nil { // the capacity may have to be measured, and contenders may exit slowly
		return w.EstimateDuration() + 2*estimatedCalibrationRuns*(time.Duration(p.WarmUp)+p.CapacityRunTime()+10*time.Second) + time.Minute
	}
	return 5*w.EstimateDuration() + time.Minute
}

// MaxHeartbeatDelay returns the longest acceptable delay of a heartbeat from a server. It is an eighth of the time
// between two heartbeats, but at least 400 ms.
func MaxHeartbeatDelay(interval time.Duration) time.Duration {
	return max(interval/8, 400*time.Millisecond)
}
