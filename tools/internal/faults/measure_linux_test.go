package faults

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

var (
	window    = flag.Duration("faults.window", time.Second, "how long each measurement lasts; with 3s all of them take about 10 minutes")
	attackers = flag.Int("faults.attackers", 9999, "how many connections attack by thirds: of three kinds")
	honest    = flag.Int("faults.honest", 200, "how many honest clients there are")
)

const (
	// rounds is how often each model is measured under each attack, in turn.
	rounds = 2
	// soakBudget is what buffers may hold. No attack is to reach it.
	soakBudget = 4 << 30
)

// sieges are the attacks that are measured.
var sieges = []struct {
	name   string
	swarms func(s *subject) []*Swarm
}{
	{"thirds", thirds},
	{"flood-10", one(func(s *subject) *Swarm { return Flood(s.addr, 10, lines, 0) })},
	{"flood-100", one(func(s *subject) *Swarm { return Flood(s.addr, 100, lines, 0) })},
	{"flood-5000", one(func(s *subject) *Swarm { return Flood(s.addr, 5000, lines, 0) })},
	{"pipelined-100", one(func(s *subject) *Swarm { return Flood(s.addr, 100, lines, pipelined) })},
	{"never-read-500", one(func(s *subject) *Swarm { return NeverReadAtSpeed(s.addr, 500, lines) })},
	{"never-read-5000", one(func(s *subject) *Swarm { return NeverReadAtSpeed(s.addr, 5000, lines) })},
	{"half-messages-5000", one(func(s *subject) *Swarm { return HalfOpen(s.addr, 5000, bytes.Repeat([]byte("h"), 2048)) })},
	{"resets-4000/s", one(func(s *subject) *Swarm { return ResetStorm(s.addr, 4000, 1<<40, []byte("hello\n")) })},
}

func one(f func(s *subject) *Swarm) func(s *subject) []*Swarm {
	return func(s *subject) []*Swarm { return []*Swarm{f(s)} }
}

// thirds are slow attackers of three kinds.
func thirds(s *subject) []*Swarm {
	third := *attackers / 3
	line := append(bytes.Repeat([]byte("r"), 1023), '\n')
	return []*Swarm{
		Slowloris(s.addr, third, 5*time.Second), NeverRead(s.addr, third, line, 5*time.Second), HalfOpen(s.addr, third, nil),
	}
}

// reading is what was seen in one window.
type reading struct {
	rate     float64       // answers a second that honest clients had
	p99      time.Duration // of those
	newcomer time.Duration // the longest that one had to wait for its first answer
	peak
	after int64 // bytes resident when the attack is over
	lost  int64 // answers that were wrong or did not come
}

// BenchmarkUnderAttack measures what honest clients have without and with each
// attack, of each model and of plain, which is package net alone, in turn. It asserts
// no speed, but that answers are right, that limits are kept, and that memory comes
// back. Once is enough: -benchtime 1x.
func BenchmarkUnderAttack(b *testing.B) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nattack\tmodel\talone, answers/s\tattacked\tkept\tof plain's\tp99 alone\tattacked\tnewcomer\tbuffered, MB\tresident\tafter\tlost\t")
	for _, attack := range sieges {
		b.Run(attack.name, func(b *testing.B) {
			for range b.N {
				alone, attacked := make(map[string][]reading), make(map[string][]reading)
				for range rounds {
					for _, model := range append(tcp.Models(), plain) {
						a, u := underAttack(b, model, attack.swarms)
						alone[model], attacked[model] = append(alone[model], a), append(attacked[model], u)
					}
				}
				b.ReportMetric(0, "ns/op")
				tell(b, table, attack.name, alone, attacked)
			}
		})
	}
	table.Flush()
}

// tell prints the lines of one attack.
func tell(b *testing.B, table io.Writer, name string, alone, attacked map[string][]reading) {
	other := overall(attacked[plain]).rate
	for _, model := range append(tcp.Models(), plain) {
		a, u := overall(alone[model]), overall(attacked[model])
		b.ReportMetric(u.rate, model+"-answers/s")
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%.0f\t%.0f%%\t%.2f\t%v\t%v\t%v\t%.0f\t%.0f\t%.0f\t%d\t\n", name, model,
			a.rate, u.rate, 100*u.rate/a.rate, u.rate/other, a.p99, u.p99, u.newcomer.Round(100*time.Microsecond),
			float64(u.buffered)/1e6, float64(u.resident)/1e6, float64(u.after)/1e6, u.lost)
	}
}

// overall is the mean rate of readings, and the worst of everything else.
func overall(all []reading) (r reading) {
	for _, one := range all {
		r.rate += one.rate / float64(len(all))
		r.lost += one.lost
		r.p99, r.newcomer = max(r.p99, one.p99), max(r.newcomer, one.newcomer)
		r.buffered, r.resident, r.after = max(r.buffered, one.buffered), max(r.resident, one.resident), max(r.after, one.after)
	}
	return r
}

// underAttack measures one model and one attack.
func underAttack(b *testing.B, model string, attack func(s *subject) []*Swarm) (alone, attacked reading) {
	s := serve(b, spec{Model: model, Limits: tcp.Limits{MaxBuffered: soakBudget}}, exec.Command(os.Args[0]))
	s.begin(&Honest{Conns: *honest})
	alone = s.read()
	swarms := attack(s)
	for _, w := range swarms {
		w.Redial, w.Every = true, cmp.Or(w.Every, time.Second)
		s.attack(w)
	}
	for end := time.Now().Add(turnBound); time.Now().Before(end) && slices.ContainsFunc(swarms, func(w *Swarm) bool {
		return w.Counts().Connected < int64(w.Conns) // some have not come yet
	}); {
		time.Sleep(10 * time.Millisecond)
	}
	attacked = s.read()
	for _, w := range swarms {
		b.Logf("%s: %+v", model, w.Counts())
		w.Stop()
	}
	s.back()
	attacked.after = s.footprint().RSS
	r := s.clients.Stop()
	if attacked.lost = r.Wrong + r.Lost; attacked.lost > 0 {
		b.Errorf("%s: honest clients: %+v", model, r)
	}
	if attacked.buffered > soakBudget {
		b.Errorf("%s: %d bytes were buffered, with a limit of %d", model, attacked.buffered, soakBudget)
	}
	s.shut()
	return alone, attacked
}

// read looks at honest clients and the server for one window, while others come and
// ask once.
func (s *subject) read() (r reading) {
	var newcomers sync.WaitGroup
	ended := make(chan struct{})
	newcomers.Go(func() {
		for {
			wait, err := s.newcomer(honestPatience)
			if r.newcomer = max(r.newcomer, wait); err != nil {
				s.Errorf("one that comes later: %v", err)
				return
			}
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	from := s.clients.Report().Answers
	s.clients.Latency() // what was before
	begun := time.Now()
	for time.Since(begun) < *window {
		r.look(s)
		time.Sleep(20 * time.Millisecond)
	}
	r.rate = float64(s.clients.Report().Answers-from) / time.Since(begun).Seconds()
	r.p99 = time.Duration(s.clients.Latency().ValueAtQuantile(99)) * time.Microsecond
	close(ended)
	newcomers.Wait()
	return r
}
