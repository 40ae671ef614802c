package load

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// plan is what the run is about to do.
func (r *run) plan() *Plan {
	host, _ := os.Hostname() // "" if it has no name
	p := &Plan{
		Start:       r.traffic.began,
		Targets:     r.targets(),
		Mode:        r.cfg.modeName(),
		Connections: r.cfg.Connections,
		Sources:     len(r.dialer.plan),
		Pipeline:    r.cfg.Pipeline,
		Mute:        r.cfg.mute(),
		Duration:    r.cfg.Duration,
		Messages:    r.cfg.Messages,
		Check:       r.cfg.Check,
		Seed:        r.cfg.Seed,
		Model:       r.cfg.Model,
		Loops:       r.engine.Loops(),
		Host:        fmt.Sprintf("%s, %d CPUs, %s", cmp.Or(host, "unnamed"), runtime.NumCPU(), runtime.GOOS),
	}
	if r.ledger.usage != nil {
		own, server := r.ledger.usage.sample()
		p.Generator, p.Server = &own, server
	}
	if r.traffic.open() {
		rate := r.cfg.Rate
		p.Rate = &rate
	}
	return p
}

func (r *run) targets() (names []string) {
	for _, t := range r.dialer.targets {
		names = append(names, t.String())
	}
	return names
}

// result puts together what the run saw.
func (r *run) result(end sum) *Result {
	r.ledger.collect(r.traffic.shards)
	total, t := r.ledger.total, r.traffic
	cpus := min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
	if loops := r.engine.Loops(); loops > 0 {
		cpus = min(cpus, loops)
	}
	result := &Result{
		Target:        strings.Join(r.targets(), ", "),
		Model:         r.cfg.Model,
		TLS:           r.tls.describe(),
		CPUs:          cpus,
		Connections:   r.cfg.Connections,
		Connected:     int(end.opened),
		ConnectTime:   r.connected,
		Mode:          r.cfg.modeName(),
		Mute:          t.script.mute,
		Seed:          r.cfg.Seed,
		Connect:       latencyOf(&total.connect),
		FirstByte:     latencyOf(&total.firstByte),
		Closed:        end.outlived,
		CutOff:        end.cutOff,
		Pipeline:      r.cfg.Pipeline,
		Messages:      r.cfg.Messages,
		Exchanged:     end.exchanged,
		MessageSize:   r.cfg.messageSize(),
		Window:        r.window,
		Sent:          end.window.sent,
		Answered:      end.window.answered,
		BytesSent:     end.window.bytesOut,
		BytesReceived: end.window.bytesIn,
		Latency:       latencyOf(&total.window),
		Histogram:     encode(&total.window),
		UserCPU:       r.user,
		SystemCPU:     r.system,
		Bytes: Bytes{
			Sent:     end.whole.bytesOut,
			Received: end.whole.bytesIn,
			Answered: end.whole.bytesAnswered,
			CutOff:   end.droppedBytes,
		},
	}
	if !t.script.mute {
		result.Bytes.InFlight = result.Bytes.Sent - result.Bytes.Answered - result.Bytes.CutOff
		if !r.cfg.Unprompted {
			result.Unanswered = end.whole.sent - end.whole.answered - end.cutOff
		}
	}
	if t.open() {
		r.openResult(result, end)
	}
	if t.mode == holding {
		r.heldResult(result, end)
	}
	t.faults.fill(result)
	result.Limits = r.limits(result)
	return result
}

// heldResult adds what only connections that are held have.
func (r *run) heldResult(result *Result, end sum) {
	result.RollCalls, result.Broadcast = r.rollCalls, r.broadcast(r.last)
	result.Heartbeats, result.Strange = end.heartbeats, end.strange
	for _, c := range r.rollCalls {
		result.Unanswered += c.Unanswered
	}
	if b := &result.Bytes; r.cfg.Check > 0 {
		b.InFlight = b.Sent - b.Answered - b.CutOff
	}
}

// openResult adds what only an open loop has.
func (r *run) openResult(result *Result, end sum) {
	t, total := r.traffic, r.ledger.total
	rate := r.cfg.Rate // a search changes it
	result.Schedule, result.Corrected = &rate, true
	service, late := latencyOf(&total.service), latencyOf(&total.late)
	result.Service, result.Late = &service, &late
	result.Unsent = r.unsent + end.unsent
	result.Intended = t.schedule.windowTaken() + r.unsent
	if t.mode == openEach {
		result.Intended = end.planned + r.unsent
	}
}
