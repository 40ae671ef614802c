package lab

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// widestCaches is how many of the kernel's caches have a column.
const widestCaches = 8

// ofSample makes a figure of what was sampled at a moment.
func ofSample(m Moment, read func(*Sample) int64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Error != "" {
			return 0, false
		}
		s := r.sample(m)
		if s == nil {
			return 0, false
		}
		v := read(s)
		return float64(v), v != 0
	}
}

// ofGo makes a figure of what Go said at a moment.
func ofGo(m Moment, read func(*GoMemory) int64) figure {
	return ofSample(m, func(s *Sample) int64 {
		if s.Go == nil {
			return 0
		}
		return read(s.Go)
	})
}

// ofFull makes a figure of a full run.
func ofFull(read func(*FullFigures) float64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Idle == nil || r.Idle.Full == nil {
			return 0, false
		}
		return read(r.Idle.Full), true
	}
}

func stackInuse(m *GoMemory) int64 { return m.StackInuse }
func heapInuse(m *GoMemory) int64  { return m.HeapInuse }
func goSys(m *GoMemory) int64      { return m.Sys }
func rss(s *Sample) int64          { return s.RSS }
func pss(s *Sample) int64          { return s.PSS }

// mebibytes writes bytes as MiB.
func mebibytes(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) }

// publishedMiB writes a published figure, which is in MiB.
func publishedMiB(v float64) string {
	if v == 0 {
		return none
	}
	return fmt.Sprintf("%.1f", v)
}

// parking writes the table of parked goroutines, a row for each size, if there are
// any.
func (r *Report) parking(b *bytes.Buffer) error {
	t := &table{}
	t.add("goroutines", "StackInuse MiB", "Sys MiB", "RSS MiB", "PSS MiB", "stack bytes each", "anonymous bytes each",
		"published: StackInuse MiB", "Sys MiB", "marks")
	var all []row
	for _, w := range r.Scenario.Workloads {
		if w.Kind != Parking {
			continue
		}
		for _, x := range r.rows(w.Name) {
			all = append(all, x)
			p := publishedParked[w.Connections]
			t.add(thousands(float64(w.Connections)), x.median(ofGo(Parked, stackInuse), mebibytes), x.median(ofGo(Parked, goSys), mebibytes),
				x.median(ofSample(Parked, rss), mebibytes), x.median(ofSample(Parked, pss), mebibytes),
				x.median(parkedStack, thousands), x.median(parkedAnonymous, thousands),
				publishedMiB(p.stack), publishedMiB(p.sys), x.marks())
		}
	}
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintf(b, "\nparked: Goroutines that wait for a channel and do nothing else, in a process of their own.\n")
	if err := t.write(b); err != nil {
		return err
	}
	fmt.Fprintf(b, "  %s\n", publishedOn)
	remarks(b, all)
	return nil
}

func parkedStack(r *RunRecord) (float64, bool) {
	if r.Parked == nil {
		return 0, false
	}
	return r.Parked.Stack, true
}

func parkedAnonymous(r *RunRecord) (float64, bool) {
	if r.Parked == nil || r.Parked.Anonymous == 0 {
		return 0, false
	}
	return r.Parked.Anonymous, true
}

// fullTables writes the tables of a Full workload: the server's user memory, and
// the kernel's.
func fullTables(b *bytes.Buffer, rows []row, w Workload) error {
	fmt.Fprintf(b, "  The server's user memory: in all after one exchange, and bytes for each connection.\n")
	if err := userTable(rows, w).write(b); err != nil {
		return err
	}
	if _, ok := publishedIdle[w.Connections]; ok {
		fmt.Fprintf(b, "  %s\n", publishedOn)
	}
	fmt.Fprintf(b, "\n  The kernel's memory for both ends of each connection, in bytes; by cache when idle. proc_inode_cache, if there,\n"+
		"  is left by looks at descriptors in /proc. Machine is by how much unused memory (MemFree) is less after one\n"+
		"  exchange: kernel, server, load generator, and whatever else the machine did.\n")
	return kernelTable(rows).write(b)
}

