package faults

import (
	"bytes"
	"cmp"
	"flag"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

var window = flag.Duration("faults.window", time.Second, "duration of each measurement; with 3s all of them take about 5 minutes")

// measuredAttacks are attacks by name, each on a server's address.
var measuredAttacks = []struct {
	name   string
	swarms func(s *testServer) []*Swarm
}{
	{"thirds", func(s *testServer) []*Swarm {
		const third, pause = 3333, 5 * time.Second
		line := append(bytes.Repeat([]byte("r"), 1023), '\n')
		return []*Swarm{Slowloris(s.addr, third, pause), NeverRead(s.addr, third, line, pause), HalfOpen(s.addr, third, nil)}
	}},
	{"flood-10", func(s *testServer) []*Swarm { return []*Swarm{Flood(s.addr, 10, floodLines, 0)} }},
	{"flood-100", func(s *testServer) []*Swarm { return []*Swarm{Flood(s.addr, 100, floodLines, 0)} }},
	{"flood-5000", func(s *testServer) []*Swarm { return []*Swarm{Flood(s.addr, 5000, floodLines, 0)} }},
	{"pipelined-100", func(s *testServer) []*Swarm { return []*Swarm{Flood(s.addr, 100, floodLines, pipelineBytes)} }},
	{"never-read-500", func(s *testServer) []*Swarm { return []*Swarm{NeverReadAtSpeed(s.addr, 500, floodLines)} }},
	{"never-read-5000", func(s *testServer) []*Swarm { return []*Swarm{NeverReadAtSpeed(s.addr, 5000, floodLines)} }},
	{"half-messages-5000", func(s *testServer) []*Swarm { return []*Swarm{HalfOpen(s.addr, 5000, bytes.Repeat([]byte("h"), 2048))} }},
	{"resets-4000/s", func(s *testServer) []*Swarm { return []*Swarm{ResetStorm(s.addr, 4000, 1<<40, []byte("hello\n"))} }},
}

// BenchmarkUnderAttack measures 200 honest clients under each attack, for each model and for plain (package net), in
// turn. It does not check speed, but that no answer is lost and memory is released. Use -benchtime 1x.
func BenchmarkUnderAttack(b *testing.B) {
	for _, attack := range measuredAttacks {
		for _, model := range append(tcp.Models(), plainModel) {
			b.Run(attack.name+"/"+model, func(b *testing.B) {
				b.ReportMetric(0, "ns/op")
				s := startServer(b, serverSpec{Model: model, Limits: tcp.Limits{MaxBuffered: 4 << 30}}, exec.Command(os.Args[0]))
				s.startHonestClients(&HonestClients{Conns: 200})
				s.measureUnderAttack(b, attack.swarms(s))
			})
		}
	}
}

func (s *testServer) measureUnderAttack(b *testing.B, swarms []*Swarm) {
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
	var p peakUsage
	begun := time.Now()
	for time.Since(begun) < *window {
		p.record(s)
		time.Sleep(20 * time.Millisecond)
	}
	b.ReportMetric(float64(s.clients.Report().Answers-from)/time.Since(begun).Seconds(), "answers/s")
	b.ReportMetric(float64(s.clients.TakeLatency().ValueAtQuantile(99))/1e3, "p99-ms")
	for _, w := range swarms {
		w.Stop()
	}
	s.waitResourcesReleased()
	b.ReportMetric(float64(p.buffered)/1e6, "MB-buffered")
	b.ReportMetric(float64(p.resident)/1e6, "MB-resident")
	if r := s.clients.Stop(); r.Wrong+r.Lost > 0 {
		b.Errorf("honest clients: %+v", r)
	}
	s.stopServer()
}
