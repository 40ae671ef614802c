package load

import (
	"cmp"
	"encoding/csv"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

// csvColumn is a column of the table of intervals.
type csvColumn struct {
	name string
	of   func(*Interval) string
}

// csvColumns are the table of intervals. Units are in the names. A field is empty
// where there is no figure: a percentile of no answers, memory that isn't known.
var csvColumns = slices.Concat(
	[]csvColumn{
		{"from_s", func(i *Interval) string { return inSeconds(i.From) }},
		{"to_s", func(i *Interval) string { return inSeconds(i.To) }},
		{"stage", func(i *Interval) string { return i.Stage }},
	},
	counterColumns(),
	[]csvColumn{
		numberColumn("errors", func(i *Interval) int64 { return i.errors() }),
		{"causes", func(i *Interval) string { return format.Tally(i.Errors) }},
		{"answered_per_s", func(i *Interval) string { return strconv.FormatFloat(i.perSecond(i.Answered), 'f', 1, 64) }},
	},
	latencyColumns("", func(i *Interval) *Latency { return &i.Latency }),
	latencyColumns("connect_", func(i *Interval) *Latency { return &i.Connect }),
	usageColumns("generator_", func(i *Interval) *Usage { return &i.Generator }),
	usageColumns("server_", func(i *Interval) *Usage { return i.Server }),
)

func counterColumns() (columns []csvColumn) {
	for i := range Counters {
		if c := &Counters[i]; c.interval != nil {
			columns = append(columns, numberColumn(c.Name, func(i *Interval) int64 { return *c.interval(i) }))
		}
	}
	return columns
}

// CSV writes the intervals of a run as a table (RFC 4180): a header, and a row an
// interval. Times are since the run's start. It belongs to one goroutine.
type CSV struct {
	table *csv.Writer
	err   error
}

// NewCSV begins a table.
func NewCSV(w io.Writer) *CSV {
	c := &CSV{table: csv.NewWriter(w)}
	c.table.UseCRLF = true
	c.write(func(column csvColumn) string { return column.name })
	return c
}

func (c *CSV) write(cell func(csvColumn) string) {
	row := make([]string, len(csvColumns))
	for i, column := range csvColumns {
		row[i] = cell(column)
	}
	c.err = cmp.Or(c.err, c.table.Write(row))
}

// Observe writes the interval of an event, if it has one. It is for Config.Observe.
func (c *CSV) Observe(e Event) {
	if e.Interval != nil {
		c.write(func(column csvColumn) string { return column.of(e.Interval) })
	}
}

// Flush writes what is left, and returns the first error of writing.
func (c *CSV) Flush() error {
	c.table.Flush()
	return cmp.Or(c.err, c.table.Error())
}

// WriteCSV writes the intervals of the run.
func (s *Stream) WriteCSV(w io.Writer) error {
	c := NewCSV(w)
	for i := range s.Intervals {
		c.Observe(Event{Interval: &s.Intervals[i]})
	}
	return c.Flush()
}

func numberColumn(name string, of func(*Interval) int64) csvColumn {
	return csvColumn{name, func(i *Interval) string { return strconv.FormatInt(of(i), 10) }}
}

// knownText is a figure that is unknown where it is 0.
func knownText(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func latencyColumns(prefix string, of func(*Interval) *Latency) []csvColumn {
	all := []csvColumn{numberColumn(prefix+"count", func(i *Interval) int64 { return of(i).Count })}
	for _, p := range []struct{ name, point string }{
		{"min_us", "min"}, {"mean_us", "mean"}, {"p50_us", "p50"}, {"p90_us", "p90"}, {"p99_us", "p99"},
		{"p999_us", "p99.9"}, {"p9999_us", "p99.99"}, {"max_us", "max"},
	} {
		all = append(all, csvColumn{prefix + p.name, func(i *Interval) string {
			if of(i).Count == 0 {
				return ""
			}
			return strconv.FormatFloat(float64(latencyPoints[p.point](of(i)))/1e3, 'f', -1, 64)
		}})
	}
	return all
}

func usageColumns(prefix string, of func(*Interval) *Usage) []csvColumn {
	field := func(name string, text func(*Usage) string) csvColumn {
		return csvColumn{prefix + name, func(i *Interval) string {
			if of(i) == nil {
				return ""
			}
			return text(of(i))
		}}
	}
	return []csvColumn{
		field("cpu_s", func(u *Usage) string { return inSeconds(u.CPU) }),
		field("resident_bytes", func(u *Usage) string { return knownText(u.Resident) }),
		field("descriptors", func(u *Usage) string { return knownText(int64(u.Descriptors)) }),
	}
}

func inSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}

func (i *Interval) perSecond(n int64) float64 {
	if i.To <= i.From {
		return 0
	}
	return float64(n) / (i.To - i.From).Seconds()
}

func (i *Interval) errors() int64 { return max(sumCauses(i.Errors), i.Failed+i.Lost) }
