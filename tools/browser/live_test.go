package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

func TestLive(t *testing.T) {
	var n atomic.Int64
	var down atomic.Bool
	var posts atomic.Int64
	n.Store(1)
	make := func() *page.Page {
		p := sample(int(n.Load()))
		p.Live = &page.Live{URL: "now", Every: 100 * time.Millisecond}
		first := &p.Sections[0]
		first.Parts = append(first.Parts, page.Part{Actions: []page.Action{{Label: "Pause", URL: "pause"}}})
		if n.Load() >= 4 { // a chart comes, another goes, a table has another line
			p.Sections[1].Parts[4].Chart.ID = "new"
			first.Parts[3].Table.AddRow("new", "1", "2", "3", "4", "5", "6", "7")
		}
		return p
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { make().WriteHTML(w) })
	mux.HandleFunc("GET /now", func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		make().WriteUpdate(w)
	})
	mux.HandleFunc("POST /pause", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Myriad-Action") != "1" {
			http.Error(w, "no header", http.StatusForbidden)
			return
		}
		posts.Add(1)
		w.Write([]byte("paused <b>it</b>"))
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	b := open(t, server.URL+"/")

	eval[bool](b, `window.was = document.querySelector("#time canvas"), document.querySelector("#memory details").open = true`)
	n.Store(2)
	b.until(`document.querySelector("td.figure").textContent === "116,206"`)
	b.until(`myriadPage.charts.get("time").plot.data[1][0] === 2000`)
	if !eval[bool](b, `document.querySelector("#time canvas") === window.was && document.querySelector("#memory details").open`) {
		t.Error("an update made the chart anew, or closed what was open")
	}
	b.quiet(server.URL + "/")

	down.Store(true)
	b.until(`document.querySelector("#_state.lost")?.textContent.includes("503")`)
	n.Store(3)
	down.Store(false)
	b.until(`document.querySelector("#_state.lost") === null && document.querySelector("td.figure").textContent === "116,207"`)

	n.Store(4)
	b.until(`myriadPage.charts.has("new") && !myriadPage.charts.has("one") && document.body.textContent.includes("116,208")`)
	if have := eval[[]string](b, drawn); len(have) != 7 || strings.Contains(strings.Join(have, ""), ":") {
		t.Errorf("charts: %q", have)
	}

	b.press(`button[data-post="pause"]`)
	b.until(`document.querySelector("#_said").checkVisibility() && document.querySelector("#_said").textContent === "paused <b>it</b>"`)
	if posts.Load() != 1 {
		t.Errorf("%d posts", posts.Load())
	}
	b.quiet(server.URL+"/", "503")
}

// zoomed is a live page of charts with linear and logarithmic X axes. From 2 on its
// curves are longer by a point.
func zoomed(n float64) *page.Page {
	curve := func(xs ...float64) []page.Series {
		s := page.Series{Name: "a", X: xs}
		if n < 2 {
			s.X = xs[:len(xs)-1]
		}
		for _, x := range s.X {
			s.Y = append(s.Y, n+x)
		}
		return []page.Series{s}
	}
	add := func(parts []page.Part, id string, x page.Axis, log bool, xs ...float64) []page.Part {
		return append(parts, page.Part{Chart: &page.Chart{ID: id, Title: id, X: x, Y: page.Axis{Label: "y", Log: log}, Series: curve(xs...)}})
	}
	var parts []page.Part
	parts = add(parts, "linear", page.Axis{Label: "x"}, true, 10, 20, 30, 40, 50, 60)
	parts = add(parts, "log", page.Axis{Label: "x", Log: true}, true, 10, 100, 1000, 10_000, 100_000, 1_000_000)
	parts = add(parts, "bytes", page.Axis{Label: "x", Log: true, Unit: page.Bytes}, false, 1<<10, 1<<12, 1<<14, 1<<16, 1<<18, 1<<20)
	parts = add(parts, "percentile", page.Axis{Label: "x", Unit: page.Percentile}, true, 1, 10, 100, 1000, 10_000, 100_000)
	return &page.Page{
		Title: "Zoom", Live: &page.Live{URL: "now", Every: 50 * time.Millisecond},
		Sections: []page.Section{{ID: "charts", Title: "Charts", Parts: parts}},
	}
}

// drag draws the mouse over the middle of a chart, as one does who zooms.
const drag = `((id) => {
	const over = myriadPage.charts.get(id).plot.over;
	over.scrollIntoView({ block: "center", behavior: "instant" });
	const at = over.getBoundingClientRect(), y = at.y + at.height / 2;
	const send = (to, type, x, buttons) => to.dispatchEvent(new MouseEvent(type, { bubbles: true, clientX: at.x + at.width * x, clientY: y, movementX: 1, movementY: 1, button: 0, buttons }));
	send(over, "mouseenter", 0.3, 0);
	send(over, "mousemove", 0.3, 0);
	send(over, "mousedown", 0.3, 1);
	send(document, "mousemove", 0.7, 1);
	send(over, "mousemove", 0.7, 1);
	send(document, "mouseup", 0.7, 0);
	return true;
})`

// A reader's zoom stays when a live page has new figures, on every kind of axis, and one
// who does not zoom sees all of them.
func TestZoomStays(t *testing.T) {
	var n atomic.Int64
	n.Store(1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { zoomed(1).WriteHTML(w) })
	mux.HandleFunc("GET /now", func(w http.ResponseWriter, _ *http.Request) { zoomed(float64(n.Load())).WriteUpdate(w) })
	server := httptest.NewServer(mux)
	defer server.Close()
	b := open(t, server.URL+"/")
	ids := []string{"linear", "log", "bytes", "percentile"}
	scale := func(id string) []float64 {
		return eval[[]float64](b, fmt.Sprintf(`(({ min, max }) => [min, max])(myriadPage.charts.get(%q).plot.scales.x)`, id))
	}
	updated := func(id string, n int) {
		b.until(fmt.Sprintf(`(({ data: [x, y] }) => y[0] === x[0] + %d)(myriadPage.charts.get(%q).plot)`, n, id))
	}
	whole := make(map[string][]float64)
	for _, id := range ids {
		whole[id] = scale(id)
	}

	n.Store(2)
	for _, id := range ids {
		updated(id, 2)
		if have := scale(id); have[0] > whole[id][0] || have[1] <= whole[id][1] {
			t.Errorf("%s: without a zoom it shows %v, and %v before it had a point more", id, have, whole[id])
		}
		whole[id] = scale(id)
	}
	zoom := make(map[string][]float64)
	for _, id := range ids {
		eval[bool](b, drag+fmt.Sprintf("(%q)", id))
		b.until(fmt.Sprintf(`(({ min, max }) => min > %v && max < %v)(myriadPage.charts.get(%q).plot.scales.x)`, whole[id][0], whole[id][1], id))
		zoom[id] = scale(id)
	}
	for _, more := range []int{3, 4} { // one of them could draw anew by chance
		n.Store(int64(more))
		for _, id := range ids {
			updated(id, more)
			b.until(`new Promise((done) => requestAnimationFrame(() => done(true)))`)
			if have := scale(id); have[0] != zoom[id][0] || have[1] != zoom[id][1] {
				t.Errorf("%s: it shows %v after an update, and %v was chosen of %v", id, have, zoom[id], whole[id])
			}
		}
	}
	b.quiet(server.URL + "/")
}
