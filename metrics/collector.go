package metrics

import (
	"errors"
	"runtime/metrics"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad"
)

// Source is where the figures come from: a *myriad.Server.
type Source interface {
	// Stats is called once a scrape, from any goroutine.
	Stats() myriad.Stats
}

// NewServerCollector gives the Stats of a server to Prometheus. The labels, if
// any, are put on each of its metrics, so that several servers of one process
// can be told apart. Registering it fails if source is nil or a label's name is
// not one, or is taken: model, state, cause and le are. It is safe for concurrent
// use, and asks for Stats once a scrape.
//
// myriad_memory_per_connection_bytes is the memory of this process's heap that
// is in use (spans with at least one object: live objects, garbage that has not
// been swept yet, and the room between them; HeapInuse of runtime.MemStats) and
// of its goroutines' stacks (StackInuse), divided by the connections that are
// open. So the rest of the program is in it, and the kernel's memory for sockets
// is not; it tells what a connection costs when there are so many that the rest
// does not count. It is left out while no connection is open, and with worker
// processes, because their memory is not this one's.
func NewServerCollector(source Source, labels prometheus.Labels) prometheus.Collector {
	c := &collector{source: source}
	if _, ok := labels["le"]; ok {
		c.wrong = errors.New("metrics: the label le is the histograms' own; expected another name")
	}
	if source == nil {
		c.wrong = errors.New("metrics: the source is nil; expected a *myriad.Server")
	}
	for _, s := range singles {
		c.singles = append(c.singles, prometheus.NewDesc(namespace+s.name, s.help, nil, labels))
	}
	for _, f := range families {
		c.families = append(c.families, prometheus.NewDesc(namespace+f.name, f.help, []string{f.label}, labels))
	}
	for _, h := range histograms {
		c.histograms = append(c.histograms, prometheus.NewDesc(namespace+h.name, h.help, nil, labels))
	}
	c.model = prometheus.NewDesc(namespace+"server_info", "Always 1; the label model is the I/O model that serves, empty before the start.",
		[]string{"model"}, labels)
	c.memory = prometheus.NewDesc(namespace+"memory_per_connection_bytes",
		"Heap in use and stacks of this process, divided by the open connections.", nil, labels)
	return c
}

// namespace begins the name of each metric.
const namespace = "myriad_"

// collector is a Source with the descriptions of its metrics, in the order of
// the tables.
type collector struct {
	source                        Source
	wrong                         error // why it can't be registered
	singles, families, histograms []*prometheus.Desc
	model, memory                 *prometheus.Desc
}

// Describe is for the registry.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	if c.wrong != nil {
		to <- prometheus.NewInvalidDesc(c.wrong)
		return
	}
	for _, list := range [][]*prometheus.Desc{c.singles, c.families, c.histograms, {c.model, c.memory}} {
		for _, d := range list {
			to <- d
		}
	}
}

// Collect is for the registry.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	stats := c.source.Stats()
	for i, s := range singles {
		to <- prometheus.MustNewConstMetric(c.singles[i], s.kind, s.value(&stats))
	}
	for i, f := range families {
		for _, m := range f.members {
			to <- prometheus.MustNewConstMetric(c.families[i], f.kind, float64(m.value(&stats)), m.name)
		}
	}
	for i, h := range histograms {
		to <- constHistogram(c.histograms[i], h.value(&stats))
	}
	to <- prometheus.MustNewConstMetric(c.model, prometheus.GaugeValue, 1, stats.Model)
	if stats.Open > 0 && stats.Processes == 0 {
		to <- prometheus.MustNewConstMetric(c.memory, prometheus.GaugeValue, float64(goMemory())/float64(stats.Open))
	}
}

// constHistogram turns counts for each bucket into Prometheus's, which are of
// all up to a bound, in seconds. The last bucket has no bound: it is what the
// count of all has more.
func constHistogram(d *prometheus.Desc, h myriad.Histogram) prometheus.Metric {
	upTo := make(map[float64]uint64, len(h.Buckets))
	var sum uint64
	for i, n := range h.Buckets[:len(h.Buckets)-1] {
		sum += uint64(n)
		upTo[h.Bound(i).Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(d, uint64(h.Count), h.Sum.Seconds(), upTo)
}

// goMemory is the heap in use and the stacks of this process, in bytes. Reading
// it does not stop the world, as runtime.ReadMemStats does.
func goMemory() (sum uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
