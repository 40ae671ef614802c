package browser

import (
	"fmt"
	"math"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/internal/page"
)

// bench is a page like that of a bench of all scenarios: an answer, bars, claims that were not
// met, and a long list of contents.
func bench() *page.Page {
	bars := &page.Bars{Title: "TPS, echo-1000"}
	for i, name := range []string{"net", "goroutine", "epoll", "uring", "a contender with a name of some length", "idle"} {
		bars.Add(name, []float64{122_777, 105_355, 129_831, 116_020, 12_983.1, 0}[i], "", page.Plain)
	}
	p := &page.Page{
		Title: "Myriad bench", Lead: "quick: epoll serves 1.06 times as many echoes on 1,000 connections as net; an idle connection takes 105 bytes of memory instead of 3,727.",
		Remarks: []page.Remark{{Tone: page.Bad, Text: "No run failed, but 2 claims were not met: million: at most 100 bytes of user memory a connection on the server; soak: no errors."}},
		Facts:   [][2]string{{"Machine", "AMD EPYC; 2 CPUs; 23.5 GiB; linux 6.18.44 amd64; go1.26.8"}, {"Command", "myriad bench all --scale small --peers peers/peers --out report"}},
	}
	p.Sections = append(p.Sections, page.Section{Title: "Overview", Parts: []page.Part{{Bars: bars}}})
	for i := range 20 {
		p.Sections = append(p.Sections, page.Section{Title: fmt.Sprintf("scenario %d: time lines", i), Parts: []page.Part{{Text: "A paragraph."}}})
	}
	return p
}

// TestBars has bars in proportion to their values, nothing wider than the page, and the answer on
// the first screen, however wide that is.
func TestBars(t *testing.T) {
	p := bench()
	url := saved(t, p)
	for _, width := range []int64{320, 390, 600, 1280} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			b := open(t, url, chromedp.EmulateViewport(width, 844))
			type bar struct {
				Width float64 `json:"width"`
				Right float64 `json:"right"`
				Label float64 `json:"label"`
				Lines float64 `json:"lines"` // of the name
			}
			have := eval[[]bar](b, `[...document.querySelectorAll(".bars tr")].map((tr) => {
				const rect = tr.querySelector("rect").getBoundingClientRect();
				const name = tr.cells[0];
				return { width: rect.width, right: rect.right, label: tr.cells[2].getBoundingClientRect().left,
					lines: name.getBoundingClientRect().height / parseFloat(getComputedStyle(name).lineHeight) };
			})`)
			values := p.Sections[0].Parts[0].Bars.Bars
			if len(have) != len(values) {
				t.Fatalf("%d bars, want %d", len(have), len(values))
			}
			longest := have[2].Width
			if longest < 60 {
				t.Errorf("the longest bar is %v pixels wide", longest)
			}
			for i, v := range values {
				want := max(v.Value/values[2].Value, 0.0025) * longest
				if math.Abs(have[i].Width-want) > 1 || have[i].Right > have[i].Label {
					t.Errorf("%s: %.1f pixels of %.1f, up to %.1f of %.1f; want %.1f", v.Name, have[i].Width, longest, have[i].Right, have[i].Label, want)
				}
			}
			for i, most := range []float64{1, 1, 1, 1, 3, 1} {
				if width >= 390 && have[i].Lines > most+0.5 {
					t.Errorf("the name %q takes %.1f lines, want at most %v", values[i].Name, have[i].Lines, most)
				}
			}
			if over := eval[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
				t.Errorf("the page is %d pixels wider than the screen", over)
			}
			if out := eval[[]string](b, `[...document.querySelectorAll("figure *, header *")].filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.nodeName + " " + e.textContent)`); len(out) > 0 {
				t.Errorf("beyond the screen: %q", out)
			}
			if below := eval[bool](b, `document.querySelector(".lead").getBoundingClientRect().bottom > innerHeight / 2 ||
				document.querySelector("header .remarks").getBoundingClientRect().bottom > innerHeight`); below {
				t.Error("the answer, or what is to be known of it, is not on the first screen")
			}
		})
	}
}

// TestLargeFigures has the figures at the top of a load's report in one line each.
func TestLargeFigures(t *testing.T) {
	p := &page.Page{Title: "Load of 127.0.0.1:9000", Figures: [][2]string{{"Rate, answered", "105,712/s"}, {"p99", "117 µs"}, {"Errors", "0"}, {"Connections", "1,000"}}}
	for _, width := range []int64{390, 1280} {
		b := open(t, saved(t, p), chromedp.EmulateViewport(width, 844))
		if tall := eval[[]string](b, `[...document.querySelectorAll(".large dd")].filter((e) => e.getBoundingClientRect().height > 1.5 * parseFloat(getComputedStyle(e).lineHeight)).map((e) => e.textContent)`); len(tall) > 0 {
			t.Errorf("at %d pixels these take more than a line: %q", width, tall)
		}
	}
}

// TestLastLabel has an axis end with a wide label, which is not cut at the canvas's edge:
// the last column of pixels below the axis is empty.
func TestLastLabel(t *testing.T) {
	var parts []page.Part
	for id, x := range map[string][]float64{"short": {100, 1000}, "long": {100, 1000, 500_000}} {
		parts = append(parts, page.Part{Chart: &page.Chart{
			ID: id, Title: "Throughput",
			X: page.Axis{Label: "connections", Log: true}, Y: page.Axis{Label: "a second"},
			Series: []page.Series{{Name: "a", X: x, Y: x, Points: true}},
		}})
	}
	b := open(t, saved(t, &page.Page{Title: "Edge", Sections: []page.Section{{ID: "charts", Title: "Charts", Parts: parts}}}))
	const cut = `[...document.querySelectorAll("figure canvas")].filter((canvas) => {
		const pixels = canvas.getContext("2d").getImageData(canvas.width - 1, canvas.height / 2, 1, canvas.height / 2).data;
		return pixels.some((v, i) => i % 4 === 3 && v > 0);
	}).map((canvas) => canvas.closest("figure").id)`
	if have := eval[[]string](b, cut); len(have) > 0 {
		t.Errorf("the last label is cut in %q", have)
	}
}
