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

// Workload is a load to apply to each subject: connections, and the phases that they go
// through.
type Workload struct {
	// Name is what the workload is called in the report, at most 40 bytes, without spaces
	// and slashes.
	Name string `json:"name" toml:"name"`
	// Caption is a sentence that stands above its table; "{connections}" and "{heartbeat}"
	// in it are the workload's, at whatever scale. Default: made of the rest.
	Caption string `json:"caption,omitempty" toml:"caption"`
	// App is one of package app; none for phases that have no server.
	App string `json:"app,omitempty" toml:"app"`
	// TLS has the connections encrypted, with a certificate that the lab makes.
	TLS bool `json:"tls,omitempty" toml:"tls"`
	// Connections is how many connections there are, at least 1; goroutines under Park.
	Connections int `json:"connections,omitempty" toml:"connections"`
	// Size is the size of a message in bytes, 2 to 1 MiB; the last byte is a line end. It
	// is 0 for apps whose messages are all the same.
	Size int `json:"size,omitempty" toml:"size"`
	// Pipeline is how many messages each connection keeps in flight. Default 1.
	Pipeline int `json:"pipeline,omitempty" toml:"pipeline"`
	// LoadModel is the I/O model of the load generator; default the best that can run.
	// LoadLoops is how many loops it has, up to 1024. Default one, or one for each CPU that
	// is its own; more where one descriptor table has too few places.
	LoadModel string `json:"load_model,omitempty" toml:"load_model"`
	LoadLoops int    `json:"load_loops,omitempty" toml:"load_loops"`
	// Unpinned lets server and load generator run on all CPUs.
	Unpinned bool `json:"unpinned,omitempty" toml:"unpinned"`
	// Rounds replaces the scenario's rounds, up to 1000; 0 keeps them.
	Rounds int `json:"rounds,omitempty" toml:"rounds"`
	// Whole has subjects left out that can't hold all connections, instead of applying the
	// workload with as many as they can.
	Whole bool `json:"whole,omitempty" toml:"whole"`
	// Reduced says that options or a scale have fewer connections or other times than the file.
	Reduced bool `json:"reduced,omitempty" toml:"-"`
	// Phases are gone through in order.
	Phases []Phase `json:"phases,omitempty" toml:"phases"`
}

// What a phase does.
const (
	// Connect opens connections; those of the phases before it are closed then. A list
	// that does not begin with it does so with all.
	Connect = "connect"
	// Hold leaves the connections alone, with a Heartbeat but for that.
	Hold = "hold"
	// Load keeps every connection busy in a closed loop, or sends at a Rate, and measures a
	// window of time. With a Heartbeat it only answers those of the server; its app is Sink.
	Load = "load"
	// Verify has each connection exchange a message.
	Verify = "verify"
	// Broadcast has the server send a line to all connections.
	Broadcast = "broadcast"
	// Flood sends on every connection as much as the server takes, without waiting for
	// answers, and measures a window of time.
	Flood = "flood"
	// Publish has messages published to topics that all connections subscribe to, and
	// compared, in a closed loop or at a Rate, and measures a window of time.
	Publish = "publish"
	// Attack has every attacker of package faults at the server, with honest clients.
	Attack = "attack"
	// Jobs offers jobs to a pool, in the process that has it.
	Jobs = "jobs"
	// Park parks goroutines.
	Park = "park"
)

var allPhases = []string{Connect, Hold, Load, Verify, Broadcast, Flood, Publish, Attack, Jobs, Park}

