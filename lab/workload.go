package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what a workload asks of a server.
type Kind string

const (
	// Throughput keeps every connection busy in a closed loop and measures
	// a window of time.
	Throughput Kind = "throughput"
	// Idle opens connections and holds them, has each exchange one message,
	// and holds them again.
	Idle Kind = "idle"
	// Heartbeats holds connections that send a line at the beginning and
	// then nothing but answers to the server's heartbeats, and measures a
	// window of time. Its app is Sink.
	Heartbeats Kind = "heartbeats"
	// Parking parks goroutines, as Park does, and has no load. It has no App.
	Parking Kind = "parking"
	// Flood sends on every connection as much as the server takes, without waiting for
	// answers, and measures a window of time, as tcpkali does.
	Flood Kind = "flood"
	// Offering offers jobs to a pool, in the process that has it, or messages to a
	// server, whether it keeps up or not.
	Offering Kind = "overload"
	// Holding holds connections, checks each, has each get heartbeats and a broadcast,
	// and checks each again.
	Holding Kind = "million"
	// Soaking has every attacker of package faults at a server for a long time, with
	// honest clients among them.
	Soaking Kind = "soak"
)

// allKinds are all that there are.
var allKinds = []Kind{Throughput, Idle, Heartbeats, Parking, Flood, Offering, Holding, Soaking}

// Workload is a load to apply to each subject.
type Workload struct {
	// Name is what the workload is called in the report, at most 40 bytes,
	// without spaces and slashes.
	Name string `json:"name" toml:"name"`
	// Caption is a sentence that stands above its table; "" is one that is made of kind,
	// app and connections. "{connections}" and "{interval}"
	// in it are the workload's, at whatever scale.
	Caption string `json:"caption,omitempty" toml:"caption"`
	// Kind is what the workload asks of a server.
	Kind Kind `json:"kind" toml:"kind"`
	// App is Echo, Lines, Sink, HTTP, Wait, Pow or Sha.
	App string `json:"app" toml:"app"`
	// TLS has the connections encrypted, with a certificate that the lab
	// makes. The subjects' commands say where they take it from.
	TLS bool `json:"tls,omitempty" toml:"tls"`
	// Connections is how many connections the load opens, at least 1, but
	// for subjects that can hold fewer. Under Parking it is goroutines.
	Connections int `json:"connections" toml:"connections"`
	// Size is the size of a message in bytes, 2 to 1 MiB; the last byte is
	// a line's end. For Sink, HTTP, Pow and Sha, whose messages are all the
	// same, and for a Flood it is 0.
	Size int `json:"size,omitempty" toml:"size"`
	// Pipeline is how many messages each connection keeps in flight, at
	// least 1. Only a Throughput workload has more than 1.
	Pipeline int `json:"pipeline" toml:"pipeline" default:"1"`
	// Unpinned lets server and load generator run on all CPUs.
	Unpinned bool `json:"unpinned,omitempty" toml:"unpinned"`
	// Duration is the measured window and WarmUp the time before it under
	// the same load, for Throughput and Heartbeats. Duration is at least 100
	// ms, and for Heartbeats at least Interval and an eighth.
	Duration time.Duration `json:"duration,omitempty" toml:"duration"`
	WarmUp   time.Duration `json:"warm_up,omitempty" toml:"warm_up"`
	// Drain is how long the last answers of a Throughput workload take, on
	// average over the subjects. It serves to say how long a scenario takes.
	Drain time.Duration `json:"drain,omitempty" toml:"drain"`
	// Interval is the time between two heartbeats, for Heartbeats only: at
	// least 100 ms.
	Interval time.Duration `json:"interval,omitempty" toml:"interval"`
	// ConnectRate is how many connections of a Flood are opened a second, 0 for as
	// many as the server takes.
	ConnectRate int `json:"connect_rate,omitempty" toml:"connect_rate"`
	// Rounds replaces the scenario's rounds, up to 1000; 0, which a file can't have, keeps
	// them. More of them make a narrower ±.
	Rounds int `json:"rounds,omitempty" toml:"rounds" least:"1"`
	// Optional has the workload left out, unless Options.With asks for it.
	Optional bool `json:"optional,omitempty" toml:"optional"`
	// Hold is how long the connections of an Idle workload are held before
	// and after the exchange, at least 1 s: memory is sampled meanwhile.
	Hold time.Duration `json:"hold,omitempty" toml:"hold"`
	// Full, for an Idle workload, has all figures of memory: also what the
	// server's Go runtime says and each of the kernel's caches. A subject that
	// has {admin} in its command says there how many connections it has. Those
	// that can't hold all connections are left out, with the reason,
	// and so is what memory is not enough for.
	Full bool `json:"full,omitempty" toml:"full"`
	// Offer, Million and Soak are the settings of workloads of kind Offering, Holding
	// and Soaking.
	Offer   *Offer       `json:"offer,omitempty" toml:"offer"`
	Million *MillionLoad `json:"million,omitempty" toml:"million"`
	Soak    *SoakLoad    `json:"soak,omitempty" toml:"soak"`
}

