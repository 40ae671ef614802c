package lab

import (
	"cmp"
	"maps"
	"slices"

	"github.com/myriad-go/myriad/internal/page"
)

// widestCaches is how many of the kernel's caches have a column.
const widestCaches = 8

// parkedParts are the table of parked goroutines, a row for each size, if there are any.
func (r *Report) parkedParts() []page.Part {
	t := &page.Table{Caption: "Goroutines that wait for a channel and do nothing else, in a process of their own."}
	t.Add("goroutines", "StackInuse MiB", "Sys MiB", "RSS MiB", "PSS MiB", "stack bytes each", "anonymous bytes each", "marks")
	var all []row
	for _, w := range r.Scenario.Workloads {
		if w.Kind != Parking {
			continue
		}
		for _, x := range r.rows(w.Name) {
			all = append(all, x)
			addMarked(t, x, thousands(float64(w.Connections)), x.cell(parkedStackInuse), x.cell(parkedSys),
				x.cell(parkedRSS), x.cell(parkedPSS), x.cell(parkedStack), x.cell(parkedAnonymous))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return append([]page.Part{{Heading: "parked"}, {Table: t}}, remarksPart(remarks(all))...)
}

// fullParts are the tables of a Full workload: the server's user memory, and the
// kernel's.
func fullParts(rows []row, w Workload) []page.Part {
	return []page.Part{
		tablePart(w.Caption+" The server's user memory: in all after one exchange, and bytes for each connection.", userTable(rows)),
		tablePart("The kernel's memory for both ends of each connection, in bytes; by cache when idle. proc_inode_cache, if there, "+
			"is left by looks at descriptors in /proc. Machine is by how much unused memory (MemFree) is less after one "+
			"exchange: kernel, server, load generator, and whatever else the machine did.", kernelTable(rows)),
	}
}

func userTable(rows []row) *page.Table {
	t := &page.Table{}
	t.Add("subject", "processes", "RSS MiB", "PSS MiB", "StackInuse", "HeapInuse", "Sys MiB",
		"idle: RSS", "anonymous", "exchanged: RSS", "anonymous", "dial conn/s", "marks")
	for _, x := range rows {
		addMarked(t, x, x.subject, x.cell(fullProcesses), x.cell(rssExchanged), x.cell(pssExchanged),
			x.cell(stackExchanged), x.cell(heapExchanged), x.cell(sysExchanged),
			x.cell(fullIdleRSS), x.cell(fullIdleAnonymous), x.cell(fullExchangedRSS), x.cell(fullExchangedAnonymous),
			x.cell(dialRate))
	}
	return t
}

func kernelTable(rows []row) *page.Table {
	names := widest(rows)
	t := &page.Table{}
	t.Add(slices.Concat([]string{"subject", "all idle"}, names, []string{"other caches", "all exchanged", "machine", ""})...)
	for _, x := range rows {
		line := []string{x.subject, x.cell(fullIdleKernel)}
		for _, name := range names {
			line = append(line, x.cell(ofCache(name)))
		}
		t.Add(append(line, x.cell(otherCaches(names)),
			x.cell(fullExchangedKernel),
			x.cell(fullExchangedMachine), "")...)
	}
	return t
}

// ofCache makes a figure of a cache of the kernel.
func ofCache(name string) Figure {
	return Figure{Heading: name, Unit: page.Bytes, Better: Lower, read: of(cachesOf, func(f *FullFigures) float64 { return f.Idle.Caches[name] })}
}

// otherCaches makes a figure of what of the kernel's small objects is in none of
// the caches that are named.
func otherCaches(names []string) Figure {
	return Figure{Heading: "other caches", Unit: page.Bytes, Better: Lower, read: of(cachesOf, func(f *FullFigures) float64 {
		rest := f.Idle.Kernel
		for _, name := range names {
			rest -= f.Idle.Caches[name]
		}
		return rest
	})}
}

// cachesOf is what a run has that knows the kernel's caches.
func cachesOf(r *RunRecord) *FullFigures {
	f := fullOf(r)
	if f == nil || f.Idle.Caches == nil {
		return nil
	}
	return f
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

// isMillion says whether a workload's connections are a million.
func (w Workload) isMillion() bool { return w.Full && w.Connections == 1_000_000 }

// millionParts say what a million connections took, if they were held.
func (r *Report) millionParts() []page.Part {
	i := slices.IndexFunc(r.Scenario.Workloads, Workload.isMillion)
	if i < 0 {
		return nil
	}
	t := &page.Table{Caption: "What a million connections took, measured after one exchange on each."}
	t.Add("subject", "user memory of the server (PSS)", "kernel, both ends", "the whole machine", "")
	pss, kernel, machine := pssExchanged, fullExchangedKernel, fullExchangedMachine
	pss.write = func(v float64) string { return gibibytes(int64(v)) }
	kernel.write = func(each float64) string { return gibibytes(int64(each * 1e6)) }
	machine.write = kernel.write
	for _, x := range r.rows(r.Scenario.Workloads[i].Name) {
		if len(bytesIdle.values(x)) > 0 {
			t.Add(x.subject, x.cell(pss), x.cell(kernel), x.cell(machine), "")
		}
	}
	if len(t.Lines) == 1 {
		return nil
	}
	return []page.Part{{Table: t}}
}
