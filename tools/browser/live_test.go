package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

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
			first.Parts[3].Table.Add("new", "1", "2", "3", "4", "5", "6", "7")
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
	if _, complaints := b.heard(); len(complaints) > 0 {
		t.Errorf("it complains: %q", complaints)
	}

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

	b.do(chromedp.Click(`button[data-post="pause"]`))
	b.until(`document.querySelector("#_said").checkVisibility() && document.querySelector("#_said").textContent === "paused <b>it</b>"`)
	if posts.Load() != 1 {
		t.Errorf("%d posts", posts.Load())
	}
	requests, _ := b.heard()
	for _, url := range requests {
		if !strings.HasPrefix(url, server.URL+"/") && !strings.HasPrefix(url, "data:") {
			t.Errorf("it asked for %s", url)
		}
	}
}
