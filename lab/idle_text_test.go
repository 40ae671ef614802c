package lab

import (
	"bytes"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// goodFull is a run of n connections that breaks no rule: each takes 100 bytes of
// the server and 8,000 of the kernel, and 50 and 100 more after an exchange.
func goodFull(n int) *RunRecord {
	at := func(m Moment, connections, user, kernel int) Sample {
		anonymous, slab := int64(5<<20+connections*user), int64(50<<20+connections*kernel)
		return Sample{
			Moment: m, RSS: anonymous + 8<<20, PSS: anonymous + 2<<20, Anonymous: anonymous,
			Slab: slab, Free: 20<<30 - slab - anonymous, TCP: int64(1000 + 2*connections), Connections: connections,
			Caches: map[string]int64{"TCP": 2<<20 + int64(connections)*5040, "dentry": 10 << 20, "filp": 1<<20 + int64(connections)*400},
			Go:     &GoMemory{StackInuse: 1 << 20, HeapInuse: 3<<20 + int64(connections*user), Sys: 20 << 20},
		}
	}
	return &RunRecord{
		Result:    &load.Result{Connections: n, Connected: n, ConnectTime: time.Second},
		Processes: 1,
		Samples:   []Sample{{Moment: Ready}, at(Touched, 0, 0, 0), at(Held, n, 100, 8000), at(Exchanged, n, 150, 8100)},
	}
}

func TestFullFigures(t *testing.T) {
	r := goodFull(10_000)
	r.judge(Workload{Kind: Idle, Full: true, Connections: 10_000}, twoCPUs)
	f := r.Idle.Full
	if f == nil || len(r.Marks) != 0 {
		t.Fatalf("got %+v, marks %v", f, r.Marks)
	}
	if !near(f.Idle.RSS, 100) || !near(f.Idle.Anonymous, 100) || !near(f.Idle.Kernel, 8000) || !near(f.Idle.Machine, 8100) {
		t.Errorf("idle: got %+v", f.Idle)
	}
	if !near(f.Exchanged.RSS, 150) || !near(f.Exchanged.Kernel, 8100) || !near(f.Exchanged.Machine, 8250) || !near(f.Sockets, 2) {
		t.Errorf("exchanged: got %+v, %v sockets", f.Exchanged, f.Sockets)
	}
	if c := f.Idle.Caches; len(c) != 2 || !near(c["TCP"], 5040) || !near(c["filp"], 400) {
		t.Errorf("caches: got %v, want those that grew", c)
	}
	if r.Idle.Memory.Connections != 10_000 {
		t.Errorf("%d connections were counted", r.Idle.Memory.Connections)
	}
}

// TestFullMarks breaks the rules of their own.
func TestFullMarks(t *testing.T) {
	for _, test := range []struct {
		rule    string
		breakIt func(*RunRecord)
	}{
		{RuleOthers, func(r *RunRecord) { r.Samples[3].TCP += 250 }},
		{RuleOthers, func(r *RunRecord) { r.Samples[1].TCP += 250 }},
		{RuleCount, func(r *RunRecord) { r.Samples[2].Connections-- }},
	} {
		r := goodFull(1000)
		test.breakIt(r)
		r.judge(Workload{Kind: Idle, Full: true, Connections: 1000}, twoCPUs)
		checkMarks(t, r, test.rule)
	}
	unknown := goodFull(1000)
	for i := range unknown.Samples {
		unknown.Samples[i].TCP, unknown.Samples[i].Caches = 0, nil
	}
	unknown.judge(Workload{Kind: Idle, Full: true, Connections: 1000}, twoCPUs)
	if len(unknown.Marks) != 0 || unknown.Idle.Full.Idle.Caches != nil {
		t.Errorf("where the kernel does not tell: marks %v, caches %v", unknown.Marks, unknown.Idle.Full.Idle.Caches)
	}
}

// idleReport has sizes with published figures and without, a subject that was left
// out and one that failed.
func idleReport(sizes ...int) *Report {
	r := &Report{
		Scenario: Scenario{Name: "idle", Question: "?", Baseline: "net", Rounds: 1, Subjects: []Subject{
			{Name: "goroutines", Parks: true}, {Name: "net"}, {Name: "epoll"}, {Name: "broken"},
		}},
		Machine: Machine{OS: "linux", Arch: "amd64", CPUs: 2, Go: "go1.26"}, Pinning: twoCPUs,
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Command: "myriad bench idle",
	}
	add := func(w Workload, subject string, run *RunRecord) {
		run.Workload, run.Subject, run.Round = w.Name, subject, 1
		run.judge(w, twoCPUs)
		r.Runs = append(r.Runs, *run)
	}
	for _, n := range []int{10_000, 30_000} {
		w := Workload{Name: "parked-" + thousands(float64(n)), Kind: Parking, Connections: n}
		r.Scenario.Workloads = append(r.Scenario.Workloads, w)
		run := &RunRecord{Samples: []Sample{
			{Moment: Ready, Anonymous: 1 << 20, Go: &GoMemory{StackInuse: 1 << 18}},
			{Moment: Parked, RSS: 30 << 20, PSS: 25 << 20, Anonymous: 1<<20 + int64(n)*2700, Go: &GoMemory{StackInuse: 1<<18 + int64(n)*2048, Sys: 40 << 20}},
		}}
		if n == 30_000 {
			run = &RunRecord{Skipped: "memory: there is too little."}
		}
		add(w, "goroutines", run)
	}
	for _, n := range sizes {
		w := Workload{Name: "idle-" + thousands(float64(n)), Caption: "They are silent.", Kind: Idle, Full: true, Connections: n}
		r.Scenario.Workloads = append(r.Scenario.Workloads, w)
		add(w, "net", &RunRecord{Skipped: "it is too small."})
		add(w, "epoll", goodFull(n))
		add(w, "broken", &RunRecord{Error: "the server ended: exit status 1"})
	}
	return r
}

func TestWriteTextIdle(t *testing.T) {
	for file, r := range map[string]*Report{"idle.golden": idleReport(10_000, 50_000), "idle-million.golden": idleReport(1_000_000)} {
		var got bytes.Buffer
		if err := r.WriteText(&got); err != nil {
			t.Fatal(err)
		}
		golden(t, file, got.String())
	}
}

// TestWidest shows so many caches and no more; what is left is in the others.
func TestWidest(t *testing.T) {
	r := goodFull(100)
	r.Workload, r.Subject = "w", "a"
	for i := range 2 * widestCaches {
		r.Samples[2].Caches["cache-"+string(rune('a'+i))] = int64(i+1) * 1000
	}
	r.judge(Workload{Kind: Idle, Full: true, Connections: 100}, twoCPUs)
	rows := []row{{subject: "a", runs: []*RunRecord{r}}}
	names := widest(rows)
	if len(names) != widestCaches || names[0] != "TCP" || names[1] != "filp" || names[2] != "cache-p" {
		t.Errorf("got %v", names)
	}
	rest, ok := otherCaches(names).read(r)
	sum := rest
	for _, name := range names {
		v, _ := ofCache(name).read(r)
		sum += v
	}
	if !ok || !near(sum, r.Idle.Full.Idle.Kernel) {
		t.Errorf("all columns are %v, want %v", sum, r.Idle.Full.Idle.Kernel)
	}
}
