package lab

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/doctor"
	"github.com/myriad-go/myriad/internal/procfs"
)

// TestWall has a machine of 20 GiB, of which 1 is kept.
func TestWall(t *testing.T) {
	small := fullStep(100)
	small.subject.MaxConns, small.subject.Wall = 99, "it is small"
	fits := small
	fits.subject.MaxConns = 100
	parked := step{workload: Workload{Kind: Parking, Connections: 1 << 20}}
	quick := fullStep(100 << 20)
	quick.workload.Full = false
	holding := step{workload: Workload{Kind: Holding, Connections: 1 << 20}}
	most := gib/firstGuess - 1
	for name, test := range map[string]struct {
		step   step
		free   int64
		before []RunRecord
		want   string
	}{
		"fewer":            {small, 20 * gib, nil, "100 connections are more than the 99 that it can hold: it is small"},
		"as many":          {fits, 20 * gib, nil, ""},
		"a guess":          {fullStep(most), 2 * gib, nil, ""},
		"more":             {fullStep(most + 2), 2 * gib, nil, "a cautious guess, need 1.00 GiB; 2.00 GiB are free, of which 1.00 GiB are kept"},
		"measured":         {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, 1024, 1860)}, ""},
		"too much":         {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, 1024, 1863)}, "1,048,576 of 2,049 bytes each, by the run with 1,000, need 2.00 GiB"},
		"the largest":      {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, 1, 1), fullRun("a", 10, 1e6, 1e6)}, ""},
		"another's":        {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("b", 1000, 1, 1)}, "a cautious guess"},
		"others came":      {fullStep(1 << 20), 3 * gib, []RunRecord{among(8, fullRun("a", 1000, 3000, 3000))}, ""},
		"others went":      {fullStep(1 << 20), 3 * gib, []RunRecord{among(1, fullRun("a", 1000, 1500, 1500))}, "1,048,576 of 2,750"},
		"noise":            {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, -5, -6)}, "a cautious guess"},
		"failed":           {fullStep(1 << 20), 3 * gib, []RunRecord{{Subject: "a", Error: "failed"}}, "a cautious guess"},
		"goroutines":       {parked, 5 * gib, nil, ""},
		"more goroutines":  {parked, 5*gib - 1, nil, "memory: 1,048,576 of 4,096 bytes each"},
		"not full":         {quick, 1, nil, "memory: 104,857,600 of 20,480"},
		"next to nothing":  {fullStep(negligible / firstGuess), 0, nil, ""},
		"nothing is there": {fullStep(negligible/firstGuess + 1), 0, nil, "memory: "},
		"looks itself":     {holding, 0, nil, ""},
	} {
		r := &runner{room: free(test.free)}
		got := r.wall(test.step, test.before)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	unknown := &runner{room: func() (memoryRoom, error) { return memoryRoom{}, procfs.ErrNotAvailable }}
	if got := unknown.wall(fullStep(100), nil); got != "" {
		t.Errorf("where nobody knows what is free: got %q, want a run", got)
	}
}

// tightFacts is a made-up machine: 2 CPUs, plenty of memory, 20,000 descriptors, 65,536
// tracked connections.
func tightFacts() *doctor.Facts {
	return &doctor.Facts{
		Machine: doctor.MachineFacts{Kernel: "6.18.0", CPUs: 2},
		Meminfo: doctor.MemoryFacts{Total: 64 << 30, Free: 60 << 30},
		Nodes:   1,
		Sysctls: map[string]string{
			"fs.nr_open": "1048576", "fs.file-max": "4000000", "fs.epoll.max_user_watches": "9000000",
			"net.core.somaxconn": "4096", "net.ipv4.ip_local_port_range": "32768 60999",
			"net.ipv4.tcp_rmem": "4096 131072 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304",
			"net.ipv4.tcp_mem": "4200000 5600000 8400000", "kernel.threads-max": "300000", "kernel.pid_max": "327680",
		},
		Process:    doctor.ProcessFacts{Nofile: doctor.Rlimit{Soft: 20000, Hard: 20000}, Nproc: doctor.Rlimit{Soft: 150000, Hard: 150000}, Memlock: doctor.Rlimit{Soft: 1 << 30, Hard: 1 << 30}},
		Interfaces: []doctor.Interface{{Name: "lo", Loopback: true, Up: true, Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}},
	}
}

