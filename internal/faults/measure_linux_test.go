package faults

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/myriad-go/myriad"
)

var (
	window    = flag.Duration("faults.window", 5*time.Second, "how long each measurement lasts")
	attackers = flag.Int("faults.attackers", 9999, "how many connections attack: a third each of three kinds")
	honest    = flag.Int("faults.honest", 1000, "how many honest clients there are")
)

// reading is what honest clients have seen in one window.
type reading struct {
	rate float64 // answers a second
	p99  time.Duration
}

// BenchmarkUnderAttack measures honest throughput and latency without and with
// 10,000 attackers, three times each in turn, and prints medians. It asserts no
// speed, but that all answers are right. Once is enough: -benchtime 1x.
func BenchmarkUnderAttack(b *testing.B) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nmodel\talone, answers/s\tattacked\tkept\talone, p99\tattacked\tattackers\t")
	for _, model := range myriad.Models() {
		b.Run(model, func(b *testing.B) {
			for range b.N {
				underAttack(b, model, table)
			}
		})
	}
	table.Flush()
}

func underAttack(b *testing.B, model string, table io.Writer) {
	s := serve(b, spec{Model: model}, nil)
	s.begin(&Honest{Addr: s.Addr, Conns: *honest})
	var alone, attacked []reading
	most := int64(0)
	for range 3 {
		alone = append(alone, s.read())
		swarms := s.attackByThirds()
		attacked = append(attacked, s.read())
		most = max(most, s.stats().Open-int64(*honest))
		for _, w := range swarms {
			w.Stop()
		}
		s.counts("attackers are gone", func(st myriad.Stats) bool { return st.Open == int64(*honest) })
	}
	s.end()
	before, under := medianOf(alone), medianOf(attacked)
	b.ReportMetric(before.rate, "answers/s-alone")
	b.ReportMetric(under.rate, "answers/s-attacked")
	b.ReportMetric(0, "ns/op")
	fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.0f%%\t%v\t%v\t%d\t\n", model,
		before.rate, under.rate, 100*under.rate/before.rate, before.p99, under.p99, most)
}

// attackByThirds starts three kinds of attackers, which connect again when they
// are closed, and waits until all have been connected.
func (s *subject) attackByThirds() []*Swarm {
	s.Helper()
	third := *attackers / 3
	line := make([]byte, 1024)
	for i := range line {
		line[i] = 'r'
	}
	line[len(line)-1] = '\n'
	swarms := []*Swarm{
		Slowloris(s.addr, third, 5*time.Second), NeverRead(s.addr, third, line, 5*time.Second), HalfOpen(s.addr, third, nil),
	}
	for _, w := range swarms {
		w.Redial, w.Every = true, 5*time.Second
		s.attack(w)
	}
	for _, w := range swarms {
		s.eventually(func() bool { return w.Counts().Connected >= int64(third) }, func() string {
			return fmt.Sprintf("attackers are connected: %+v", w.Counts())
		})
	}
	return swarms
}

// read looks at honest clients for one window.
func (s *subject) read() reading {
	from := s.clients.Report().Answers
	s.clients.Latency() // what was before
	begun := time.Now()
	time.Sleep(*window)
	took := time.Since(begun)
	answers := s.clients.Report().Answers - from
	p99 := s.clients.Latency().ValueAtQuantile(99)
	r := reading{rate: float64(answers) / took.Seconds(), p99: time.Duration(p99) * time.Microsecond}
	s.Logf("%.0f answers a second, p99 %v", r.rate, r.p99)
	return r
}

// medianOf is the median of each figure.
func medianOf(r []reading) (m reading) {
	r = slices.Clone(r)
	slices.SortFunc(r, func(a, b reading) int { return cmp.Compare(a.rate, b.rate) })
	m.rate = r[len(r)/2].rate
	slices.SortFunc(r, func(a, b reading) int { return cmp.Compare(a.p99, b.p99) })
	m.p99 = r[len(r)/2].p99
	return m
}
