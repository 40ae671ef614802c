package page

import (
	"math"
	"time"
)

// newSamplePage returns a page with each kind of part and chart, and with text in each field.
func newSamplePage(text string) *Page {
	t := &Table{Caption: text + " table", Lines: [][]string{{text, "rate" + text, "note"}}}
	t.AddRow(text, "1,234", text)
	t.SetLastRowTone(1, Good)
	t.AddRow("second", "99", "behind"+text)
	t.SetLastRowTone(1, Bad)
	t.SetLastRowTone(2, Warn)
	t.Actions = []Action{{}, {Label: text + " close", URL: text, Confirm: text}}
	var x, y, z []float64
	for i := range 50 {
		x, y = append(x, float64(i)), append(y, 1000*math.Sqrt(float64(i)))
		z = append(z, y[i]*0.8)
	}
	y[20], y[21] = math.NaN(), math.Inf(1)
	few := []float64{100, 1000, 10000}
	return &Page{
		Title: text + " title", Lead: text + " lead", Tone: Warn,
		Figures: [][2]string{{text + " figure", text + " large"}},
		Facts:   [][2]string{{text + " fact", text + " value"}},
		Live:    &Live{URL: "/live" + text, Every: time.Second},
		Sections: []Section{{
			ID: "one", Title: text + " one", Lead: text + " lead",
			Parts: []Part{
				{Text: text + " paragraph"}, {Heading: text + " heading"},
				{Remarks: []Remark{{Plain, text}, {Good, text}, {Warn, text}, {Bad, text}, {Faint, text}}},
				{Fold: text + " folded", Remarks: []Remark{{Warn, text}}},
				{Bars: &Bars{Title: text + " bars", Unit: Bytes, Bars: []Bar{{text, 4096, "", Plain}, {"second", 97, text, Good}}}},
				{Table: t},
				{Chart: &Chart{
					ID: "many", Title: text + " many", Note: text + " note",
					X:      Axis{Label: text + " time", Unit: Clock},
					Y:      Axis{Label: text + " rate"},
					Series: []Series{{Name: text + " a", X: x, Y: y}, {Name: text + " b", X: x, Y: z, Dashed: true}},
				}},
				{Chart: &Chart{
					ID: "few", Title: text + " few",
					X:      Axis{Label: text + " connections", Log: true},
					Y:      Axis{Label: text + " memory", Log: true, Unit: Bytes},
					Series: []Series{{Name: text + " a", X: few, Y: []float64{0, 4096, 8192}, Points: true}},
				}},
				{Actions: []Action{{Label: text + " drain", URL: text, Confirm: text}}},
				{Links: []Link{{URL: text, Text: text}}},
			},
		}, {ID: "two", Title: "two"}},
	}
}