// tracked is the machine with a firewall that tracks so many connections.
func tracked(n string) *doctor.Facts {
	f := tightFacts()
	f.Sockets.Tracking = true
	f.Sysctls["net.netfilter.nf_conntrack_max"] = n
	return f
}

// TestMachineWall holds subjects against a made-up machine.
func TestMachineWall(t *testing.T) {
	down := tightFacts()
	down.Interfaces[0].Up = false
	few := tightFacts()
	few.Sysctls["fs.file-max"] = "30000"
	poor := tightFacts()
	poor.Meminfo.Free = 1 << 20
	serve := func(model string) Subject {
		return Subject{Name: "a", Command: Words{"{self}", "serve", "--model", model}}
	}
	processes := serve("goroutine")
	processes.PerProcess = 10_000
	foreign := Subject{Name: "b", Command: Words{"mine", "--model", "goroutine"}}
	for name, test := range map[string]struct {
		facts   *doctor.Facts
		subject Subject
		n       int
		kind    Kind
		want    string
	}{
		"nobody knows":          {nil, serve("epoll"), 1 << 30, Idle, ""},
		"a million on loops":    {tightFacts(), serve("epoll"), 1_000_000, Idle, ""},
		"auto":                  {tightFacts(), serve("auto"), 1_000_000, Throughput, ""},
		"one table":             {tightFacts(), serve("goroutine"), 1_000_000, Idle, "nofile: descriptors that a process may open (RLIMIT_NOFILE) stops 1,000,000 connections at 19,"},
		"one table holds these": {tightFacts(), serve("goroutine"), 19_000, Idle, ""},
		"many processes":        {tightFacts(), processes, 100_000, Idle, ""},
		"somebody else's":       {tightFacts(), foreign, 1_000_000, Idle, ""},
		"files":                 {few, foreign, 20_000, Heartbeats, "; it is 30,000, 0 open, needs "},
		"advice":                {few, foreign, 20_000, Flood, "; `myriad doctor -n 20000` says how to move it"},
		"conntrack":             {tracked("1000"), foreign, 1_001, Holding, "conntrack: "},
		"conntrack holds these": {tracked("1000000"), foreign, 1_000, Holding, ""},
		"no loopback":           {down, foreign, 1, Throughput, "loopback: "},
		"goroutines":            {down, foreign, 1 << 30, Parking, ""},
		"jobs":                  {down, Subject{Name: "c"}, 0, Offering, ""},
		"memory of others":      {poor, foreign, 100_000, Idle, ""},
		"memory of ours":        {poor, serve("epoll"), 100_000, Idle, "memory: memory that nothing uses"},
		"memory, held":          {poor, serve("epoll"), 100_000, Holding, ""},
		"more than can be":      {tightFacts(), foreign, math.MaxInt32, Idle, ""},
	} {
		s := step{subject: test.subject, workload: Workload{Kind: test.kind, Connections: test.n}}
		got := machineWall(test.facts, s, asksForMemory(s))
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestRunWall has runs left out before anything is started, and others made with as many
// connections as their subject holds.
func TestRunWall(t *testing.T) {
	few := tightFacts()
	few.Sysctls["fs.file-max"] = "30000"
	held := Subject{Name: "held", Command: Words{"/does/not/exist", "{addr}"}, MaxConns: 100}
	r := &runner{facts: few, room: free(60 * gib), launcher: newLauncher()}
	defer r.launcher.close()
	w := small("one")
	w.Connections = 20_000
	if got := r.run(t.Context(), step{workload: w, subject: held, round: 1}, nil); got.Skipped != "" || !strings.Contains(got.Error, "cannot start /does/not/exist") {
		t.Errorf("held: got %q, %q, want it started", got.Skipped, got.Error)
	}
	held.MaxConns = 0
	if got := r.run(t.Context(), step{workload: w, subject: held, round: 1}, nil); !strings.HasPrefix(got.Skipped, "file-max: ") || got.Error != "" || got.Command != nil {
		t.Errorf("not held: got %q, %q, want it left out", got.Skipped, got.Error)
	}
}