const (
	minDuration = 100 * time.Millisecond
	minHold     = time.Second
	minSize     = 2
	maxSize     = 1 << 20
	maxDuration = 24 * time.Hour
)

// check returns a ScenarioError when the workload cannot be applied.
func (w Workload) check() error {
	if w.Name == "" || len(w.Name) > 40 || strings.ContainsAny(w.Name, "/ \t\r\n") {
		return wrong("workload name %q; expected 1 to 40 bytes without spaces and slashes", w.Name)
	}
	if w.Rounds < 0 || w.Rounds > maxRounds {
		return wrong("workload %s: %d rounds; expected 1 to %d, or 0 for the scenario's", w.Name, w.Rounds, maxRounds)
	}
	if !slices.Contains(allKinds, w.Kind) {
		return wrong("workload %s: kind %q; expected one of %s", w.Name, w.Kind, listKinds(allKinds))
	}
	if k := kinds[w.Kind]; k.check != nil {
		return k.check(w)
	}
	if w.Full && w.Kind != Idle {
		return wrong("workload %s: full figures with kind %s; expected them with %s only", w.Name, w.Kind, Idle)
	}
	if w.Kind == Parking {
		if w.Connections < 1 || w.Connections > MaxParked {
			return wrong("workload %s: %d goroutines; expected 1 to %d", w.Name, w.Connections, MaxParked)
		}
		return nil
	}
	switch {
	case !isApp(w.App):
		return wrong("workload %s: app %q; expected %s", w.Name, w.App, appList)
	case w.Connections < 1:
		return wrong("workload %s: %d connections; expected at least 1", w.Name, w.Connections)
	case !sized(w.App) && w.Size != 0:
		return wrong("workload %s: messages of %d bytes; expected 0 for %s", w.Name, w.Size, w.App)
	case sized(w.App) && (w.Size < minSize || w.Size > maxSize):
		return wrong("workload %s: messages of %d bytes; expected %d to %d", w.Name, w.Size, minSize, maxSize)
	case w.Pipeline < 1 || (w.Kind != Throughput && w.Pipeline != 1):
		return wrong("workload %s: pipeline of %d; expected at least 1, and 1 but for %s", w.Name, w.Pipeline, Throughput)
	case (w.App == Sink) != (w.Kind == Heartbeats):
		return wrong("workload %s: app %s with kind %s; expected %s with %s only", w.Name, w.App, w.Kind, Sink, Heartbeats)
	}
	return w.checkTimes()
}

