// Command measure shows what Go's memory limit and GOGC are worth: it holds live
// memory, makes garbage, and tells the CPU time that collecting it took and the
// most memory that the process had, for several settings side by side. It runs
// its processes in a memory cgroup where it can make one (which takes root) and
// otherwise without.
//
//	go run ./tune/measure -bound 1024 -live 256
//
// docs/memory.md has what it printed, and what that means.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/myriad-go/myriad/tune"
	"github.com/myriad-go/myriad/tune/internal/cgroup"
)

// setting is a row of the table.
type setting struct {
	name    string
	limited bool // with Go's memory limit at 90 % of the bound
	gogc    int  // as in tune.Options
}

var settings = []setting{
	{"GOGC=100, no limit", false, 100},
	{"GOGC=200, no limit", false, 200},
	{"GOGC=400, no limit", false, 400},
	{"GOGC=100, limit", true, 100},
	{"GOGC=200, limit", true, 200},
	{"GOGC=400, limit", true, 400},
	{"GOGC=off, limit", true, -1},
}

// work is what each process does.
type work struct {
	Live, Garbage, Bound int // MiB
	Grouped              bool
	Options              tune.Options
	Limited              bool
}

func main() {
	if text, ok := os.LookupEnv(child); ok {
		behave(text)
		return
	}
	bound := flag.Int("bound", 1024, "the memory that a process may use, in `MiB`")
	live := flag.Int("live", 256, "the memory that it holds, in `MiB`")
	garbage := flag.Int("garbage", 4096, "the garbage that it makes, in `MiB`")
	rounds := flag.Int("rounds", 5, "how often each setting runs, one after the other in each round")
	flag.Parse()
	if err := compare(work{Live: *live, Garbage: *garbage, Bound: *bound}, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

// compare runs each setting in each round, and prints the table.
func compare(w work, rounds int) error {
	if w.Live < 1 || w.Garbage < 1 || w.Bound < 1 || rounds < 1 {
		return fmt.Errorf("-live %d -garbage %d -bound %d -rounds %d; expected 1 or more of each", w.Live, w.Garbage, w.Bound, rounds)
	}
	results := make([][]result, len(settings))
	for range rounds {
		for i, s := range settings {
			w.Limited, w.Options = s.limited, tune.Options{GOGC: s.gogc}
			r, err := runGrouped(w)
			if err != nil {
				return err
			}
			results[i] = append(results[i], r)
		}
	}
	print(w, results)
	return nil
}

// runGrouped runs one process, in a group of its own where that can be.
func runGrouped(w work) (result, error) {
	group, err := cgroup.New(int64(w.Bound) << 20)
	if err != nil {
		return run(w, nil)
	}
	w.Grouped = true
	r, err := run(w, group)
	if removed := group.Remove(); err == nil {
		err = removed
	}
	return r, err
}

// print prints the medians, and the spread of what decides.
func print(w work, results [][]result) {
	where := "in a memory cgroup"
	if !results[0][0].Grouped {
		where = "without a cgroup, limits set by hand"
	}
	fmt.Printf("%d MiB live, %d MiB of garbage, bound %d MiB %s, %d rounds: medians (least to most)\n\n",
		w.Live, w.Garbage, w.Bound, where, len(results[0]))
	fmt.Println("| setting | CPU time, s | of it GC | GC cycles | peak RSS, MiB | killed |")
	fmt.Println("|---|--:|--:|--:|--:|--:|")
	for i, s := range settings {
		ended := slices.DeleteFunc(slices.Clone(results[i]), func(r result) bool { return r.Killed })
		killed := len(results[i]) - len(ended)
		if len(ended) == 0 {
			fmt.Printf("| %s | | | | | %d of %d |\n", s.name, killed, len(results[i]))
			continue
		}
		fmt.Printf("| %s | %s | %.0f %% | %.0f | %s | %d of %d |\n", s.name,
			spread(ended, func(r result) float64 { return r.CPU.Seconds() }).text(1),
			spread(ended, func(r result) float64 { return 100 * r.GC }).median,
			spread(ended, func(r result) float64 { return float64(r.Cycles) }).median,
			spread(ended, func(r result) float64 { return float64(r.Peak >> 20) }).text(0),
			killed, len(results[i]))
	}
}

// figures are a median with what is around it.
type figures struct{ least, median, most float64 }

func (f figures) text(digits int) string {
	return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, f.median, digits, f.least, digits, f.most)
}

func spread(of []result, figure func(result) float64) figures {
	var all []float64
	for _, r := range of {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	return figures{all[0], all[len(all)/2], all[len(all)-1]}
}

// result is what a process tells of itself.
type result struct {
	Grouped, Killed bool
	CPU             time.Duration
	GC              float64 // its share of the CPU time
	Cycles          uint64
	Peak            int64 // bytes
}
