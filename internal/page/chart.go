package page

// Chart is a set of curves over one axis. NaN is no point: the curve has a gap there.
type Chart struct {
	// ID names it in the page, as that of a Section.
	ID    string
	Title string
	// Note is a sentence below the chart.
	Note   string
	X, Y   Axis
	Series []Series
}

// Axis says what an axis measures.
type Axis struct {
	Label string
	// Log has it logarithmic: values of 0 and below are no points then.
	Log  bool
	Unit Unit
}

// Unit says how values are written.
type Unit string

// The units.
const (
	Number     Unit = ""           // 1,234
	Seconds    Unit = "seconds"    // 1.2 ms
	Bytes      Unit = "bytes"      // 1.2 MiB
	Share      Unit = "share"      // 1 is 100 %
	Percentile Unit = "percentile" // x is 1/(1-p), on a logarithmic axis: 10 is 90 %, 100 is 99 %
	Clock      Unit = "clock"      // seconds since the begin, as m:ss
)

// Series is a curve.
type Series struct {
	Name string
	X, Y []float64
	// Dashed is how something published, or something to compare with, is drawn.
	Dashed bool
	// Points draws each point as well: where there are few.
	Points bool
}
