package sample

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/internal/procfs"
)

func newMachine(busy time.Duration, established int64, counters map[string]int64) Machine {
	return Machine{CPUTime: procfs.CPUTime{Busy: busy, Stolen: time.Second}, Network: procfs.Network{Established: established, Counters: counters}}
}

// TestSince checks that counters cover processes present in both samples, and that other values are those at the end.
func TestSince(t *testing.T) {
	began := time.Now()
	before := Sample{At: began, Processes: []Process{
		{PID: 1, User: 10 * time.Second, System: time.Second, RSS: 100, Voluntary: 7},
		{PID: 2, User: 5 * time.Second, RSS: 200},
		{PID: 3, User: 9 * time.Second}, // it ends
	}}
	before.Machine = newMachine(time.Minute, 50, map[string]int64{"a": 3, "b": 9, "c": 1})
	after := Sample{At: began.Add(2 * time.Second), Processes: []Process{
		{PID: 2, User: 6 * time.Second, RSS: 300},
		{PID: 1, User: 12 * time.Second, System: 2 * time.Second, RSS: 150, Voluntary: 5, Descriptors: 4}, // a thread with 7 switches has ended
		{PID: 4, User: time.Hour, RSS: 1},                                                                 // it has begun, it is not known when it used that
	}}
	after.Machine = newMachine(61*time.Second, 40, map[string]int64{"a": 5, "b": 2, "d": 6})

	got := after.DifferenceSince(&before)
	p := got.Process
	if got.Length != 2*time.Second || p.User != 3*time.Second || p.System != time.Second || p.CPU() != 4*time.Second || p.Voluntary != 0 {
		t.Errorf("in %v the processes used %+v", got.Length, p)
	}
	if p.RSS != 451 || p.Descriptors != 4 {
		t.Errorf("at the end the processes have %+v", p)
	}
	m := got.Machine
	if m.Busy != time.Second || m.Stolen != 0 || m.Established != 40 {
		t.Errorf("the machine: %+v", m)
	}
	if c := m.Counters; len(c) != 2 || c["a"] != 2 || c["b"] != 0 {
		t.Errorf("counters grew by %v; want a by 2 and b, which began anew, by 0", c)
	}
	if after.Machine.Counters["a"] != 5 {
		t.Error("the sample itself has changed")
	}
}