// checkTimes is the part of check that depends on the kind.
func (w Workload) checkTimes() error {
	if w.WarmUp < 0 || w.WarmUp > maxDuration {
		return wrong("workload %s: warm-up %v; expected 0 to %v", w.Name, w.WarmUp, maxDuration)
	}
	switch w.Kind {
	case Throughput:
		if w.Duration < minDuration || w.Duration > maxDuration {
			return wrong("workload %s: duration %v; expected %v to %v", w.Name, w.Duration, minDuration, maxDuration)
		}
	case Idle:
		if w.Hold < minHold || w.Hold > maxDuration {
			return wrong("workload %s: hold %v; expected %v to %v", w.Name, w.Hold, minHold, maxDuration)
		}
	case Heartbeats:
		if w.Interval < minHeartbeat || w.Interval > maxDuration {
			return wrong("workload %s: interval %v; expected %v to %v", w.Name, w.Interval, minHeartbeat, maxDuration)
		}
		if least := w.Interval + w.Interval/8; w.Duration < least || w.Duration > maxDuration {
			return wrong("workload %s: duration %v; expected %v to %v", w.Name, w.Duration, least, maxDuration)
		}
	}
	return nil
}

// listKinds writes kinds as a list.
func listKinds(all []Kind) string {
	var names []string
	for _, k := range all {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// caption is the caption with its placeholders filled in, or what there is to say without
// one.
func (w Workload) caption() string {
	if w.Caption == "" && w.App != "" {
		w.Caption = fmt.Sprintf("Kind %s, app %s, {connections} connections.", w.Kind, w.App)
	}
	return strings.NewReplacer("{connections}", thousands(float64(w.Connections)), "{interval}", w.Interval.String()).Replace(w.Caption)
}

// InFlight is how many messages are in flight when every connection is loaded.
func (w Workload) InFlight() int { return w.Connections * w.Pipeline }

// loadFlags are the flags and the argument of the load generator.
func (w Workload) loadFlags(addr string) []string {
	flags := append([]string{"--connections", strconv.Itoa(w.Connections)}, w.messageFlags()...)
	if w.Kind == Idle {
		hold := w.Hold.String()
		return append(flags, "--messages", "1", "--hold-before", hold, "--hold-after", hold, addr)
	}
	if w.Kind == Heartbeats {
		return append(flags, "--warmup", w.WarmUp.String(), "--duration", w.Duration.String(), addr)
	}
	return append(flags, "--pipeline", strconv.Itoa(w.Pipeline),
		"--warmup", w.WarmUp.String(), "--duration", w.Duration.String(), addr)
}

// touchFlags are those of a short load that makes a server run through its code
// once: a few connections, a message each.
func (w Workload) touchFlags(addr string) []string {
	return append(append([]string{"--connections", "100"}, w.messageFlags()...), "--messages", "1", addr)
}

// messageFlags say what to send and to expect.
func (w Workload) messageFlags() []string {
	if sized(w.App) {
		return []string{"--size", strconv.Itoa(w.Size)}
	}
	return apps[w.App].load
}

// estimate is how long one run takes, starting and stopping included.
func (w Workload) estimate() time.Duration {
	if k := kinds[w.Kind]; k.estimate != nil {
		return k.estimate(w)
	}
	const around = 400 * time.Millisecond
	if w.Kind == Parking {
		return around + time.Duration(w.Connections)*parkEach
	}
	each := 50 * time.Microsecond
	if w.TLS {
		each = 600 * time.Microsecond // two processes, an asymmetric key
	}
	dial := time.Duration(w.Connections) * each
	if w.Kind == Idle {
		return 2*w.Hold + 2*dial + around + 2*settle
	}
	return w.WarmUp + w.Duration + w.Drain + dial + around
}

// bound is how long one run may take before it is ended as failed.
func (w Workload) bound() time.Duration {
	if of := kinds[w.Kind].bound; of != nil {
		return of(w)
	}
	if w.Full {
		return 4*w.estimate() + time.Minute // some servers take connections slowly
	}
	return 2*w.estimate() + time.Minute
}

// heldBy is the workload for a subject that can hold so many connections; 0 is any
// number.
func (w Workload) heldBy(most int) Workload {
	if most > 0 {
		w.Connections = min(w.Connections, most)
	}
	return w
}

// beats is how many heartbeats each connection gets at least in the window, from
// a server that sends one after Interval and looks at each connection in an
// eighth of it, or in 400 ms.
func (w Workload) beats() int {
	const shortest = 400 * time.Millisecond
	return int((w.WarmUp + w.Duration) / (w.Interval + max(w.Interval/8, shortest)))
}
