package lab

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/load"
)

// MillionRun is what was seen in a run under a Holding workload.
type MillionRun struct {
	// Doctor is what package doctor has said before.
	Doctor []string `json:"doctor,omitempty"`
	// Before is from before the first connection, Phases what came then, in order,
	// as far as the run has come. Left is what of the kernel is left when both
	// sides have ended, nil if it did not come to that.
	Before MillionSample  `json:"before"`
	Phases []MillionPhase `json:"phases"`
	Left   *MillionLeft   `json:"left,omitempty"`
	// Caller is the connection that has asked for the broadcast, nil if none has.
	Caller *MillionCaller `json:"caller,omitempty"`
	// Stopped is set when connections were no longer opened because memory ran low.
	Stopped *MillionStop `json:"stopped,omitempty"`
	// Findings say what was claimed and what was found, Missed that this fails the run.
	Findings []MillionFinding `json:"findings,omitempty"`
	Missed   bool             `json:"missed,omitempty"`
}

// MillionPhase is a part of a run.
type MillionPhase struct {
	// Name is "connect", "check", "idle", "broadcast", "heartbeats", "check again" or
	// "close".
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
	// Count is of what there was, Rate so many a second: connections that the
	// server has opened or closed, lines that came back, connections that heard the
	// broadcast, or heartbeats that the server has sent. Of idle both are 0.
	Count int64   `json:"count"`
	Rate  float64 `json:"rate"`
	// Latency is of connecting, of lines that came back, or of the broadcast from
	// its first receipt on. Of others it is empty.
	Latency load.Latency `json:"latency"`
	// ServerCPU and LoadCPU are the processor time of each side between the sample at
	// the end and the one before, which are Sampled apart.
	Sampled   time.Duration `json:"sampled"`
	ServerCPU time.Duration `json:"server_cpu"`
	LoadCPU   time.Duration `json:"load_cpu"`
	// End is how it was at the end.
	End MillionSample `json:"end"`
}

// MillionStop says where memory ran low.
type MillionStop struct {
	// Wall is "memory".
	Wall string `json:"wall"`
	// At is how many connections the server had, Free how many bytes were free, and
	// Keep how many were to be.
	At   int64 `json:"at"`
	Free int64 `json:"free"`
	Keep int64 `json:"keep"`
	// Of is the limit of a cgroup that leaves so little, "" where it is the machine.
	Of string `json:"of,omitempty"`
}

func (s *MillionStop) String() string {
	return fmt.Sprintf("%s: stopped at %s connections: %s MB are free%s, and %s MB are to stay free",
		s.Wall, thousands(float64(s.At)), thousands(float64(s.Free)/1e6), memoryRoom{of: s.Of}.in(), thousands(float64(s.Keep)/1e6))
}

// MillionFinding is a claim and what a run says of it.
type MillionFinding struct {
	Finding
	// Strict says that it fails a run only where it is not met, and only with
	// MillionLoad.Strict: it is about a size or a rate, or can't be told here. Others
	// fail a run that has nothing to show for them, too.
	Strict bool `json:"strict,omitempty"`
}

// missed says whether an answer was wrong, something was lost or left, or there is nothing
// to show for what was asked, and if strict whether any finding is not met.
func (r *MillionRun) missed(strict bool) bool {
	for _, f := range r.Findings {
		if f.Outcome == NotMet && strict || f.Outcome != Met && !f.Strict {
			return true
		}
	}
	return false
}

// phase finds a phase, nil if the run did not come to it.
func (r *MillionRun) phase(name string) *MillionPhase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}
