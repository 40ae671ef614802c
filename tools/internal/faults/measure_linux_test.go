package faults

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

var window = flag.Duration("faults.window", time.Second, "duration of each measurement; with 3s all of them take about 10 minutes")

const (
	// measuredClients is the number of honest clients.
	measuredClients = 200
	// rounds is how often each model is measured under each attack, in turn.
	rounds = 2
	// soakBudget is the limit for buffers, which no attack should reach.
	soakBudget = 4 << 30
)

var measuredAttacks = []struct {
	name   string
	swarms func(s *testServer) []*Swarm
}{
	{"thirds", newSlowSwarms},
	{"flood-10", singleSwarm(func(s *testServer) *Swarm { return Flood(s.addr, 10, floodLines, 0) })},
	{"flood-100", singleSwarm(func(s *testServer) *Swarm { return Flood(s.addr, 100, floodLines, 0) })},
	{"flood-5000", singleSwarm(func(s *testServer) *Swarm { return Flood(s.addr, 5000, floodLines, 0) })},
	{"pipelined-100", singleSwarm(func(s *testServer) *Swarm { return Flood(s.addr, 100, floodLines, pipelineBytes) })},
	{"never-read-500", singleSwarm(func(s *testServer) *Swarm { return NeverReadAtSpeed(s.addr, 500, floodLines) })},
	{"never-read-5000", singleSwarm(func(s *testServer) *Swarm { return NeverReadAtSpeed(s.addr, 5000, floodLines) })},
	{"half-messages-5000", singleSwarm(func(s *testServer) *Swarm { return HalfOpen(s.addr, 5000, bytes.Repeat([]byte("h"), 2048)) })},
	{"resets-4000/s", singleSwarm(func(s *testServer) *Swarm { return ResetStorm(s.addr, 4000, 1<<40, []byte("hello\n")) })},
}

func singleSwarm(f func(s *testServer) *Swarm) func(s *testServer) []*Swarm {
	return func(s *testServer) []*Swarm { return []*Swarm{f(s)} }
}

// newSlowSwarms returns slow attackers of three kinds.
func newSlowSwarms(s *testServer) []*Swarm {
	const third = 3333
	line := append(bytes.Repeat([]byte("r"), 1023), '\n')
	return []*Swarm{
		Slowloris(s.addr, third, 5*time.Second), NeverRead(s.addr, third, line, 5*time.Second), HalfOpen(s.addr, third, nil),
	}
}

type windowReading struct {
	rate float64       // answers per second to honest clients
	p99  time.Duration // latency of those
	peakUsage
	after int64 // resident bytes after the attack
	lost  int64 // wrong and missing answers
}

// BenchmarkUnderAttack measures honest clients under each attack, for each model and for plain (package net), in turn.
// It does not check speed, but that answers are correct, limits are kept, and memory is released. Use -benchtime 1x.
func BenchmarkUnderAttack(b *testing.B) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nattack\tmodel\tanswers/s\tof plain's\tp99\tbuffered, MB\tresident\tafter\tlost\t")
	for _, attack := range measuredAttacks {
		b.Run(attack.name, func(b *testing.B) {
			for range b.N {
				readings := make(map[string][]windowReading)
				for range rounds {
					for _, model := range append(tcp.Models(), plainModel) {
						readings[model] = append(readings[model], measureUnderAttack(b, model, attack.swarms))
					}
				}
				b.ReportMetric(0, "ns/op")
				other := combineReadings(readings[plainModel]).rate
				for _, model := range append(tcp.Models(), plainModel) {
					r := combineReadings(readings[model])
					b.ReportMetric(r.rate, model+"-answers/s")
					fmt.Fprintf(table, "%s\t%s\t%.0f\t%.2f\t%v\t%.0f\t%.0f\t%.0f\t%d\t\n", attack.name, model, r.rate, r.rate/other, r.p99,
						float64(r.buffered)/1e6, float64(r.resident)/1e6, float64(r.after)/1e6, r.lost)
				}
			}
		})
	}
	table.Flush()
}

// combineReadings returns the mean rate and the worst of all other values.
func combineReadings(all []windowReading) (r windowReading) {
	for _, one := range all {
		r.rate += one.rate / float64(len(all))
		r.lost += one.lost
		r.p99, r.after = max(r.p99, one.p99), max(r.after, one.after)
		r.buffered, r.resident = max(r.buffered, one.buffered), max(r.resident, one.resident)
	}
	return r
}

func measureUnderAttack(b *testing.B, model string, attack func(s *testServer) []*Swarm) (r windowReading) {
	s := startServer(b, serverSpec{Model: model, Limits: tcp.Limits{MaxBuffered: soakBudget}}, exec.Command(os.Args[0]))
	s.startHonestClients(&HonestClients{Conns: measuredClients})
	swarms := attack(s)
	for _, w := range swarms {
		w.Redial, w.Interval = true, cmp.Or(w.Interval, time.Second)
		s.startSwarm(w)
	}
	for end := time.Now().Add(answersTimeout); time.Now().Before(end) && slices.ContainsFunc(swarms, func(w *Swarm) bool {
		return w.Counts().Connected < int64(w.Conns) // some are not connected yet
	}); {
		time.Sleep(10 * time.Millisecond)
	}
	from := s.clients.Report().Answers
	s.clients.TakeLatency() // discards earlier values
	begun := time.Now()
	for time.Since(begun) < *window {
		r.record(s)
		time.Sleep(20 * time.Millisecond)
	}
	r.rate = float64(s.clients.Report().Answers-from) / time.Since(begun).Seconds()
	r.p99 = time.Duration(s.clients.TakeLatency().ValueAtQuantile(99)) * time.Microsecond
	for _, w := range swarms {
		b.Logf("%s: %+v", model, w.Counts())
		w.Stop()
	}
	s.waitResourcesReleased()
	r.after = s.readFootprint().RSS
	report := s.clients.Stop()
	if r.lost = report.Wrong + report.Lost; r.lost > 0 {
		b.Errorf("%s: honest clients: %+v", model, report)
	}
	if r.buffered > soakBudget {
		b.Errorf("%s: %d bytes were buffered, with a limit of %d", model, r.buffered, soakBudget)
	}
	s.stopServer()
	return r
}