func userTable(rows []row, w Workload) *table {
	t := &table{}
	t.add("subject", "processes", "RSS MiB", "PSS MiB", "StackInuse", "HeapInuse", "Sys MiB",
		"idle: RSS", "anonymous", "exchanged: RSS", "anonymous", "dial conn/s", "marks")
	each := func(x row, read func(*FullFigures) float64) string { return x.median(ofFull(read), thousands) }
	for _, x := range rows {
		t.add(x.subject,
			each(x, func(f *FullFigures) float64 { return float64(f.Processes) }),
			x.median(ofSample(Exchanged, rss), mebibytes), x.median(ofSample(Exchanged, pss), mebibytes),
			x.median(ofGo(Exchanged, stackInuse), mebibytes), x.median(ofGo(Exchanged, heapInuse), mebibytes),
			x.median(ofGo(Exchanged, goSys), mebibytes),
			each(x, func(f *FullFigures) float64 { return f.Idle.RSS }),
			each(x, func(f *FullFigures) float64 { return f.Idle.Anonymous }),
			each(x, func(f *FullFigures) float64 { return f.Exchanged.RSS }),
			each(x, func(f *FullFigures) float64 { return f.Exchanged.Anonymous }),
			x.median(dialRate, thousands), x.marks())
	}
	if p, ok := publishedIdle[w.Connections]; ok {
		t.add("published", none, publishedMiB(p.rss), none, none, none, publishedMiB(p.sys),
			thousands(p.each), none, none, none, none, "")
	}
	return t
}

func kernelTable(rows []row) *table {
	names := widest(rows)
	t := &table{}
	t.add(slices.Concat([]string{"subject", "all idle"}, names, []string{"other caches", "all exchanged", "machine", ""})...)
	for _, x := range rows {
		line := []string{x.subject, x.median(ofFull(func(f *FullFigures) float64 { return f.Idle.Kernel }), thousands)}
		for _, name := range names {
			line = append(line, x.median(ofCache(name), thousands))
		}
		t.add(append(line, x.median(otherCaches(names), thousands),
			x.median(ofFull(func(f *FullFigures) float64 { return f.Exchanged.Kernel }), thousands),
			x.median(ofFull(func(f *FullFigures) float64 { return f.Exchanged.Machine }), thousands), "")...)
	}
	return t
}

// ofCache makes a figure of a cache of the kernel.
func ofCache(name string) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Idle == nil || r.Idle.Full == nil || r.Idle.Full.Idle.Caches == nil {
			return 0, false
		}
		return r.Idle.Full.Idle.Caches[name], true
	}
}

// otherCaches makes a figure of what of the kernel's small objects is in none of
// the caches that are named.
func otherCaches(names []string) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Idle == nil || r.Idle.Full == nil || r.Idle.Full.Idle.Caches == nil {
			return 0, false
		}
		rest := r.Idle.Full.Idle.Kernel
		for _, name := range names {
			rest -= r.Idle.Full.Idle.Caches[name]
		}
		return rest, true
	}
}

// widest names the caches that grew most for one connection of any run, the widest
// first: at most widestCaches.
func widest(rows []row) []string {
	grown := make(map[string]float64)
	for _, x := range rows {
		for _, run := range x.runs {
			if run.Idle == nil || run.Idle.Full == nil {
				continue
			}
			for name, v := range run.Idle.Full.Idle.Caches {
				grown[name] = max(grown[name], v)
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(grown), func(a, b string) int {
		return cmp.Or(cmp.Compare(grown[b], grown[a]), cmp.Compare(a, b))
	})
	return names[:min(len(names), widestCaches)]
}

// million says what a million connections took, if they were held, and otherwise
// that nobody knows.
func (r *Report) million(b *bytes.Buffer) error {
	full := r.Scenario.full()
	if len(full) == 0 {
		return nil
	}
	i := slices.IndexFunc(full, Workload.isMillion)
	var rows []row
	if i >= 0 {
		rows = slices.DeleteFunc(r.rows(full[i].Name), func(x row) bool { return len(x.values(bytesIdle)) == 0 })
	}
	if len(rows) == 0 {
		fmt.Fprintf(b, "\nWhat a million connections take was not measured here, and nothing is extrapolated: --to 1000000 holds them.\n")
		return nil
	}
	fmt.Fprintf(b, "\nWhat a million connections took, measured after one exchange on each (published: %s):\n", published1M)
	t := &table{}
	t.add("subject", "user memory of the server (PSS)", "kernel, both ends", "the whole machine", "")
	total := func(x row, read func(*FullFigures) float64) string {
		return x.median(ofFull(read), func(each float64) string { return gibibytes(int64(each * 1e6)) })
	}
	for _, x := range rows {
		t.add(x.subject, x.median(ofSample(Exchanged, pss), func(v float64) string { return gibibytes(int64(v)) }),
			total(x, func(f *FullFigures) float64 { return f.Exchanged.Kernel }),
			total(x, func(f *FullFigures) float64 { return f.Exchanged.Machine }), "")
	}
	return t.write(b)
}
