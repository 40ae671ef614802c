package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/internal/page"
)

// drawn says of each chart whether each of its first eight curves is there: pixels of
// its very colour, or nearly, inside the axes. Beyond eight colours come again.
const drawn = `[...document.querySelectorAll("figure")].map((figure) => {
	const canvas = figure.querySelector("canvas");
	if (!canvas || !canvas.width || !canvas.height) return figure.id + ": no canvas";
	const plot = myriadPage.charts.get(figure.id).plot, box = plot.bbox;
	const pixels = canvas.getContext("2d").getImageData(box.left, box.top, box.width, box.height).data;
	const lost = plot.series.slice(1, 9).filter((series) => {
		const [r, g, b] = series.stroke().match(/\d+/g).map(Number);
		for (let i = 0; i < pixels.length; i += 4) {
			if (pixels[i + 3] > 200 && Math.abs(pixels[i] - r) + Math.abs(pixels[i + 1] - g) + Math.abs(pixels[i + 2] - b) < 24) return false;
		}
		return true;
	});
	return figure.id + lost.map((series) => ": no " + series.label).join("");
})`

func TestFromDisk(t *testing.T) {
	p := sample(1)
	url := saved(t, p)
	b := open(t, url)

	t.Run("every chart draws", func(t *testing.T) {
		var want []string
		for _, part := range p.Sections[1].Parts {
			want = append(want, part.Chart.ID)
		}
		if have := eval[[]string](b, drawn); !slices.Equal(have, want) {
			t.Errorf("have %q, want %q", have, want)
		}
	})
	t.Run("the curves are the data", func(t *testing.T) {
		for _, part := range p.Sections[1].Parts[:5] {
			for i, s := range part.Chart.Series {
				have := eval[[]float64](b, fmt.Sprintf(`myriadPage.charts.get(%q).plot.data[%d].filter((v) => v != null)`, part.Chart.ID, i+1))
				want := slices.DeleteFunc(slices.Clone(s.Y), func(v float64) bool { return v != v })
				if !slices.Equal(have, want) {
					t.Errorf("%s, %s: have %v, want %v", part.Chart.ID, s.Name, have, want)
				}
			}
		}
		if gap := eval[bool](b, `myriadPage.charts.get("time").plot.data[1].includes(null)`); !gap {
			t.Error("the gap is lost")
		}
	})
	t.Run("a chart's figures are there as a table", func(t *testing.T) {
		eval[bool](b, `document.querySelector("#memory summary").click(), true`)
		b.until(`document.querySelectorAll("#memory details tr").length > 0`)
		have := eval[[][]string](b, `[...document.querySelectorAll("#memory details tr")].map((tr) => [...tr.cells].map((c) => c.textContent))`)
		c := p.Sections[1].Parts[3].Chart
		want := [][]string{{"connections", "a"}}
		for i, x := range c.Series[0].X {
			want = append(want, []string{c.X.Unit.Format(x), c.Y.Unit.Format(c.Series[0].Y[i])})
		}
		if !slices.EqualFunc(have, want, slices.Equal[[]string]) {
			t.Errorf("have %q, want %q", have, want)
		}
	})
	t.Run("the script writes values as Go does", func(t *testing.T) {
		for _, unit := range []page.Unit{page.Number, page.Seconds, page.Bytes, page.Share, page.Percentile, page.Clock} {
			for _, v := range []float64{0, 0.5, 1, 2, 10, 99.95, 100, 999, 999.7, 1000, 1024, 1e4, 123456, 3661, 1e6, 1.5e9, 3e-9, 2.5e-5, 0.0123, -3, -1500} {
				if have, want := eval[string](b, fmt.Sprintf("myriadPage.format(%q, %v)", unit, v)), unit.Format(v); have != want {
					t.Errorf("%s %v is %q in the script, %q in Go", unit, v, have, want)
				}
			}
		}
	})
	t.Run("the button changes light and dark", func(t *testing.T) {
		const back = `getComputedStyle(document.body).backgroundColor`
		before := eval[string](b, back)
		const press = `(() => {
			scrollTo({ top: 0, behavior: "instant" });
			const button = document.querySelector("#_theme"), at = button.getBoundingClientRect();
			button.click();
			return document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2) === button;
		})()`
		if !eval[bool](b, press) {
			t.Error("something covers the button")
		}
		if after := eval[string](b, back); after == before {
			t.Errorf("the background is %s as before", after)
		}
		eval[bool](b, press)
		if after := eval[string](b, back); after != before {
			t.Errorf("the background is %s, and was %s", after, before)
		}
	})
	t.Run("it prints", func(t *testing.T) {
		pdf, err := chromedp.Run(b.ctx, chromedp.PrintToPDF())
		if err != nil || !strings.HasPrefix(string(pdf), "%PDF") || len(pdf) < 20_000 {
			t.Errorf("%d bytes, %v", len(pdf), err)
		}
	})
	t.Run("it asks for nothing and complains of nothing", func(t *testing.T) {
		b.quiet(url)
	})
}

// The policy must forbid what the page does not do: without that the test of requests
// would rest on our good will alone.
func TestPolicyForbids(t *testing.T) {
	b := open(t, saved(t, sample(1)))
	eval[bool](b, `(() => { const s = document.createElement("script"); s.textContent = "window.ran = 1"; document.body.append(s);
		const i = new Image(); i.onerror = () => { window.refused = 1; }; i.src = "http://127.0.0.1:9/x.png"; return true; })()`)
	b.until("window.refused === 1")
	if eval[bool](b, "window.ran === 1") {
		t.Error("a script that is not ours has run")
	}
}

// contrasts are the texts whose contrast with what is behind them is below 4.5, which
// WCAG asks for.
const contrasts = `(() => {
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } };
	const low = [];
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility()) continue;
		const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) low.push(e.nodeName + "." + e.className + " " + ratio.toFixed(2));
	}
	return low;
})()`

func TestLightAndDark(t *testing.T) {
	url := saved(t, sample(1))
	var backs []string
	for _, scheme := range []string{"light", "dark"} {
		b := open(t, url, media(scheme))
		backs = append(backs, eval[string](b, `getComputedStyle(document.body).backgroundColor`))
		if low := eval[[]string](b, contrasts); len(low) > 0 {
			t.Errorf("%s: too little contrast: %q", scheme, low)
		}
		if have := eval[[]string](b, drawn); strings.Contains(strings.Join(have, ""), ":") {
			t.Errorf("%s: %q", scheme, have)
		}
	}
	if backs[0] == backs[1] {
		t.Errorf("light and dark have the same background, %s", backs[0])
	}
}

func TestPhone(t *testing.T) {
	b := open(t, saved(t, sample(1)), chromedp.EmulateViewport(390, 800, chromedp.EmulateMobile))
	if width := eval[int](b, "document.documentElement.scrollWidth"); width > 390 {
		t.Errorf("the page is %d pixels wide", width)
	}
	if wide := eval[bool](b, `document.querySelector(".table .box").scrollWidth > document.querySelector(".table .box").clientWidth`); !wide {
		t.Error("the table fits, so that this test shows nothing; make it wider")
	}
	if small := eval[[]string](b, `[...document.querySelectorAll("button, nav a")].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 38).map((e) => e.textContent)`); len(small) > 0 {
		t.Errorf("too small for a finger: %q", small)
	}
	// Turned, the charts take the new width.
	b.do(chromedp.EmulateViewport(800, 390, chromedp.EmulateMobile))
	b.until(`[...myriadPage.charts.values()].every((c) => c.plot.width === c.place.clientWidth)`)
}