// Phase is a part of a workload.
type Phase struct {
	// Do is one of those above.
	Do string `json:"do" toml:"do"`
	// For is how long it takes, of Hold, Load, Flood, Publish, Attack and Jobs, from 100 ms
	// to 24 h.
	For Duration `json:"for,omitempty" toml:"for"`
	// WarmUp is the time before it under the same load, of Load, Flood, Publish and Jobs.
	WarmUp Duration `json:"warm_up,omitempty" toml:"warm_up"`
	// Connections is how many a Connect opens instead of all.
	Connections int `json:"connections,omitempty" toml:"connections"`
	// Rate is how many connections a Connect opens a second, 0 for as many as the server
	// takes; of Jobs how many are offered a second where Times is 0; of Load and Publish how
	// many messages are sent a second on all connections together, 0 for a closed loop.
	Rate int `json:"rate,omitempty" toml:"rate"`
	// Messages is how many messages a Verify has in flight on each connection at once.
	// Default 1.
	Messages int `json:"messages,omitempty" toml:"messages"`
	// InFlight is how many connections at most wait for the answer to a Verify between
	// which connections are held, 1 to 1,048,576. Default 1,000.
	InFlight int `json:"in_flight,omitempty" toml:"in_flight"`
	// Heartbeat is the time between two heartbeats of a Hold or a Load, from 100 ms.
	Heartbeat Duration `json:"heartbeat,omitempty" toml:"heartbeat"`

	// Topics and Publishers are those of a Publish, and Slow the subscribers that never
	// read, as load.PubSub has them. Default 1 topic, 1 publisher.
	Topics     int `json:"topics,omitempty" toml:"topics"`
	Publishers int `json:"publishers,omitempty" toml:"publishers"`
	Slow       int `json:"slow,omitempty" toml:"slow"`

	// Every is the time between two lines of the log of an Attack, from 1 s. Default 1
	// min, or a quarter of For if that is less. Honest is how many honest clients there
	// are, at most 10,000. Default 100.
	Every  Duration `json:"every,omitempty" toml:"every"`
	Honest int      `json:"honest,omitempty" toml:"honest"`

	// Shape is the kind of Jobs: "published", "cpu" or "mixed", as "myriad offer --work"
	// has them. The capacity is measured once for each.
	Shape string `json:"shape,omitempty" toml:"shape"`
	// Times is the part of the capacity that is offered, above 0 and up to 1000.
	Times float64 `json:"times,omitempty" toml:"times"`
	// Memory is how many bytes a side may use, from 16 MiB; a watchdog ends it when it
	// takes more. Default 2 GiB.
	Memory int64 `json:"memory,omitempty" toml:"memory"`
	// Deadline is within which time from its submission a job has to end to be of use,
	// from 1 ms to an hour. Default 200 ms.
	Deadline Duration `json:"deadline,omitempty" toml:"deadline"`
	// Queue is how many jobs may wait in a side that has a queue, from 1 to 16,777,216.
	// Default 1,024.
	Queue int `json:"queue,omitempty" toml:"queue"`
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

var shapes = []string{"published", "cpu", "mixed"}

// withDefaults is the phase with its defaults.
func (p Phase) withDefaults() Phase {
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

// WithDefaults is the workload with the defaults of its phases.
func (w Workload) WithDefaults() Workload {
	w.Pipeline = max(w.Pipeline, 1)
	w.Phases = slices.Clone(w.Phases)
	for i, p := range w.Phases {
		w.Phases[i] = p.withDefaults()
	}
	return w
}

// FindPhase is the first phase that does something, nil where there is none.
func (w *Workload) FindPhase(action string) *Phase {
	i := slices.IndexFunc(w.Phases, func(p Phase) bool { return p.Do == action })
	if i < 0 {
		return nil
	}
	return &w.Phases[i]
}

// TotalConns is how many connections there are in the end: publishers and slow subscribers, too.
func (w *Workload) TotalConns() int {
	if p := w.FindPhase(Publish); p != nil {
		return w.Connections + p.Publishers + p.Slow
	}
	return w.Connections
}

// HeartbeatInterval is the time between two heartbeats, 0 where there are none.
func (w *Workload) HeartbeatInterval() time.Duration {
	for _, p := range w.Phases {
		if p.Heartbeat > 0 {
			return time.Duration(p.Heartbeat)
		}
	}
	return 0
}

// MeasuresTime says whether the time is what the workload is about, and not memory: what else
// the machine does disturbs it.
func (w *Workload) MeasuresTime() bool {
	return w.FindPhase(Load) != nil || w.FindPhase(Flood) != nil || w.FindPhase(Publish) != nil || w.FindPhase(Jobs) != nil
}

// Stage are phases on the same connections: one run of the load generator.
type Stage struct {
	// Connections is how many there are, Rate how many are opened a second.
	Connections, Rate int
	Phases            []Phase
	// Held has the lines of held connections checked one by one, with a broadcast and
	// heartbeats.
	Held bool
}

// FindPhase is the first phase of the stage that does something, the zero one for none.
func (s *Stage) FindPhase(action string) Phase {
	for _, p := range s.Phases {
		if p.Do == action {
			return p
		}
	}
	return Phase{}
}

// Name is what the stage is about: its load or exchange.
func (s *Stage) Name() string {
	i := slices.IndexFunc(s.Phases, func(p Phase) bool { return p.Do != Hold })
	return s.Phases[max(i, 0)].Do
}

var (
	singleExchangeOrder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(hold )?(load|flood|verify|publish)( hold)?$`) })
	heldStageOrder      = "verify hold broadcast hold verify hold"
)

// SplitStages are the stages of the workload's phases, those that have connections.
func (w Workload) SplitStages() (stages []Stage, err error) {
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

// validate returns an Error when the workload cannot be applied.
func (w Workload) validate() error {
	if w.Name == "" || len(w.Name) > 40 || strings.ContainsAny(w.Name, "/ \t\r\n") {
		return Errorf("workload name %q; expected 1 to 40 bytes without spaces and slashes", w.Name)
	}
	if err := w.WithDefaults().validateKeys(); err != nil {
		return Errorf("workload %s: %v", w.Name, err)
	}
	return nil
}

// checkRange returns an Error, which begins with what has the value in it, when a value is out of
// its bounds.
func checkRange[T cmp.Ordered](what string, value, min, max T) error {
	if value < min || value > max {
		return Errorf(what+"; expected %v to %v", value, min, max)
	}
	return nil
}

func (w Workload) validateKeys() error {
	if len(w.Phases) == 0 {
		return Errorf("no phases; expected some, such as { do = %q, for = \"2s\" }", Load)
	}
	err := cmp.Or(
		checkRange("%v rounds", w.Rounds, 0, maxRounds),
		checkRange("pipeline of %v", w.Pipeline, 1, maxPipeline),
		checkRange("%v loops of the load generator", w.LoadLoops, 0, maxLoops),
	)
	for _, p := range w.Phases {
		err = cmp.Or(err, p.validate(w))
	}
	if w.LoadModel != "" && !slices.Contains(allModelNames(), w.LoadModel) {
		err = cmp.Or(err, Errorf("load_model %q; expected one of %s", w.LoadModel, strings.Join(allModelNames(), ", ")))
	}
	if err != nil {
		return err
	}
	switch first := w.Phases[0].Do; {
	case first != Jobs && first != Park && first != Attack:
		return w.validateLoad()
	case len(w.Phases) > 1:
		return Errorf("%s with other phases; expected it alone", first)
	case first == Park:
		return checkRange("%v goroutines", w.Connections, 1, maxHeld)
	}
	return nil
}

func isAppName(name string) bool { return app.IsAppName(name) || name == app.PubSub }

const appList = app.List + ", or " + app.PubSub

// validateLoad is the part of check for workloads with a load generator.
func (w Workload) validateLoad() error {
	stages, err := w.SplitStages()
	sink := w.App == app.Sink
	switch {
	case !isAppName(w.App):
		return Errorf("app %q; expected %s", w.App, appList)
	case sink != (w.FindPhase(Load) != nil && w.HeartbeatInterval() > 0):
		return Errorf("app %s; expected %s with { do = %q, heartbeat = \"1m\" }, and with that only", w.App, app.Sink, Load)
	case (w.App == app.PubSub) != (w.FindPhase(Publish) != nil):
		return Errorf("app %s; expected %s with { do = %q, for = \"2s\" }, and with that only", w.App, app.PubSub, Publish)
	case err != nil:
		return err
	}
	sized := app.HasMessageSize(w.App)
	for _, s := range stages {
		if s.FindPhase(Flood).Do != "" || s.Held {
			also := app.Sha
			if s.Held {
				also = app.WebSocket
			}
			if w.App != app.Lines && w.App != also {
				return Errorf("app %q with %s; expected %s or %s", w.App, s.Phases[0].Do, app.Lines, also)
			}
			sized = false
		}
	}
	if !sized && w.Size != 0 {
		return Errorf("messages of %d bytes; expected 0, they are all the same", w.Size)
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

// validate returns what is wrong with the phase.
func (p Phase) validate(w Workload) error {
	if !slices.Contains(allPhases, p.Do) {
		return Errorf("phase %q; expected one of %s", p.Do, strings.Join(allPhases, ", "))
	}
	if p.Heartbeat != 0 && p.Do != Hold && p.Do != Load {
		return Errorf("%s with a heartbeat; expected it with %s or %s", p.Do, Hold, Load)
	}
	least, most := Duration(minDuration), Duration(maxDuration)
	switch p.Do {
	case Hold:
		if p.Heartbeat == 0 && w.FindPhase(Broadcast) == nil {
			least = Duration(minHold) // memory is sampled meanwhile
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
		checkRange(p.Do+" of a warm-up for %v", p.WarmUp, 0, Duration(maxDuration)),
		checkRange(p.Do+" of %v a second", p.Rate, 0, maxRate),
		checkRange(p.Do+" of %v", p.Connections, 0, maxHeld),
	)
	if p.Heartbeat != 0 {
		err = cmp.Or(err, checkRange("a heartbeat each %v", p.Heartbeat, Duration(minHeartbeat), p.For))
	}
	switch p.Do {
	case Verify:
		err = cmp.Or(err, checkRange("%v messages in flight", p.Messages, 1, maxPipeline), checkRange("%v checks in flight", p.InFlight, 1, maxInFlight))
	case Publish:
		err = cmp.Or(err, checkRange("%v topics", p.Topics, 1, max(w.Connections, 1)), checkRange("%v publishers", p.Publishers, 1, load.MaxPublishers), checkRange("%v that do not read", p.Slow, 0, maxHeld))
	case Attack:
		err = cmp.Or(err, checkRange("a line every %v", p.Every, Duration(time.Second), p.For), checkRange("%v honest clients", p.Honest, 1, maxHonest))
	case Jobs:
		err = cmp.Or(err, p.validateJobs())
	}
	return err
}

func (p Phase) validateJobs() error {
	switch {
	case !slices.Contains(shapes, p.Shape):
		return Errorf("jobs of shape %q; expected %s", p.Shape, JoinWords(shapes))
	case p.Times < 0 || p.Times > maxTimes || (p.Rate == 0) == (p.Times == 0):
		return Errorf("%d jobs a second, and %g times the capacity; expected one of the two above 0, and times up to %d", p.Rate, p.Times, maxTimes)
	case p.Memory < minMemory:
		return Errorf("a memory of %d bytes; expected at least %d", p.Memory, minMemory)
	}
	return cmp.Or(
		checkRange("a deadline of %v", p.Deadline, Duration(time.Millisecond), Duration(maxDeadline)),
		checkRange("a queue of %v", p.Queue, 1, maxQueue),
	)
}

// CalibrationTime is how long one run takes that measures the capacity for Jobs.
func (p *Phase) CalibrationTime() time.Duration { return min(time.Duration(p.For), 2*time.Second) }

// formatCaption is the caption with its placeholders filled in, or one that is made of the rest.
func (w Workload) formatCaption() string {
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

// fillPlaceholders fills the workload's placeholders in.
func (w Workload) fillPlaceholders(text string) string {
	return strings.NewReplacer("{connections}", format.Count(w.Connections), "{heartbeat}", w.HeartbeatInterval().String()).Replace(text)
}

// LimitedTo is the workload for a subject that can hold so many connections; 0 is any number.
func (w Workload) LimitedTo(maxConns int) Workload {
	if maxConns > 0 {
		w.Connections = min(w.Connections, maxConns)
	}
	return w
}

// EstimateDuration is about how long one run takes, starting and stopping included.
func (w Workload) EstimateDuration() time.Duration {
	each := 50 * time.Microsecond // to connect or to exchange a message
	if w.TLS {
		each = 600 * time.Microsecond // two processes, an asymmetric key
	}
	all := 400 * time.Millisecond
	for _, p := range w.Phases {
		all += time.Duration(p.For + p.WarmUp)
		if p.Do == Flood { // it goes on until it is steady
			all += time.Duration(p.For / 2)
		}
		switch p.Do {
		case Jobs:
			all += 1400 * time.Millisecond // most sides have ended within a second
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

// Timeout is how long one run may take before it is ended as failed.
func (w Workload) Timeout() time.Duration {
	if p := w.FindPhase(Jobs); p != nil { // the capacity may have to be measured, and sides end slowly
		return w.EstimateDuration() + 2*estimatedCalibrationRuns*(time.Duration(p.WarmUp)+p.CalibrationTime()+10*time.Second) + time.Minute
	}
	return 5*w.EstimateDuration() + time.Minute
}

// MaxHeartbeatDelay is how late a heartbeat may be: a server looks at each connection in an
// eighth of the time, or in 400 ms.
func MaxHeartbeatDelay(every time.Duration) time.Duration { return max(every/8, 400*time.Millisecond) }
