package load

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// stalling makes the stream of an open loop whose server stands still for three
// seconds of a minute, as a run would tell it.
func stalling(t testing.TB) []Event {
	t.Helper()
	const connections, rate = 10_000, 50_000
	random := rand.New(rand.NewPCG(1, 2))
	whole, late := newHistogram(), newHistogram()
	service := newHistogram()
	plan := &Rate{PerSecond: rate, Poisson: true}
	events := []Event{{Phase: Began, Plan: &Plan{
		Start: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Targets: []string{"10.0.0.7:9000"}, Mode: "open loop",
		Connections: connections, Sources: 2, Pipeline: 8, Rate: plan, Duration: time.Minute, Model: "uring", Loops: 2,
		Host: "loader-1, 8 × Xeon, Linux 6.8", Seed: 7,
	}}}
	var sent, answered, open, waiting int64
	for second := range 72 {
		i := Interval{From: time.Duration(second) * time.Second, To: time.Duration(second+1) * time.Second}
		i.Server = &Usage{Descriptors: int(open)}
		latency := newHistogram()
		answer := func(n int64, scale float64) {
			for range n / 50 {
				took := int64(scale * math.Exp(random.NormFloat64()*.55) * float64(400*time.Microsecond))
				if random.IntN(400) == 0 {
					took *= 12
				}
				latency.RecordValues(min(took, int64(maxLatency)), 50)
				service.RecordValues(min(took, int64(20*time.Millisecond)), 50)
				late.RecordValue(1000 + random.Int64N(40_000))
			}
			i.Answered = n
		}
		switch {
		case second < 4:
			i.Stage, i.Opened = "connect", connections/4
			if second == 3 {
				i.Opened -= 12
				i.Failed = 12
				i.Errors = map[string]int64{"connection refused": 12}
			}
			i.Connect = Latency{Count: i.Opened, Min: 80_000, Mean: 250_000, P50: 210_000, P90: 500_000, P99: 900_000, P999: 2_000_000, P9999: 3_000_000, Max: 3_000_000}
		case second < 9:
			i.Stage, i.Intended, i.Sent = "warm-up", rate, rate
			answer(rate, 1+float64(9-second)*.3)
		case second < 69:
			i.Stage, i.Intended, i.Sent = "window", rate, rate+int64(random.IntN(600)-300)
			switch {
			case second >= 38 && second < 41: // it stands still
				i.Sent, waiting = 12_000/int64(second-36), waiting+rate-4000
				answer(int64(41-second)*600, 900*float64(second-37))
				i.Lost = int64(40 * (second - 37))
				i.Errors = map[string]int64{"connection reset by peer": i.Lost}
			case second >= 41 && second < 44: // it catches up
				i.Sent = rate + waiting/3
				answer(i.Sent, 6000*float64(44-second)/3)
				if second == 43 {
					waiting = 0
				}
			default:
				answer(i.Sent, 1+.25*math.Sin(float64(second)/5))
			}
		case second < 71:
			i.Stage = "drain"
		default:
			i.Stage, i.Closed = "close", open
		}
		open += i.Opened - i.Lost - i.Closed
		i.Open, i.Waiting, i.Flying = open, waiting, i.Answered/900+waiting/3
		i.BytesSent, i.BytesReceived = i.Sent*64, i.Answered*64
		i.Latency = readLatency(latency)
		busy := float64(i.Answered) / rate
		i.Generator = Usage{CPU: time.Duration((.04 + .5*busy) * float64(time.Second)), Resident: 30<<20 + open*2400, Descriptors: int(open)}
		i.Server.CPU = time.Duration((.02 + .9*busy) * float64(time.Second))
		i.Server.Resident = 22<<20 + open*1900
		sent, answered = sent+i.Sent, answered+i.Answered
		whole.Merge(latency)
		if second == 4 {
			events = append(events, Event{Phase: Connected})
		}
		if second == 9 {
			events = append(events, Event{Phase: Measuring})
		}
		events = append(events, Event{Phase: Progress, Interval: &i, Snapshot: Snapshot{open, 12, sent, answered}})
	}
	text, err := whole.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	inTime, delay := readLatency(service), readLatency(late)
	return append(events, Event{Phase: Done, Result: &Result{
		Target: "10.0.0.7:9000", Model: "uring", CPUs: 2, Connections: connections, Connected: connections - 12, ConnectTime: 3900 * time.Millisecond,
		ConnectErrors: map[string]int64{"connection refused": 12}, Mode: "open loop", Schedule: plan, Seed: 7, Pipeline: 8, MessageSize: 64,
		Connect:   Latency{Count: connections - 12, Min: 80_000, Mean: 250_000, P50: 210_000, P90: 500_000, P99: 900_000, P999: 2_000_000, P9999: 3_000_000, Max: 3_100_000},
		FirstByte: Latency{Count: connections - 12, Min: 180_000, Mean: 650_000, P50: 510_000, P90: 900_000, P99: 1_900_000, P999: 4_000_000, P9999: 6_000_000, Max: 6_100_000},
		Window:    time.Minute, Sent: 3_000_012, Answered: 2_996_113, BytesSent: 3_000_012 * 64, BytesReceived: 2_996_113 * 64,
		Latency: readLatency(whole), Corrected: true, Service: &inTime, Late: &delay, Intended: 3_000_000, Unsent: 0,
		Histogram: string(text), UserCPU: 21 * time.Second, SystemCPU: 14 * time.Second,
		Lost:  map[string]int64{"connection reset by peer": 240},
		Bytes: Bytes{Sent: 208_000_768, Received: 207_985_600, Answered: 207_985_600, CutOff: 15_168},
	}})
}

// streamText is the events of a stream as it is written.
func streamText(t testing.TB, events []Event) *bytes.Buffer {
	t.Helper()
	b := new(bytes.Buffer)
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	return b
}

// readBack is the stream of events.
func readBack(t testing.TB, events []Event) *Stream {
	t.Helper()
	s, err := ReadStream(streamText(t, events))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
