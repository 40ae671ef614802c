package page

// Chart is a line chart. A point with the value NaN is a gap in the line.
type Chart struct {
	// ID identifies the chart in the page, like Section.ID.
	ID    string
	Title string
	// Note is a sentence below the chart.
	Note   string
	X, Y   Axis
	Series []Series
}

type Axis struct {
	Label string
	// Log makes the axis logarithmic. A logarithmic axis shows no values of 0 and below.
	Log  bool
	Unit Unit
}

// Unit selects how values are formatted.
type Unit string

const (
	Number     Unit = ""           // 1,234
	Seconds    Unit = "seconds"    // 1.2 ms
	Bytes      Unit = "bytes"      // 1.2 MiB
	Share      Unit = "share"      // 1 is 100 %
	Percentile Unit = "percentile" // the value 1/(1-p) means the percentile p: 10 is 90 %, 100 is 99 %
	Clock      Unit = "clock"      // seconds since the start, as m:ss
)

type Series struct {
	Name string
	X, Y []float64
	// Dashed draws the line dashed. It is used for reference values, such as published results.
	Dashed bool
	// Points draws a marker at each point. It is used for series with few points.
	Points bool
}
